"""How long was a GPU busy?

The plain rate shows a fraction of a second; the driver's ring of samples holds ten, so whoever looks more often misses
nothing. The ring lies as well: it is empty while the GPU idles, its clock is the driver's own and begins anew with the
driver, and on the first look it tells of the time before. What nobody sampled is never counted.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

from stallwatch.gpus.nvml import CallError, Device

RING_SECONDS = 10.0  # what the ring holds
LONGEST_PERIOD = 1.0  # between two samples, on any product

T = TypeVar("T")


class Questions:
    """Asks one GPU for one thing after the other and keeps what it refused, unless that ends all asking."""

    def __init__(self) -> None:
        self.refused: list[CallError] = []
        self.answered = False

    def __call__(self, question: Callable[[], T | None]) -> T | None:
        """Return the answer, or None where there is none."""
        try:
            answer = question()
        except CallError as error:
            if error.final:
                raise
            self.refused.append(error)
            return None
        self.answered = self.answered or answer is not None
        return answer


class Busy:
    """Sums up the busy seconds of one GPU from the driver's ring of samples, or else from the plain rate."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._at: float | None = None  # monotonic, of the last look that saw anything
        self._device: Device | None = None
        self._newest = 0  # the last sample counted, in µs of the driver's clock
        self._period = int(LONGEST_PERIOD * 1e6)

    def look(self, device: Device, ask: Questions, at: float) -> tuple[float | None, float | None]:
        """Return the mean utilization since the last look and all busy seconds, None for what cannot be known now."""
        first = self._at is None
        elapsed = RING_SECONDS if self._at is None else at - self._at
        since = self._newest if device is self._device else 0  # a new handle may be of a newly loaded driver
        self._device = device
        samples = ask(lambda: device.samples(since))
        rate = None if samples and not first else ask(device.utilization)
        if samples == [] and rate:  # not idle: is the ring empty, or has the driver's clock begun anew?
            samples = ask(lambda: device.samples(0))
        busy, covered = self._count(samples or [], elapsed)
        mean = busy / covered if covered else None
        if first:  # what the ring holds is from before our time
            mean, busy = (mean if rate is None else rate), 0.0
        elif mean is None and rate is not None:
            if samples is not None and elapsed < LONGEST_PERIOD:
                return rate, self.seconds  # too early for a new sample, which will cover this time
            mean, busy = rate, rate * min(elapsed, RING_SECONDS)
        if mean is None:
            return None, None
        self.seconds += busy
        self._at = at
        return mean, self.seconds

    def _count(self, samples: list[tuple[int, float | None]], elapsed: float) -> tuple[float, float]:
        """Return the busy seconds, and of how many, that the samples after the newest counted tell within `elapsed`."""
        if not samples:
            return 0.0, 0.0
        gaps = sorted(b[0] - a[0] for a, b in pairwise(samples) if b[0] > a[0])
        if gaps:
            self._period = min(gaps[len(gaps) // 2], int(LONGEST_PERIOD * 1e6))
        longest = 2 * self._period  # over a longer gap nobody took samples
        newest = samples[-1][0]
        before = max(self._newest if newest >= self._newest else 0, newest - int(elapsed * 1e6) - longest)
        self._newest = newest
        busy = covered = 0.0
        for stamp, share in samples:
            gap, before = min(stamp - before, longest), max(stamp, before)
            if gap > 0 and share is not None:
                busy += share * gap / 1e6
                covered += gap / 1e6
        return busy, covered
