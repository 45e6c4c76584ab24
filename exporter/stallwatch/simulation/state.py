"""What does a played server show at one moment? The values of its segments, resolved: levels, ramps, lists, nulls."""

from dataclasses import dataclass, field
from typing import Any

from stallwatch.simulation.plot import Levels, PlayedServer, Segment


@dataclass(frozen=True, slots=True)
class Given:
    """A value, and since which segment it holds."""

    value: Any
    segment: Segment
    begin: float


@dataclass
class State:
    """The values of one server as its segments go by; `life` counts its starts, `there` is whether it runs."""

    server: PlayedServer
    there: bool = False
    life: int = 0
    began: float = 0.0
    ended: str = ""
    segment: Segment | None = None
    segment_begin: float = 0.0
    values: dict[str, Given] = field(default_factory=dict)
    _next: int = 0
    _rates: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Note which rates are ever given: these are 0 where a segment does not say them."""
        given = {key for segment in self.server.segments for key in segment.given}
        self._rates = frozenset(key for key in given if key.endswith("_per_second"))

    def advance(self, t: float) -> None:
        """Go to this time (seconds of the scenario)."""
        end = self.segment_begin + self.segment.seconds if self.segment else self.server.start
        while self._next < len(self.server.segments) and t >= end:
            self._leave()
            segment = self.server.segments[self._next]
            self._enter(segment, end)
            self._next += 1
            end += segment.seconds
        if self.segment and self._next == len(self.server.segments) and t >= end:
            self._leave()

    def _leave(self) -> None:
        if self.segment and self.segment.exit and self.there:
            self.there, self.ended = False, self.segment.exit
            self.values.clear()
            self.segment = None

    def _enter(self, segment: Segment, at: float) -> None:
        if not self.there:
            self.there, self.ended, self.began = True, "", at
            self.life += 1
        self.segment, self.segment_begin = segment, at
        for key in self._rates:
            self.values.pop(key, None)
        self.values |= {key: Given(value, segment, at) for key, value in segment.given.items()}

    def has(self, key: str) -> bool:
        """Tell whether a signal was ever given and is readable now."""
        given = self.values.get(key)
        return given is not None and given.value is not None

    def word(self, key: str) -> Any:
        """Return a value that is no level, None where it is absent."""
        given = self.values.get(key)
        return given.value if given else None

    def count(self, key: str) -> int:
        """Return for how many GPUs, ranks or replicas a level is given, one by one."""
        return len(self.word(key) or ())

    def level(self, key: str, index: int, t: float) -> float | None:
        """Return a level of one GPU, rank or replica, None where it is absent."""
        given = self.values.get(key)
        if given is None:
            return 0.0 if key in self._rates and self.has(key.partition(".")[0]) else None
        if not self.has(key.partition(".")[0]):
            return None
        levels: Levels = given.value
        level = levels[min(index, len(levels) - 1)]
        if level.start == level.end:
            return level.start
        part = (t - given.begin) / given.segment.seconds if given.segment.seconds else 1.0
        return level.at(min(1.0, max(0.0, part)))
