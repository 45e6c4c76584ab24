"""What time is it, so that a published time does not tremble?"""

from collections.abc import Callable

from stallwatch.snapshot import Moment

OFFSET_STEP = 0.05
"""Monotonic times become Unix times by an offset; it follows the clock in steps, so that a time that is published does
not tremble by microseconds from one scrape to the next."""


class SteadyClock:
    """Reads a clock, and keeps the offset of its Unix time to its monotonic one for as long as both go alike."""

    def __init__(self, clock: Callable[[], Moment]) -> None:
        self._clock = clock
        self._offset = 0.0

    def __call__(self) -> Moment:
        """Return what it is now."""
        now = self._clock()
        if abs(now.unix - now.monotonic - self._offset) > OFFSET_STEP:
            self._offset = now.unix - now.monotonic
        return Moment(now.monotonic + self._offset, now.monotonic, now.boottime)
