"""What must an exporter that is started again know of a server, so that a hang does not look young to it?

When each signal moved last and since when something is owed, with the counters that this was read from: what has risen
since then has moved. A memory is used only for the same life of a server and while it is young. Its times are of the
monotonic clock, which goes on over a restart of the exporter, and of the node begins anew.
"""

from typing import Any

import msgspec

YOUNG_SECONDS = 300.0


class ReplicaMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica had counted, when that moved last, and since when it had work."""

    counted: float | None = None
    moved_at: float | None = None
    pending_since: float | None = None


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
