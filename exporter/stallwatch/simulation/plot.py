"""What happens in a scenario? Its nouns, all frozen: a node, servers with segments of signals, what is expected."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Number = float | None


@dataclass(frozen=True, slots=True)
class Level:
    """A level over a segment: from one number to another, evenly; None where it cannot be read."""

    start: Number
    end: Number

    def at(self, part: float) -> Number:
        """Return the level when this part (0 to 1) of the segment has passed."""
        if self.start is None or self.end is None:
            return None
        return self.start + (self.end - self.start) * part


Levels = tuple[Level, ...]
"""One level for all GPUs, ranks or replicas, or one for each."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of time: the values it gives, by key path; a whole signal given as null is its name with None."""

    seconds: float
    given: Mapping[str, Any]
    exit: str = ""


@dataclass(frozen=True, slots=True)
class PlayedServer:
    """One server of a scenario."""

    engine: str
    version: str
    args: tuple[str, ...]
    segments: tuple[Segment, ...]
    start: float = 0.0
    name: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Node:
    """The node of a scenario."""

    gpus: int = 8
    gpu_memory_gib: float = 96.0
    power_limit_watts: float = 600.0


@dataclass(frozen=True, slots=True)
class Expectation:
    """What is to be so at one moment; None says nothing about it."""

    at: float
    server: str
    verdict: str | None = None
    signature: str | None = None
    alerts: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class WatcherEvent:
    """What happens to the exporter, its clock or its scrapes."""

    at: float
    what: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens on one node, and what is to be said of it."""

    name: str
    node: Node
    servers: tuple[PlayedServer, ...]
    watcher: tuple[WatcherEvent, ...] = ()
    expect: tuple[Expectation, ...] = ()

    @property
    def seconds(self) -> float:
        """Return how long it is played."""
        ends = [server.start + sum(segment.seconds for segment in server.segments) for server in self.servers]
        return max([*ends, *(expectation.at for expectation in self.expect)])
