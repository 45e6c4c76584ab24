"""Do the data-parallel replicas get on, by the engine's own counters?

Judged replica by replica: three that serve hide one that hangs in every sum. Counters that only tick as requests
end (SGLang before 0.5.7) say nothing while a long one runs: their rest is no standstill, but their ticks are movement.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stallwatch.collectors.engine import EngineRank, EngineReading
from stallwatch.collectors.health import Probe
from stallwatch.past import ReplicaPast
from stallwatch.tracks.memory import ReplicaMemory
from stallwatch.tracks.movement import Since, Tokens


@dataclass
class _Replica:
    first_seen: float
    tokens: Tokens = field(default_factory=Tokens)
    pending: Since = field(default_factory=Since)
    moved_at: float | None = None

    def look(self, seen: EngineRank, at: float, probes: int, *, probed: bool) -> ReplicaPast:
        """Take in what the engine says of it; `probes` is how many probes of ours have ended so far."""
        parts = [part for part in (seen.running, seen.queued) if part is not None]
        pending_since = self.pending.hold(at, holds=sum(parts) > 0 if parts else None)
        moves = bool(seen.tokens) and self.tokens.move(sum(seen.tokens.values()), probes, probed=probed)
        if moves or (seen.tokens and seen.live and self.moved_at is None):
            self.moved_at = at if moves else self.first_seen
        live_at, finished_at = (self.moved_at, None) if seen.live else (None, self.moved_at)
        tokens_at = live_at if seen.tokens else None
        return ReplicaPast(
            seen.dp_rank,
            seen.running,
            seen.queued,
            pending_since,
            tokens_at,
            finished_at,
            seen.heartbeat,
            seen.paused,
        )

    def remember(self) -> ReplicaMemory:
        """Return what to go on with after a restart."""
        return ReplicaMemory(counted=self.tokens.last, moved_at=self.moved_at, pending_since=self.pending.at)

    @classmethod
    def recall(cls, memory: ReplicaMemory, first_seen: float) -> "_Replica":
        """Return a replica that goes on where the memory ends."""
        return cls(first_seen, Tokens(memory.counted), Since(memory.pending_since), memory.moved_at)


@dataclass
class Replicas:
    """The replicas of one server."""

    served: bool = False  # tokens have moved in this life
    known: dict[str, _Replica] = field(default_factory=dict)
    _probe_ends: set[float] = field(default_factory=set)
    _probes: int = 0
    _last: tuple[float, tuple[ReplicaPast, ...]] | None = None

    def look(
        self, reading: EngineReading | None, probes: tuple[Probe, ...], first_seen: float
    ) -> tuple[ReplicaPast, ...]:
        """Take in a reading, which may be the one of before, and return the past of each replica."""
        self._count(probes)
        if reading is None:
            return ()
        if self._last is None or self._last[0] != reading.at:
            probed = any(probe.scope == "scheduler" for probe in probes)
            pasts = [self._replica(rank, reading.at, first_seen, probed=probed) for rank in reading.ranks]
            self.served = self.served or any(reading.at in {past.tokens_at, past.finished_at} for past in pasts)
            self._last = (reading.at, _with_whole(pasts))
        return self._last[1]

    def remember(self) -> dict[str, ReplicaMemory]:
        """Return what to go on with after a restart."""
        return {dp_rank: replica.remember() for dp_rank, replica in self.known.items()}

    def recall(self, memories: Mapping[str, ReplicaMemory], first_seen: float) -> None:
        """Go on where the memories end."""
        self.known = {dp_rank: _Replica.recall(memory, first_seen) for dp_rank, memory in memories.items()}

    def _replica(self, rank: EngineRank, at: float, first_seen: float, *, probed: bool) -> ReplicaPast:
        known = self.known.setdefault(rank.dp_rank, _Replica(first_seen))
        return known.look(rank, at, self._probes, probed=probed)

    def _count(self, probes: tuple[Probe, ...]) -> None:
        ends = {probe.at for probe in probes}
        self._probes += len(ends - self._probe_ends)
        self._probe_ends = ends


def _with_whole(pasts: list[ReplicaPast]) -> tuple[ReplicaPast, ...]:
    """Give what an older engine counts for all replicas together, under no name, to each of them."""
    whole = max((past.finished_at for past in pasts if not past.dp_rank and past.finished_at is not None), default=None)
    if whole is None:
        return tuple(past for past in pasts if past.dp_rank)
    return tuple(replace(past, finished_at=max(whole, past.finished_at or whole)) for past in pasts if past.dp_rank)
