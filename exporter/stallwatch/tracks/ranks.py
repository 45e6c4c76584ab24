"""How does each process fare that the server cannot do without?"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from stallwatch.collectors.process import ProcessSample
from stallwatch.past import RankPast
from stallwatch.snapshot import Process, Server
from stallwatch.tracks.memory import RankMemory
from stallwatch.tracks.movement import Rate, Since
from stallwatch.tracks.sight import Sight

NEEDED_ROLES = frozenset({"scheduler", "detokenizer", "data_parallel_controller", "engine_core"})
# vLLM's engine sleeps in a blocking read while it is idle, so only SGLang's loop is expected to run.
LOOPING_ENGINES = frozenset({"sglang"})


@dataclass
class _Rank:
    process: Process
    cpu: Rate = field(default_factory=Rate)
    stopped: Since = field(default_factory=Since)
    missing: Since = field(default_factory=Since)
    switches: int | None = None
    beat: float | None = None
    last_cpu: float | None = None

    def look(self, now: float, sample: ProcessSample | None, *, there: bool | None, loops: bool) -> RankPast:
        """Take in a sample; `there` is None where it is not known whether it is, `loops` that its loop never rests."""
        state = sample.state if sample else ""
        if there is not None:
            self.missing.hold(now, holds=not there or state in {"Z", "X"})
        self.stopped.hold(now, holds=state == "T" if sample else there and None)
        seen = self._switches(now, sample) if sample else None
        self.last_cpu = None if sample is None or sample.cpu_seconds is None else self.cpu.of(now, sample.cpu_seconds)
        return RankPast(
            self.process.name,
            self.process.rank,
            self.process.role,
            state,
            self.last_cpu,
            stopped_since=self.stopped.at,
            missing_since=self.missing.at,
            wchan=sample.wchan if sample else None,
            beat=self.beat if loops and seen is not None else None,
        )

    def remember(self) -> RankMemory:
        """Return what to go on with after a restart."""
        return RankMemory(
            process=self.process,
            stopped_since=self.stopped.at,
            missing_since=self.missing.at,
            switches=self.switches,
            beat=self.beat,
            cpu=self.cpu.ends,
        )

    @classmethod
    def recall(cls, memory: RankMemory, now: float) -> "_Rank":
        """Return a rank that goes on where the memory ends."""
        stopped, missing = Since(memory.stopped_since, now), Since(memory.missing_since, now)
        return cls(memory.process, Rate(memory.cpu), stopped, missing, memory.switches, memory.beat)

    def _switches(self, now: float, sample: ProcessSample) -> int | None:
        parts = [part for part in (sample.voluntary_switches, sample.involuntary_switches) if part is not None]
        if not parts:
            return None
        switches = sum(parts)
        if self.switches is not None and switches != self.switches:
            self.beat = now
        self.switches = switches
        return switches


@dataclass
class Ranks:
    """The needed processes of one server, those that have gone included."""

    _known: dict[str, _Rank] = field(default_factory=dict)
    launcher_gone: Since = field(default_factory=Since)
    _launcher_seen: bool = False

    def remember(self) -> tuple[RankMemory, ...]:
        """Return what to go on with after a restart."""
        return tuple(rank.remember() for rank in self._known.values())

    def recall(self, memories: Iterable[RankMemory], launcher_gone_since: float | None, now: float) -> None:
        """Go on where the memories end."""
        self._known = {memory.process.name: _Rank.recall(memory, now) for memory in memories}
        self.launcher_gone = Since(launcher_gone_since, now)
        self._launcher_seen = launcher_gone_since is not None

    def look(self, now: float, sight: Sight) -> tuple[RankPast, ...]:
        """Take in the processes that exist now and return the past of each needed one that ever did."""
        present = {process.name: process for process in sight.server.processes if process.role in NEEDED_ROLES}
        names = {_identity(process): name for name, process in present.items()}
        kept = {name: rank for name, rank in self._known.items() if names.get(_identity(rank.process), name) == name}
        self._known = kept  # what is told under another name now has not gone
        for name, process in present.items():
            known = self._known.get(name)
            if known is None or _identity(known.process) != _identity(process):
                self._known[name] = _Rank(process)
        self._launcher(now, sight.server)
        phases = {rank.rank: rank.phase for rank in sight.log.ranks} if sight.log else {}
        loops = sight.server.engine in LOOPING_ENGINES
        pasts = []
        for name, rank in self._known.items():
            sample = sight.samples.get(name) if sight.samples else None
            past = rank.look(now, sample, there=_there(name, present, sight), loops=loops)
            pasts.append(replace(past, phase=phases[past.rank]) if past.rank in phases else past)
        return tuple(pasts)

    def _launcher(self, now: float, server: Server) -> None:
        there = any(process.role == "launcher" for process in server.processes)
        self._launcher_seen = self._launcher_seen or there
        self.launcher_gone.hold(now, holds=self._launcher_seen and not there)


def _there(name: str, present: Mapping[str, Process], sight: Sight) -> bool | None:
    """Tell whether a process exists: one that cannot be read has not gone, as long as it is found."""
    if sight.samples is None:
        return None
    if name in sight.samples:
        return True
    return None if sight.partial and name in present else False


def _identity(process: Process) -> tuple[int, int]:
    return process.pid, process.start_ticks
