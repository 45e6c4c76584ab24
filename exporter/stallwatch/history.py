"""What moved last, and when? The bounded past that a judgement of the present needs.

Movement is what happens only while a server gets on, with the floors below: a deadlocked rank still burns 1 % of a
core, so CPU time is no movement, nor is GPU utilization. Ages are monotonic: neither a clock step nor a suspended
machine makes a stall. A signal that cannot be read has no age; one that can has one from the first sight of the server
on.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stallwatch.collectors.gpu import GpuReading
from stallwatch.collectors.health import HealthReading, Probe
from stallwatch.collectors.log import Log, LogReading
from stallwatch.collectors.process import ProcessReading, Tree
from stallwatch.config import Limits
from stallwatch.placement import Holding, holding
from stallwatch.snapshot import Moment, Server, Snapshot

BUSY_RATIO = 0.05
MEMORY_RISE = 64 * 1024**2
FILE_RISE = 1024**2
IO_PER_SECOND = 1024**2
FAULTS_PER_SECOND = 1000.0
COMPILER_CORES = 0.2
RATE_WINDOW = 10.0
FAILING_PROBES = 2
DEMAND_MEMORY = 60.0
BUSY_LOG = 60.0
STARTING_SIGNALS = ("log", "gpu_memory", "io", "faults", "compile")
MULTINODE_WAITS = {"distributed_init": "rendezvous_multinode", "loaded": "start_without_movement_partial"}
"""Where the ranks of one node wait for those of the others, who may have slower disks: the limit that holds then."""
NO_ANSWER = frozenset({"refused", "timeout", "reset", "empty"})


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of one server's past; times are monotonic, None means unknown."""

    first_seen: float
    moved: Mapping[str, float]
    demand_since: Mapping[str, float]
    ready: bool | None
    idle: bool | None
    phase: str | None
    phase_since: float | None
    progress: float | None
    busy_at: float | None
    holding: Holding
    limits: Mapping[str, float]


class History:
    """The past of every server, updated once per snapshot; what is gone is forgotten."""

    def __init__(self, limits_of: Callable[[str], Limits]) -> None:
        self._limits_of = limits_of
        self._tracks: dict[tuple[str, str], _Track] = {}

    def look(self, snapshot: Snapshot) -> dict[str, Past]:
        """Take in one snapshot and return the past of each of its servers."""
        lives = {(server.name, server.incarnation): server for server in snapshot.servers}
        now = snapshot.moment.monotonic
        self._tracks = {life: self._tracks.get(life) or _Track(now) for life in lives}
        return {
            server.name: self._tracks[life].look(_Sight.of(server, snapshot), self._limits_of(server.name))
            for life, server in lives.items()
        }


@dataclass(frozen=True, slots=True)
class _Sight:
    """What one snapshot shows of one server."""

    moment: Moment
    server: Server
    log: Log | None
    tree: Tree | None
    probes: tuple[Probe, ...]
    memory: Mapping[str, int]
    holding: Holding

    @classmethod
    def of(cls, server: Server, snapshot: Snapshot) -> "_Sight":
        logs, processes, gpus = snapshot.get(LogReading), snapshot.get(ProcessReading), snapshot.get(GpuReading)
        uuids = {place.uuid for place in server.gpus}
        used = {
            g.uuid: g.memory_used for g in (gpus.gpus if gpus else ()) if g.uuid in uuids and g.memory_used is not None
        }
        return cls(
            snapshot.moment,
            server,
            next((log for log in (logs.logs if logs else ()) if log.server == server.name), None),
            next((tree for tree in (processes.trees if processes else ()) if tree.server == server.name), None),
            tuple(p for health in snapshot.all(HealthReading) if health.server == server.name for p in health.probes),
            used,
            holding(server, gpus),
        )


class _Rate:
    """How fast a counter rises, over a window long enough that one burst of a second is not a trend."""

    def __init__(self, floor: float) -> None:
        self._floor = floor
        self._points: deque[tuple[float, float]] = deque()

    def rises(self, now: float, value: float) -> bool:
        points = self._points
        if points and value < points[-1][1]:
            points.clear()  # the counter began anew with another worker: what lies between is not known
        points.append((now, value))
        while len(points) > 2 and now - points[1][0] >= RATE_WINDOW:
            points.popleft()
        span = now - points[0][0]
        return span >= RATE_WINDOW / 2 and value - points[0][1] >= self._floor * span


class _Ratchet:
    """Whether a level rises by a step above where it last was, however slowly."""

    def __init__(self, step: float) -> None:
        self._step = step
        self._base: float | None = None

    def rises(self, value: float) -> bool:
        if self._base is None or value < self._base:
            self._base = value
            return False
        if value - self._base < self._step:
            return False
        self._base = value
        return True


@dataclass(frozen=True, slots=True)
class _Failing:
    """Probes of one path that failed one after another: when the first began, when the last ended, how many."""

    first: float
    last: float
    count: int


@dataclass
class _Track:
    """What one life of a server has shown so far."""

    first_seen: float
    moved: dict[str, float] = field(default_factory=dict)
    demand: dict[str, tuple[float, float]] = field(default_factory=dict)  # reason -> since, last seen
    failed: dict[str, _Failing] = field(default_factory=dict)
    ready: bool | None = None
    busy_at: float | None = None
    phase: str | None = None
    phase_since: float | None = None
    memory: dict[str, _Ratchet] = field(default_factory=dict)
    file_pages: _Ratchet = field(default_factory=lambda: _Ratchet(FILE_RISE))
    rates: dict[str, _Rate] = field(default_factory=dict)

    def look(self, sight: _Sight, limits: Limits) -> Past:
        readable = self._movements(sight)
        self._readiness(sight)
        self._demands(sight)
        self._phase(sight)
        utilization = sight.holding.utilization_max
        if utilization is not None and (self.busy_at is None or utilization >= BUSY_RATIO):
            self.busy_at = sight.moment.monotonic if utilization >= BUSY_RATIO else self.first_seen
        return Past(
            self.first_seen,
            {signal: self.moved[signal] for signal in readable},
            {reason: since for reason, (since, _) in self.demand.items()},
            self.ready,
            self._idle(sight),
            self.phase,
            self.phase_since,
            sight.log.progress if sight.log and self.phase == sight.log.phase else None,
            self.busy_at if utilization is not None else None,
            sight.holding,
            limits_in_force(limits, sight.server, self.phase, readable),
        )

    def _movements(self, sight: _Sight) -> tuple[str, ...]:
        """Note what moved and return the signals that can be read."""
        seen: dict[str, bool] = {}
        if sight.memory:
            seen["gpu_memory"] = self._memory_rises(sight)
        if sight.tree:
            seen |= self._tree_moves(sight.moment.monotonic, sight.tree)
        for signal, moves in seen.items():
            if moves or signal not in self.moved:
                self.moved[signal] = sight.moment.monotonic if moves else self.first_seen
        if sight.log:
            seen["log"] = True
            progress = sight.log.last_progress
            self.moved["log"] = self.first_seen if progress is None else progress
        return tuple(signal for signal in STARTING_SIGNALS if signal in seen)

    def _memory_rises(self, sight: _Sight) -> bool:
        rises = [self.memory.setdefault(uuid, _Ratchet(MEMORY_RISE)).rises(used) for uuid, used in sight.memory.items()]
        return any(rises)

    def _tree_moves(self, now: float, tree: Tree) -> dict[str, bool]:
        transfers = {"rchar": tree.rchar, "read": tree.read_bytes, "write": tree.write_bytes}
        known = [
            self._rate(name, IO_PER_SECOND).rises(now, value) for name, value in transfers.items() if value is not None
        ]
        if tree.resident_file_bytes is not None:
            known.append(self.file_pages.rises(tree.resident_file_bytes))
        seen = {
            "faults": self._rate("faults", FAULTS_PER_SECOND).rises(now, tree.faults),
            "compile": self._rate("compile", COMPILER_CORES).rises(now, tree.compiler_cpu_seconds),
        }
        return seen | ({"io": any(known)} if known else {})

    def _rate(self, name: str, floor: float) -> _Rate:
        return self.rates.setdefault(name, _Rate(floor))

    def _readiness(self, sight: _Sight) -> None:
        """Ready is what the log or a good answer says, and it lasts until this life ends."""
        if self.ready:
            return
        phase = sight.log.phase if sight.log else None
        if phase in {"ready", "stopping"} or any(probe.result == "ok" for probe in sight.probes):
            self.ready = True
        elif phase or any(probe.result == "refused" for probe in sight.probes):
            self.ready = False

    def _demands(self, sight: _Sight) -> None:
        now = sight.moment.monotonic
        owed: dict[str, float] = {}
        if self.ready is False:
            owed["not_ready"] = started(sight.server, sight.moment, self.first_seen)
        if self.ready and (failing := self._failing(sight.probes)):
            owed["probe_failing"] = min(failing)
        for reason, since in owed.items():
            self.demand[reason] = (self.demand.get(reason, (since, 0))[0], now)
        for reason in set(self.demand) - set(owed):
            unseen = reason == "probe_failing" and not sight.probes
            if not unseen or now - self.demand[reason][1] > DEMAND_MEMORY:
                del self.demand[reason]

    def _failing(self, probes: tuple[Probe, ...]) -> list[float]:
        """Return when each path began to fail that has failed again and again since the server was ready."""
        for probe in probes:
            row = self.failed.get(probe.path)
            if not _unanswered(probe):
                self.failed.pop(probe.path, None)
            elif row is None:
                self.failed[probe.path] = _Failing(probe.at - probe.latency, probe.at, 1)
            elif row.last != probe.at:
                self.failed[probe.path] = _Failing(row.first, probe.at, row.count + 1)
        rows = [self.failed[probe.path] for probe in probes if probe.path in self.failed]
        return [row.first for row in rows if row.count >= FAILING_PROBES]

    def _idle(self, sight: _Sight) -> bool | None:
        if not self.ready:
            return self.ready
        if self.demand:
            return False
        progress = sight.log.last_progress if sight.log else None
        if progress is not None and sight.moment.monotonic - progress < BUSY_LOG:
            return False
        answered = any(probe.result == "ok" and probe.scope == "scheduler" for probe in sight.probes)
        return True if answered else None

    def _phase(self, sight: _Sight) -> None:
        phase, since = (sight.log.phase, sight.log.phase_since) if sight.log else (None, None)
        if self.ready and phase != "stopping":
            phase = "ready"
        if phase is None and self.ready is False:
            phase = "loaded" if sight.holding.loaded else "launch"
        if phase != self.phase:
            self.phase = phase
            self.phase_since = sight.moment.monotonic if phase is not None and since is None else since


def started(server: Server, moment: Moment, otherwise: float) -> float:
    """Return when the first process of a server began, as a monotonic time."""
    starts = [process.started for process in server.processes]
    return moment.monotonic - (moment.boottime - min(starts)) if starts else otherwise


def _unanswered(probe: Probe) -> bool:
    """Tell whether a probe failed in a way that means unanswered work: a 401 is alive, a 404 is not offered."""
    return probe.result in NO_ANSWER or (probe.result == "http_error" and (probe.status or 0) >= 500)


def limits_in_force(limits: Limits, server: Server, phase: str | None, readable: tuple[str, ...]) -> dict[str, float]:
    """Return the limits of a server as they hold now: how long a start may rest depends on what can be seen of it."""
    named = limits.named()
    start = limits.start_without_movement
    if set(readable) < set(STARTING_SIGNALS):
        start = limits.start_without_movement_partial
    if server.launch.nnodes > 1 and phase in MULTINODE_WAITS:
        start = max(start, getattr(limits, MULTINODE_WAITS[phase]))
    return {**named, "start_without_movement": start}
