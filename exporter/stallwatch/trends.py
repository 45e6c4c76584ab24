"""How did each server's signals run over the last half hour? A small ring of numbers per server, for the status page.

One point covers ten seconds and holds the lowest and the highest value seen in them, so that a rank or GPU that differs
from its peers, and a peak between two points, stay visible. What could not be read is a gap, never a zero.
"""

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stallwatch.collectors.engine import EngineReading
from stallwatch.collectors.gpu import GpuReading
from stallwatch.collectors.log import LogReading
from stallwatch.past import Past
from stallwatch.view import View

POINT_SECONDS = 10.0
POINTS = 180
SIGNALS = ("utilization", "power", "cpu", "tokens", "log_age")
"""Ratios, watts of one GPU, cores of one scheduler, tokens per second, seconds without progress in the log."""

Range = tuple[float, float]
Point = Range | None


@dataclass(frozen=True, slots=True)
class Trend:
    """One signal over the half hour, oldest first: the lowest and highest of each ten seconds; None is a gap."""

    points: tuple[Point, ...] = ()
    now: Point = None

    @property
    def peak(self) -> float | None:
        """Return the highest value of all."""
        return max((point[1] for point in self.points if point), default=None)


@dataclass(frozen=True, slots=True)
class HalfHour:
    """The signals of one server up to `end` (monotonic), where the last ten seconds may not be over yet."""

    end: float
    trends: Mapping[str, Trend] = field(default_factory=dict)


class Trends:
    """The half hour of every server, taken in with each view; servers that are gone are forgotten."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}

    def take(self, view: View) -> None:
        """Take in one view."""
        slot = int(view.snapshot.moment.monotonic // POINT_SECONDS)
        tokens = {reading.server: reading for reading in view.snapshot.all(EngineReading)}
        watts, progress = _watts(view), _progress(view)
        servers, self._servers = self._servers, {}
        for name, past in view.pasts.items():
            server = self._servers[name] = servers.get(name) or _Server(slot)
            at = progress.get(name)
            age = None if at is None else max(0.0, view.snapshot.moment.monotonic - at)
            server.take(
                slot,
                {
                    "utilization": _range((past.gpus.holding.utilization_min, past.gpus.holding.utilization_max)),
                    "power": _range(watts.get(place.uuid) for place in past.server.gpus),
                    "cpu": _range(rank.cpu for rank in past.schedulers),
                    "tokens": _range((server.tokens.rate(tokens.get(name)),)),
                    "log_age": _range((age,)),
                },
            )

    def of(self, name: str) -> HalfHour | None:
        """Return the half hour of a server, None where nothing of it is known."""
        server = self._servers.get(name)
        return server.half_hour() if server else None


@dataclass(slots=True)
class _Tokens:
    """The rate of an engine's token counters between its last two readings."""

    at: float | None = None
    counted: float = 0.0
    last: float | None = None

    def rate(self, reading: EngineReading | None) -> float | None:
        if reading is None:
            self.at = self.last = None
        elif reading.at != self.at:
            counted = sum(sum(rank.tokens.values()) for rank in reading.ranks)
            known = self.at is not None and counted >= self.counted  # else the counters began anew
            self.last = (counted - self.counted) / (reading.at - self.at) if known and self.at is not None else None
            self.at, self.counted = reading.at, counted
        return self.last


class _Server:
    """The rings of one server: the point of a slot stands at the slot's number modulo the size of the ring."""

    def __init__(self, slot: int) -> None:
        self.tokens = _Tokens()
        self._slot = slot
        gaps = [math.nan] * POINTS
        self._rings = {signal: (array("f", gaps), array("f", gaps)) for signal in SIGNALS}
        self._now: Mapping[str, Point] = {}

    def take(self, slot: int, values: Mapping[str, Point]) -> None:
        """Take the values of one moment into the point of its slot."""
        for passed in range(max(self._slot + 1, slot - POINTS + 1), slot + 1):
            for low, high in self._rings.values():
                low[passed % POINTS] = high[passed % POINTS] = math.nan
        self._slot, self._now = slot, values
        place = slot % POINTS
        for signal, (low, high) in self._rings.items():
            if value := values[signal]:
                low[place] = value[0] if math.isnan(low[place]) else min(low[place], value[0])
                high[place] = value[1] if math.isnan(high[place]) else max(high[place], value[1])

    def half_hour(self) -> HalfHour:
        """Return what the rings hold, oldest first."""
        first = (self._slot + 1) % POINTS
        trends = {}
        for signal, (low, high) in self._rings.items():
            pairs = zip(low[first:] + low[:first], high[first:] + high[:first], strict=True)
            points = tuple(None if math.isnan(pair[0]) else pair for pair in pairs)
            trends[signal] = Trend(points, self._now.get(signal))
        return HalfHour((self._slot + 1) * POINT_SECONDS, trends)


def _range(values: Iterable[float | None]) -> Point:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else None


def _watts(view: View) -> dict[str, float | None]:
    reading = view.snapshot.get(GpuReading)
    return {gpu.uuid: gpu.power_watts for gpu in reading.gpus} if reading else {}


def _progress(view: View) -> dict[str, float | None]:
    reading = view.snapshot.get(LogReading)
    return (
        {log.server: _last_sign(log.last_progress, view.pasts.get(log.server)) for log in reading.logs}
        if reading
        else {}
    )


def _last_sign(progress: float | None, past: Past | None) -> float | None:
    """Return when the log last told of progress; before its first such line, when the server was first seen."""
    return past.first_seen if progress is None and past else progress
