"""Does a number move? How counters and levels become movement, each above the floor of its signal."""

from collections import deque
from collections.abc import Iterable

RATE_WINDOW = 10.0
RATE_SPAN = 5.0
MEMORY = 60.0
"""How long what was known last is taken to hold while it cannot be read."""
TOKENS_PER_PROBE = 2
"""A health probe of SGLang is a real request of one token: one to prefill, at most one more to decode."""
MOST_CREDIT = 3.0 * TOKENS_PER_PROBE


class Rate:
    """How fast a counter rises, over a window long enough that one burst of a second is no trend."""

    def __init__(self, points: Iterable[tuple[float, float]] = ()) -> None:
        self._points: deque[tuple[float, float]] = deque(points)

    @property
    def ends(self) -> tuple[tuple[float, float], ...]:
        """Return the oldest and the latest point, from which it can go on."""
        points = self._points
        return (points[0], points[-1]) if len(points) > 1 else tuple(points)

    @property
    def value(self) -> float | None:
        """Return the value that was taken in last."""
        return self._points[-1][1] if self._points else None

    def of(self, now: float, value: float) -> float | None:
        """Take in a value and return the rise per second over the last seconds, None while too little is known."""
        points = self._points
        if points and value < points[-1][1]:
            points.clear()  # the counter began anew: what lies between is not known
        if not points or now > points[-1][0]:
            points.append((now, value))
        while len(points) > 2 and now - points[1][0] >= RATE_WINDOW:
            points.popleft()
        span = now - points[0][0]
        return (value - points[0][1]) / span if span >= RATE_SPAN else None


class Ratchet:
    """Whether a level rises by a step above where it last was, however slowly."""

    def __init__(self, step: float, base: float | None = None) -> None:
        self._step = step
        self.base = base

    def rises(self, value: float) -> bool:
        """Take in a value; a fall sets the mark anew."""
        if self.base is None or value < self.base:
            self.base = value
            return False
        if value - self.base < self._step:
            return False
        self.base = value
        return True


class Tokens:
    """Whether a token counter moves by more than what our own probes make the engine count.

    Each probe gives credit for its tokens, which a rise uses up. Credit does not pile up: probes that fail for an hour
    are no reason to overlook the first tokens after it.
    """

    def __init__(self, last: float | None = None) -> None:
        self.last = last
        self._probes = 0
        self._credit = float(TOKENS_PER_PROBE)  # one may be on its way

    def move(self, value: float, probes: int, *, probed: bool) -> bool:
        """Take in the counter; `probes` is how many probes have ended so far, `probed` whether any are made."""
        rise = 0.0 if self.last is None else value - self.last
        self._credit = min(MOST_CREDIT, self._credit + TOKENS_PER_PROBE * (probes - self._probes))
        self.last, self._probes = value, probes
        if rise > (self._credit if probed else 0.0):
            self._credit = float(TOKENS_PER_PROBE)
            return True
        self._credit -= max(0.0, rise)
        return False


class Since:
    """Since when something has been so without a break; what is unknown for up to a minute is no break."""

    def __init__(self, at: float | None = None, known: float | None = None) -> None:
        self.at = at
        self._known = (0.0 if at is None else at) if known is None else known

    def hold(self, now: float, *, holds: bool | None) -> float | None:
        """Take in whether it is so now (None: not known) and return since when."""
        if holds is None and now - self._known <= MEMORY:
            return self.at
        if holds is not None:
            self._known = now
        self.at = (now if self.at is None else self.at) if holds else None
        return self.at
