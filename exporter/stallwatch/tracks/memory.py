"""What must an exporter that is started again know of a server, so that a hang does not look young to it?

When each signal moved last and since when something is owed, with the counters that this was read from: what has risen
since then has moved. A memory is used only for the same life of a server and while it is young; since when something
has been so without a break, only while it is so young that what is not seen for as long is no break either. Its times
are of the monotonic clock, which goes on over a restart of the exporter, and of the node begins anew.
"""

from typing import Any

import msgspec

from stallwatch.snapshot import Process

YOUNG_SECONDS = 300.0


class ReplicaMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica had counted, when that moved last, and since when it had work."""

    counted: float | None = None
    moved_at: float | None = None
    pending_since: float | None = None


class RankMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Since when a process has stood still or been missing, and what its loop showed last."""

    process: Process
    stopped_since: float | None = None
    missing_since: float | None = None
    switches: int | None = None
    beat: float | None = None
    cpu: tuple[tuple[float, float], ...] = ()  # the points of its rate: when, and the counter then


class GpusMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Since when GPUs have shown what they show."""

    busy_at: float | None = None
    worked: bool = False
    worked_at: float | None = None
    since: dict[str, float] = {}  # hot, cold, split, lost


class Unbroken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a life has shown without a break."""

    first_seen: float
    phase: str | None = None
    phase_since: float | None = None
    said: str | None = None
    said_since: float | None = None
    served: bool = False
    launcher_gone_since: float | None = None
    failing: dict[str, tuple[float, float, int]] = {}  # by path: begin of the first, end of the last, how many
    waiting: dict[str, float] = {}
    rates: dict[str, tuple[tuple[float, float], ...]] = {}
    ranks: tuple[RankMemory, ...] = ()
    gpus: GpusMemory = GpusMemory()
    parts: dict[str, GpusMemory] = {}


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What was known of one life of a server."""

    server: str
    incarnation: str
    ready: bool | None = None
    said: str | None = None  # its phase, by its log
    said_since: float | None = None
    moved: dict[str, float] = {}
    demand_since: dict[str, float] = {}
    cleared_at: float | None = None
    counters: dict[str, float] = {}
    gpu_memory: dict[str, float] = {}
    replicas: dict[str, ReplicaMemory] = {}
    unbroken: Unbroken | None = None


class Memories(msgspec.Struct, frozen=True, kw_only=True):
    """What was known at one moment."""

    at: float
    lives: tuple[Memory, ...] = ()

    def to_plain(self) -> dict[str, Any]:
        """Return what can be written as JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def memories_of(raw: Any, now: float) -> Memories | None:
    """Return what was remembered, None where it is malformed, old, or of another boot of the node."""
    try:
        found = msgspec.convert(raw, Memories)
    except msgspec.ValidationError:
        return None
    return found if 0 <= now - found.at <= YOUNG_SECONDS else None
