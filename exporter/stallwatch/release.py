"""For how long are the GPUs given up? An open driver can neither be unloaded nor have the MIG mode of its GPUs changed.

Nothing of the exporter uses the driver then; afterwards the GPUs are read again by themselves. Their signal is missing
meanwhile, which is no failure. A worker that is stuck inside the driver cannot be made to let go, and is named.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from stallwatch.collectors.gpu import NAME
from stallwatch.snapshot import Failure, Moment
from stallwatch.values import parse_duration
from stallwatch.workers import Worker

logger = logging.getLogger("stallwatch.release")

USUAL_SECONDS = 300.0
LONGEST_SECONDS = 86_400.0
"""A release that was forgotten must not last for ever."""
WITHIN = 3.0
"""How long a worker may take to end before it is called a holder of the driver."""


@dataclass(frozen=True, slots=True)
class Released:
    """The answer to a release: until when (Unix seconds), and what still holds the driver."""

    until: float
    holders: tuple[str, ...] = ()

    def text(self) -> str:
        """Return it in words, one line for each holder."""
        lines = [f"the GPUs are released until {_utc(self.until)}", *map("still held by {}".format, self.holders)]
        return "".join(f"{line}\n" for line in lines)


class Release:
    """Whether the GPUs are given up now, and the worker that has to let go of them."""

    def __init__(self, worker: Worker, clock: Callable[[], Moment]) -> None:
        self._worker = worker
        self._clock = clock
        self._until: float | None = None

    def begin(self, seconds: float) -> None:
        """Give them up for so long from now on, whatever was said before."""
        self._until = self._clock().monotonic + seconds

    async def carry_out(self) -> Released:
        """Have the worker end, and return what still holds the driver then."""
        now = self._clock()
        until = now.unix if self._until is None else now.unix_of(self._until)
        released = Released(until, await self._worker.give_up(WITHIN))
        logger.info("GPUs released", extra={"until": _utc(until), "held_by": "; ".join(released.holders)})
        return released

    @property
    def until(self) -> float | None:
        """Return when they are taken back (monotonic), None where they are not given up."""
        if self._until is not None and self._until <= self._clock().monotonic:
            self._until = None
        return self._until

    def failure(self) -> Failure | None:
        """Return why the GPUs are not read, None where they may be."""
        until = self.until
        if until is None:
            return None
        return Failure(NAME, "released", f"until {_utc(self._clock().unix_of(until))}")


def seconds_of(text: str) -> float:
    """Return how long is asked for; raises ValueError with a sentence where that is no such duration."""
    try:
        seconds = float(parse_duration(text))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST_SECONDS:
        raise ValueError("expected a duration above 0 and up to 24h, such as 5m")
    return seconds


def _utc(unix: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix))
