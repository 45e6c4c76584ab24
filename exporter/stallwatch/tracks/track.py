"""What has one life of a server shown so far?"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stallwatch.collectors.health import Probe
from stallwatch.collectors.process import Tree
from stallwatch.engines.engine import rank_parts
from stallwatch.past import BlockedPast, Ending, GpusPast, Past, ReplicaPast
from stallwatch.sections import Limits
from stallwatch.snapshot import Moment, Server
from stallwatch.tracks.gpus import Gpus
from stallwatch.tracks.limits import SIGNALS, limits_in_force
from stallwatch.tracks.memory import Memory, Unbroken
from stallwatch.tracks.movement import MEMORY, Ratchet, Rate
from stallwatch.tracks.ranks import Ranks
from stallwatch.tracks.readiness import Demand, Readiness, Waiting
from stallwatch.tracks.replicas import Replicas
from stallwatch.tracks.sight import Sight
from stallwatch.tracks.xids import Xids

FILE_RISE = 1024**2
IO_PER_SECOND = 1024**2
FAULTS_PER_SECOND = 1000.0
COMPILER_CORES = 0.2
PASSING_SECONDS = 8.0
"""A client that has just come waits for a moment on every server: it owes something when the next reading, five seconds
later, finds one waiting again."""
STEP_WAIT_SECONDS = 100.0
"""What an engine core of vLLM says once a minute holds for so long."""


@dataclass
class Track:
    """What one life of a server has shown so far."""

    first_seen: float
    moved: dict[str, float] = field(default_factory=dict)
    cleared_at: float | None = None
    readiness: Readiness = field(default_factory=Readiness)
    demand: Demand = field(default_factory=Demand)
    waiting: Waiting = field(default_factory=Waiting)
    replicas: Replicas = field(default_factory=Replicas)
    ranks: Ranks = field(default_factory=Ranks)
    gpus: Gpus = field(default_factory=Gpus)
    parts: dict[str, Gpus] = field(default_factory=dict)
    xids: Xids = field(default_factory=Xids)
    file_pages: Ratchet = field(default_factory=lambda: Ratchet(FILE_RISE))
    rates: dict[str, Rate] = field(default_factory=dict)
    recalled: set[str] = field(default_factory=set)  # counters not seen since they were remembered

    def remember(self, server: str, incarnation: str) -> Memory:
        """Return what to go on with after a restart of the exporter."""
        counters = {name: rate.value for name, rate in self.rates.items() if rate.value is not None}
        return Memory(
            server=server,
            incarnation=incarnation,
            ready=self.readiness.ready,
            said=self.readiness.said,
            said_since=self.readiness.said_since,
            moved=self.moved,
            demand_since=self.demand.since,
            cleared_at=self.cleared_at,
            counters=counters,
            gpu_memory=self.gpus.remember(),
            replicas=self.replicas.remember(),
            unbroken=self._unbroken(),
        )

    def _unbroken(self) -> Unbroken:
        return Unbroken(
            first_seen=self.first_seen,
            phase=self.readiness.phase,
            phase_since=self.readiness.phase_since,
            said=self.readiness.said,
            said_since=self.readiness.said_since,
            served=self.replicas.served,
            launcher_gone_since=self.ranks.launcher_gone.at,
            failing=self.demand.remember(),
            waiting=self.waiting.remember(),
            rates={name: rate.ends for name, rate in self.rates.items()},
            ranks=self.ranks.remember(),
            gpus=self.gpus.remember_unbroken(),
            parts={dp_rank: gpus.remember_unbroken() for dp_rank, gpus in self.parts.items()},
        )

    @classmethod
    def recall(cls, memory: Memory, at: float, now: float) -> "Track":
        """Return a track that goes on where the memory ends, which was made at `at`."""
        readiness = Readiness(memory.ready, said=memory.said, said_since=memory.said_since)
        track = cls(now, moved=dict(memory.moved), readiness=readiness, cleared_at=memory.cleared_at)
        track.demand.recall(memory.demand_since, now)
        track.rates = {name: Rate([(at, value)]) for name, value in memory.counters.items()}
        track.recalled = set(memory.counters)
        track.gpus.recall(memory.gpu_memory)
        track.replicas.recall(memory.replicas, now)
        if memory.unbroken and now - at <= MEMORY:
            track.go_on(memory.unbroken, now)
        return track

    def go_on(self, memory: Unbroken, now: float) -> None:
        """Take what was so without a break to be so still."""
        self.first_seen = memory.first_seen
        self.readiness.phase, self.readiness.phase_since = memory.phase, memory.phase_since
        self.readiness.said, self.readiness.said_since = memory.said, memory.said_since
        self.replicas.served = memory.served
        self.demand.recall_failing(memory.failing)
        self.waiting.recall(memory.waiting, now)
        self.rates = {name: Rate(points) for name, points in memory.rates.items()}
        self.ranks.recall(memory.ranks, memory.launcher_gone_since, now)
        self.gpus.recall_unbroken(memory.gpus, now)
        for dp_rank, part in memory.parts.items():
            self.parts[dp_rank] = Gpus()
            self.parts[dp_rank].recall_unbroken(part, now)

    def look(self, sight: Sight, limits: Limits, ending: Ending) -> Past:
        """Take in what is seen now and return what is known of the past."""
        now, server, log = sight.moment.monotonic, sight.server, sight.log
        replicas = self.replicas.look(sight.engine, sight.probes, self.first_seen)
        gpus = self.gpus.look(now, server, sight.gpus, self.first_seen)
        readable = self._movements(sight, replicas)
        # The port opens once every rank is ready, so an engine that answers serves, unless its log says otherwise.
        serves = self.replicas.served or (sight.engine is not None and (log is None or log.phase is None))
        probed = server.address is not None and server.launch.port is not None
        gone = ending.gone_since is not None
        loaded = gpus.holding.loaded
        headless = server.launch.worker and server.launch.port is None
        self.readiness.look(
            now, log, sight.probes, serves=serves, loaded=loaded, probed=probed, headless=headless, gone=gone
        )
        failing = {} if self.readiness.ready is False else self.demand.failing(sight.probes)
        self._demands(sight, replicas, failing)
        self._clear(sight.probes, server.launch.dp_size)
        stamps = {signal: at for signal, at in self.moved.items() if signal in SIGNALS[self.readiness.ready]}
        paused = any(replica.paused for replica in replicas)
        ranks = self.ranks.look(now, sight)
        born = started(server, sight.moment, self.first_seen)
        return Past(
            server=server,
            first_seen=self.first_seen,
            started=born,
            ready=self.readiness.ready,
            phase=self.readiness.phase,
            phase_since=self.readiness.phase_since,
            progress=log.progress if log and self.readiness.phase == log.phase else None,
            marker=log.last_marker if log else "",
            marker_rank=log.last_marker_rank if log else "",
            waiting=(log.waiting if log else "") or ("paused" if paused else ""),
            moved={signal: at for signal, at in stamps.items() if signal in readable},
            vanished={signal: at for signal, at in stamps.items() if signal not in readable},
            demand_since=dict(self.demand.since),
            pending=_pending(replicas),
            cleared_at=self.cleared_at,
            probes=sight.probes,
            failing=tuple(failing),
            ranks=ranks,
            replicas=replicas,
            gpus=gpus,
            parts=self._parts(sight, replicas),
            xids=self.xids.look(sight.moment, server, sight.kernel, born),
            blocked=_blocked(sight),
            ending=self._ending(ending),
            readable=readable,
            missing=sight.missing,
            limits=limits_in_force(limits, server, self.readiness.phase, readable),
        )

    def _ending(self, ending: Ending) -> Ending:
        since = self.ranks.launcher_gone.at
        return ending if since is None else replace(ending, launcher_gone_since=since)

    def _parts(self, sight: Sight, replicas: tuple[ReplicaPast, ...]) -> dict[str, GpusPast]:
        """Return the GPUs of each replica, where replicas do not share the GPUs of all."""
        server = sight.server
        if len(replicas) < 2 or server.launch.attention_dp:
            return {}
        parts = {}
        for replica in replicas:
            own = tuple(place for place in server.gpus if rank_parts(place.rank).get("DP") == _number(replica.dp_rank))
            if own:
                gpus = self.parts.setdefault(replica.dp_rank, Gpus())
                now = sight.moment.monotonic
                parts[replica.dp_rank] = gpus.look(now, replace(server, gpus=own), sight.gpus, self.first_seen)
        return parts

    def _movements(self, sight: Sight, replicas: tuple[ReplicaPast, ...]) -> frozenset[str]:
        """Note what moved and return the signals that can be read."""
        now = sight.moment.monotonic
        seen: dict[str, bool] = {}
        rises = self.gpus.memory_rises(sight.server, sight.gpus)
        if rises is not None:
            seen["gpu_memory"] = rises
        if sight.tree:
            seen |= self._tree_moves(now, sight.tree)
        for signal, moves in seen.items():
            if moves or signal not in self.moved:
                self.moved[signal] = now if moves else self.first_seen
        if sight.log:
            progress = sight.log.last_progress
            self.moved["log"] = self.first_seen if progress is None else progress
        tokens = [replica.tokens_at for replica in replicas if replica.tokens_at is not None]
        if tokens:
            self.moved["tokens"] = max(tokens)
        return frozenset(seen) | ({"log"} if sight.log else set()) | ({"tokens"} if tokens else set())

    def _tree_moves(self, now: float, tree: Tree) -> dict[str, bool]:
        transfers = {"rchar": tree.rchar, "read": tree.read_bytes, "write": tree.write_bytes}
        known = [self._rises(name, now, value, IO_PER_SECOND) for name, value in transfers.items() if value is not None]
        if tree.resident_file_bytes is not None:
            known.append(self.file_pages.rises(tree.resident_file_bytes))
        seen = {}
        if tree.compiler_cpu_seconds is not None:
            seen["compile"] = self._rises("compile", now, tree.compiler_cpu_seconds, COMPILER_CORES)
        if tree.faults is not None:
            seen["faults"] = self._rises("faults", now, tree.faults, FAULTS_PER_SECOND)
        return seen | ({"io": any(known)} if known else {})

    def _rises(self, name: str, now: float, value: float, floor: float) -> bool:
        known = self.rates.setdefault(name, Rate())
        # A total that was remembered may begin anew with us: then its old stamp says nothing of what lies between.
        began_anew = name in self.recalled and known.value is not None and value < known.value
        self.recalled.discard(name)
        rate = known.of(now, value)
        return began_anew or (rate is not None and rate >= floor)

    def _demands(self, sight: Sight, replicas: tuple[ReplicaPast, ...], failing: Mapping[str, float]) -> None:
        """Note what is owed: a start, answers to probes, requests that run or wait, a step, bytes that nobody reads."""
        now, ready, sockets = sight.moment.monotonic, self.readiness.ready, sight.sockets
        owed: dict[str, float] = {}
        if ready is False:
            owed["not_ready"] = started(sight.server, sight.moment, self.first_seen)
        if failing:
            owed["probe_failing"] = min(failing.values())
        log = sight.log
        steps = log is not None and log.step_wait is not None and now - log.step_wait < STEP_WAIT_SECONDS
        unread = sockets is not None and (sockets.unread_bytes > 0 or sockets.accept_queue > 0)
        seen = {
            "running": any(replica.running for replica in replicas),
            "queued": any(replica.queued for replica in replicas),
            "step": steps and ready is not False,
            "socket": unread and ready is not False,
        }
        owed |= {
            reason: since
            for reason, since in self.waiting.look(now, seen).items()
            if reason != "socket" or now - since >= PASSING_SECONDS
        }
        absent = {
            "probe_failing": not sight.probes,
            "running": sight.engine is None,
            "queued": sight.engine is None,
            "step": log is None,
            "socket": sockets is None,
        }
        self.demand.look(now, owed, frozenset(reason for reason, is_absent in absent.items() if is_absent))

    def _clear(self, probes: tuple[Probe, ...], replicas: int) -> None:
        """Note that the scheduler answered, which ends a suspicion; but one replica's answer clears no other."""
        if max(len(self.replicas.known), replicas) > 1:
            return
        for probe in probes:
            if probe.result == "ok" and probe.scope == "scheduler":
                self.cleared_at = max(probe.at, self.cleared_at or probe.at)


def started(server: Server, moment: Moment, otherwise: float) -> float:
    """Return when the first process of a server began, as a monotonic time."""
    first = min((process.started for process in server.processes), default=server.started)
    return otherwise if first is None else moment.monotonic - (moment.boottime - first)


def _pending(replicas: tuple[ReplicaPast, ...]) -> float | None:
    parts = [part for replica in replicas for part in (replica.running, replica.queued) if part is not None]
    return sum(parts) if parts else None


def _blocked(sight: Sight) -> tuple[BlockedPast, ...]:
    since_boot = sight.moment.boottime - sight.moment.monotonic
    told = [one for one in (sight.kernel.blocked if sight.kernel else ()) if one.server == sight.server.name]
    return tuple(BlockedPast(one.process, one.seconds, one.last_at - since_boot) for one in told)


def _number(dp_rank: str) -> int | None:
    return int(dp_rank) if dp_rank.isdecimal() else None
