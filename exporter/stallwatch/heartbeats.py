"""When did the loop of each rank's scheduler last turn?

Told by counters that each turn moves, once two looks differ, or by the time that a rank wrote beside its load, which is
known at first sight. A server that hung before the first look thus has a heartbeat of the second kind only.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from stallwatch.engines.metrics import RankMetrics
from stallwatch.loads import Load


@dataclass(frozen=True, slots=True)
class _Pulse:
    """A number that changes whenever a loop turns, when it was last looked at, and when the loop last turned."""

    value: float
    seen: float
    beat: float | None = None


@dataclass(slots=True)
class Heartbeats:
    """Remembers what one server, in one life of it, has shown so far."""

    incarnation: str
    _counters: dict[str, dict[str, _Pulse]] = field(default_factory=dict)  # by rank and scheduler
    _loads: dict[str, _Pulse] = field(default_factory=dict)

    def of_counters(self, page: Iterable[RankMetrics], now: float) -> dict[str, float]:
        """Return when each rank was last seen to turn; of several schedulers the one that is behind counts."""
        beats = {}
        for rank in page:
            known = self._counters.get(rank.dp_rank, {})
            pulses = {scheduler: _pulse(known.get(scheduler), value, now) for scheduler, value in rank.beats.items()}
            self._counters[rank.dp_rank] = pulses
            if times := [pulse.beat for pulse in pulses.values() if pulse.beat is not None]:
                beats[rank.dp_rank] = min(times)
        return beats

    def of_loads(self, loads: Iterable[Load], now: float, wall: float) -> dict[str, float]:
        """Return when each rank wrote its load; what it wrote between two looks stays there when the clock is set."""
        beats = {}
        for load in loads:
            known = self._loads.get(load.dp_rank)
            if known is not None and known.value == load.timestamp and known.beat is not None:
                beat = known.beat
            else:
                beat = max(known.seen if known else -math.inf, now - max(0.0, wall - load.timestamp))
            self._loads[load.dp_rank] = _Pulse(load.timestamp, now, beat)
            beats[load.dp_rank] = beat
        return beats


def _pulse(known: _Pulse | None, value: float, now: float) -> _Pulse:
    if known is None:
        return _Pulse(value, now)
    return _Pulse(value, now, known.beat if known.value == value else now)
