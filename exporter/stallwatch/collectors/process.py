"""What do the processes of a server do: do they burn CPU, sleep, read, fault pages in, and in which state are they?

Only files of /proc that answer while their process is wedged in the kernel are read: never cmdline, environ, maps or
smaps, and so none of psutil's name(), cmdline(), environ() and memory_full_info(). A process that has gone, or whose
pid now is another process, is absent from the reading.

Reasons of failures: `permission_denied` (once per server; what cannot be read is None), `quarantined` and `unreadable`.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stallwatch.node.procfs import TICKS_PER_SECOND, read_file
from stallwatch.node.usage import Stat, Total, cpu_of, faults_of
from stallwatch.snapshot import Failure, Family, Moment, Reading, Server

if TYPE_CHECKING:  # psutil is loaded by the worker alone
    from stallwatch.node.handles import Handles

NAME = "process"
STATES = ("R", "S", "D", "Z", "T", "t", "X", "I")
MISSING_RIGHT = "reading io and fd of another user's processes needs root and CAP_SYS_PTRACE"


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process as it is now; what cannot be read is None."""

    server: str
    process: str
    role: str
    rank: str
    pid: int
    started: float  # seconds since boot
    state: str
    cpu_seconds: float | None
    cpu_ratio: float | None  # cores since the look before, None at first sight
    tree_cpu_seconds: float  # with all descendants, also those that have ended
    threads: int
    open_fds: int | None
    resident_bytes: int
    resident_file_bytes: int | None
    rchar: int | None
    read_bytes: int | None
    write_bytes: int | None
    minor_faults: int
    major_faults: int
    voluntary_switches: int | None  # of the main thread
    involuntary_switches: int | None
    wchan: str | None


@dataclass(frozen=True, slots=True)
class Tree:
    """What all processes of a server have done together; these totals only grow, also when processes end."""

    server: str
    rchar: int | None
    read_bytes: int | None
    write_bytes: int | None
    faults: int | None  # minor and major
    resident_file_bytes: int | None  # now, of the server's own processes
    compiler_cpu_seconds: float | None
    compilers: int  # now


@dataclass(frozen=True, slots=True)
class ProcessReading(Reading):
    """All processes of all servers on this node."""

    processes: tuple[ProcessSample, ...]
    trees: tuple[Tree, ...]


@dataclass(slots=True)
class _Memory:
    """What one look leaves for the next."""

    stats: dict[int, Stat] = field(default_factory=dict)
    totals: dict[tuple[Any, ...], Total] = field(default_factory=dict)


@dataclass(slots=True)
class _Look:
    """One pass over all processes: reads each file once and keeps what the next pass needs."""

    procfs: str
    handles: "Handles"
    note: Callable[[str], None]
    clock: Callable[[], float]
    skip: frozenset[str]
    before: _Memory
    after: _Memory = field(default_factory=_Memory)
    ios: dict[int, dict[str, int]] = field(default_factory=dict)
    denied: bool = False
    failures: list[Failure] = field(default_factory=list)

    def server(self, target: dict[str, Any]) -> tuple[list[ProcessSample], Tree | None]:
        """Read one server."""
        name, self.denied = target["server"], False
        entries = [entry for entry in target["processes"] if self._is_there(name, entry)]
        pids = {pid for entry in entries for pid in (entry["pid"], *entry["tree"])}
        for pid in pids:
            self._stat(name, pid)
        samples = [sample for entry in entries if (sample := self._sample(name, entry))]
        tree = self._tree(name, entries, pids, samples) if samples else None
        if self.denied:
            self.failures.append(Failure(NAME, "permission_denied", MISSING_RIGHT, name))
        return samples, tree

    def _is_there(self, server: str, entry: dict[str, Any]) -> bool:
        stat = self._stat(server, entry["pid"])
        return stat is not None and stat.id[1] == entry["start_ticks"]

    def _stat(self, server: str, pid: int) -> Stat | None:
        if pid not in self.after.stats and (stat := self._read_stat(server, pid)):
            self.after.stats[pid] = stat
        return self.after.stats.get(pid)

    def _read_stat(self, server: str, pid: int) -> Stat | None:
        if f"pid {pid}" in self.skip:
            self._fail("quarantined", f"pid {pid}", server)
            return self.before.stats.get(pid)  # so that its part of the totals stands still
        text = self._read(server, pid, "stat")
        return Stat.parse(text, self.clock()) if text else None

    def _read(self, server: str, pid: int, file: str) -> bytes:
        """Return what the file holds, nothing where the process has gone or may not be read."""
        self.note(f"pid {pid}")
        try:
            return read_file(f"{self.procfs}/{pid}/{file}", 65536)
        except (FileNotFoundError, ProcessLookupError):
            return b""
        except PermissionError:
            self.denied = True
        except OSError as error:
            self._fail("unreadable", f"pid {pid} {file}: {error.strerror}", server)
        return b""

    def _fail(self, reason: str, detail: str, server: str) -> None:
        failure = Failure(NAME, reason, detail, server)
        if failure not in self.failures:
            self.failures.append(failure)

    def _io(self, server: str, pid: int) -> dict[str, int]:
        if pid not in self.ios:
            text = b"" if f"pid {pid}" in self.skip else self._read(server, pid, "io")
            pairs = (line.decode().split(": ") for line in text.splitlines())
            self.ios[pid] = {name: int(value) for name, value in pairs}
        return self.ios[pid]

    def _members(self, roots: set[int], pids: Iterable[int]) -> list[Stat]:
        """Return who is there and still belongs to the tree: the pid of one that ended may be a stranger's now."""
        group = roots | set(pids)
        stats = (self.after.stats.get(pid) for pid in group)
        return [stat for stat in stats if stat and (stat.id[0] in roots or stat.parent in group)]

    def _total(self, key: tuple[Any, ...]) -> Total:
        return self.after.totals.setdefault(key, self.before.totals.get(key) or Total())

    def _sample(self, server: str, entry: dict[str, Any]) -> ProcessSample | None:
        pid, stat = entry["pid"], self.after.stats[entry["pid"]]
        tree_cpu = self._total((server, "cpu", stat.id)).add(self._members({pid}, entry["tree"]), cpu_of)
        facts = None if f"pid {pid}" in self.skip else self._facts(server, stat)
        if facts is None:
            return None
        status, io = self._read(server, pid, "status"), self._io(server, pid)
        _, found, file_kib = status.partition(b"RssFile:")
        wchan = self._read(server, pid, "wchan").decode()
        return ProcessSample(
            server=server,
            process=entry["name"],
            role=entry["role"],
            rank=entry["rank"],
            pid=pid,
            started=entry["started"],
            state=stat.state,
            cpu_seconds=stat.cpu / TICKS_PER_SECOND,
            cpu_ratio=self._cpu_ratio(stat),
            tree_cpu_seconds=tree_cpu / TICKS_PER_SECOND,
            resident_file_bytes=int(file_kib.split()[0]) * 1024 if found else None,
            rchar=io.get("rchar"),
            read_bytes=io.get("read_bytes"),
            write_bytes=io.get("write_bytes"),
            minor_faults=stat.minor_faults,
            major_faults=stat.major_faults,
            wchan=None if wchan in {"", "0"} else wchan,
            **facts,
        )

    def _facts(self, server: str, stat: Stat) -> dict[str, Any] | None:
        """Return what psutil reads, None where the process has gone meanwhile."""
        pid = stat.id[0]
        self.note(f"pid {pid}")
        try:
            facts = self.handles.facts(stat)
        except PermissionError:
            self.denied = True
        except OSError as error:
            self._fail("unreadable", f"pid {pid}: {error.strerror}", server)
        else:
            self.denied |= facts is not None and facts["open_fds"] is None and stat.state != "Z"
            return facts
        return None

    def _cpu_ratio(self, stat: Stat) -> float | None:
        before = self.before.stats.get(stat.id[0])
        if before is None or before.id != stat.id or before.at >= stat.at:
            return None
        return max(0, stat.cpu - before.cpu) / TICKS_PER_SECOND / (stat.at - before.at)

    def _tree(self, server: str, entries: list[dict[str, Any]], pids: set[int], samples: list[ProcessSample]) -> Tree:
        members = self._members({entry["pid"] for entry in entries}, pids)
        compiler_pids = {pid for entry in entries for pid in entry["compilers"]}
        compilers = [stat for stat in members if stat.id[0] in compiler_pids]
        file_bytes = [sample.resident_file_bytes for sample in samples if sample.resident_file_bytes is not None]

        def transferred(kind: str) -> int | None:
            total = self._total((server, kind)).add(members, lambda one: self._io(server, one.id[0]).get(kind))
            known = any(kind in self._io(server, one.id[0]) for one in members)
            return total if known and not self.denied else None

        return Tree(
            server,
            transferred("rchar"),
            transferred("read_bytes"),
            transferred("write_bytes"),
            self._total((server, "faults")).add(members, faults_of),
            sum(file_bytes) if file_bytes else None,
            self._total((server, "compilers")).add(compilers, cpu_of) / TICKS_PER_SECOND,
            sum(stat.state != "Z" for stat in compilers),
        )


def reader(
    options: Mapping[str, str], note: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> Callable[[list[dict[str, Any]], frozenset[str]], tuple[ProcessReading, tuple[Failure, ...]]]:
    """Return the function that reads the processes of these servers, again and again."""
    from stallwatch.node.handles import Handles  # noqa: PLC0415 whoever only looks at readings does not load psutil

    procfs = options.get("procfs", "/proc")
    handles, memory = Handles(procfs), _Memory()

    def read(targets: list[dict[str, Any]], skip: frozenset[str]) -> tuple[ProcessReading, tuple[Failure, ...]]:
        nonlocal handles, memory
        look = _Look(procfs, handles, note, clock, skip, memory)
        found = [look.server(target) for target in targets]
        handles, memory = handles.next(), look.after
        samples = tuple(sample for samples, _ in found for sample in samples)
        trees = tuple(tree for _, tree in found if tree)
        return ProcessReading(clock(), samples, trees), tuple(look.failures)

    return read


def target(server: Server) -> dict[str, Any] | None:
    """Return what the worker needs to know of a server."""
    fields = ("pid", "start_ticks", "name", "role", "rank", "started", "tree", "compilers")
    processes = [{name: getattr(process, name) for name in fields} for process in server.processes]
    return {"server": server.name, "processes": processes} if processes else None


def families(readings: Sequence[ProcessReading], moment: Moment) -> Iterable[Family]:
    """State what each process does."""
    samples = [sample for reading in readings for sample in reading.processes]

    def sets(name: str, text: str, label: str, of: Callable[[ProcessSample], Mapping[str, float | None]]) -> Family:
        found = tuple(
            ((sample.server, sample.process, *([member] if label else [])), float(value))
            for sample in samples
            for member, value in of(sample).items()
            if value is not None
        )
        kind = "counter" if name.endswith("_total") else "gauge"
        labels = ("server", "process", label) if label else ("server", "process")
        return Family(f"stallwatch_process_{name}", text, kind, labels, found)

    def family(name: str, text: str, of: Callable[[ProcessSample], float | None]) -> Family:
        return sets(name, text, "", lambda one: {"": of(one)})

    def switches(one: ProcessSample) -> dict[str, float | None]:
        return {"voluntary": one.voluntary_switches, "involuntary": one.involuntary_switches}

    yield family("cpu_seconds_total", "CPU time of the process itself, since it began.", lambda one: one.cpu_seconds)
    yield family("cpu_ratio", "Cores that the process used between the last two looks.", lambda one: one.cpu_ratio)
    text = "CPU time of the process and all its descendants, those that have ended included, since it began."
    yield family("tree_cpu_seconds_total", text, lambda one: one.tree_cpu_seconds)
    yield family("threads", "Threads of the process.", lambda one: one.threads)
    yield family("open_fds", "Open file descriptors; absent without the right to count them.", lambda one: one.open_fds)
    text = "Resident memory; shared pages are counted once per process, so a sum over processes is too high."
    yield family("resident_memory_bytes", text, lambda one: one.resident_bytes)
    text = "Resident pages of mapped files, such as weights; shared ones count in each process."
    yield family("resident_file_bytes", text, lambda one: one.resident_file_bytes)
    text = "Bytes read from storage, since it began; absent without the right to see them."
    yield family("read_bytes_total", text, lambda one: one.read_bytes)
    text = "Minor and major page faults, since it began."
    yield family("page_faults_total", text, lambda one: one.minor_faults + one.major_faults)
    text = "When the process was started, as Unix time."
    yield family("start_time_seconds", text, lambda one: moment.unix_of_boottime(one.started))
    text = "Context switches of the main thread, voluntary and involuntary, since it began."
    yield sets("context_switches_total", text, "kind", switches)
    text = f"State of the main thread, in the letters of ps ({', '.join(STATES)}): 1 for the one that holds."
    yield sets("state", text, "state", lambda one: {state: state == one.state for state in STATES})
