"""Which processes are there, and what is each?

Each look lists /proc, and reads only what can be new: pids not seen before; the processes of known servers, whose start
time is checked; and some of the others, the young ones at every look and each of the rest once a minute, since a shell
may become a server and a pid may be used again. Command lines are kept only where flags are to be read from them.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from stallwatch.engines import Identity, identify
from stallwatch.engines.engine import LAUNCHER
from stallwatch.node.procfs import Procfs, Stat, parse_cmdline

YOUNG_SECONDS = 120.0
ROUND_SECONDS = 60.0
MOST_KNOWN = 2048  # processes that are something to us; those that come later are nothing
LEAST_LOOKS = 400  # how many of the others may be read in one look, however few a fair share would be

_COMPILER = re.compile(
    r"(?:[a-z0-9_]+-linux-gnu-)?(?:nvcc|cicc|ptxas|ninja|cc1plus|cudafe\+\+|fatbinary|[cg]\+\+|gcc|clang(?:\+\+)?)(?:-[0-9.]+)?"
)
_SPAWN = "from multiprocessing.spawn import spawn_main"
_COMPILE_WORKER = "torch/_inductor/compile_worker"
_MOST_ANCESTORS = 64
_LEFT_OUT = -1  # which no hash ever is


@dataclass(frozen=True, slots=True)
class Kind:
    """What a process is; `argv` is empty unless flags are to be read from it."""

    identity: Identity | None = None
    spawned: bool = False  # a child of multiprocessing that has not titled itself
    compiler: bool = False
    argv: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One process as it was last read; `due` is when to look at it again."""

    stat: Stat
    kind: Kind
    digest: int
    due: float

    @property
    def is_zombie(self) -> bool:
        """Say whether it has ended and only waits for its parent."""
        return self.stat.state in "ZX"


_NOTHING = Kind()  # one for all the thousands that are nothing to us


def kind_of(argv: tuple[str, ...], comm: str) -> Kind:
    """Say what a process is by its command line and the kernel's name of it."""
    identity = identify(argv)
    if identity:
        return Kind(identity, argv=argv if identity.flags else ())
    spawned = any(word.startswith(_SPAWN) for word in argv[1:6])
    names = (comm, argv[0].rpartition("/")[2]) if argv else ()
    compiles = any(map(_COMPILER.fullmatch, names)) or any(_COMPILE_WORKER in word for word in argv[:6])
    return Kind(None, spawned, compiles) if spawned or compiles else _NOTHING


def boottime() -> float:
    """Return the seconds since boot, on the clock that process starts are told by."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ProcessTable:
    """The processes of the node, kept from look to look."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._looked: float | None = None
        self._family: set[int] = set()
        self._room = MOST_KNOWN
        self.dropped = 0  # in the last look
        self.entries: Mapping[int, Entry] = {}
        self.children: Mapping[int, list[int]] = {}
        self.remembered: dict[tuple[int, int], Identity] = {}

    def look(self, procfs: Procfs) -> None:
        """Bring the table up to date; raises OSError where there is no /proc."""
        now = self._clock()
        entries: dict[int, Entry] = {}
        waiting: list[Entry] = []
        self._room = MOST_KNOWN - sum(entry.kind.identity is not None for entry in self.entries.values())
        self.dropped = 0
        for pid in sorted(procfs.pids()):
            entry = self.entries.get(pid)
            if entry is None:
                entry = self._new(procfs, pid, now)
            elif pid in self._family:
                entry = self._relative(procfs, entry, now)
            elif entry.due <= now:
                waiting.append(entry)
            if entry:
                entries[pid] = entry
        for stranger in self._turn(waiting, len(entries), now):
            self._stranger(procfs, stranger, entries, now)
        self._settle(entries, now)

    def ancestors(self, pid: int) -> Iterator[Entry]:
        """Walk up from the parent of a process."""
        entry = self.entries.get(pid)
        for _ in range(_MOST_ANCESTORS):
            entry = self.entries.get(entry.stat.ppid) if entry else None
            if entry is None:
                return
            yield entry

    def descendants(self, pid: int, leave: Callable[[Entry], bool] = lambda _entry: False) -> Iterator[Entry]:
        """Walk all that a process started, and what those started; not below those for which `leave` says so."""
        stack, seen = list(self.children.get(pid, ())), {pid}
        while stack:
            child = stack.pop()
            if child in seen:
                continue
            seen.add(child)
            entry = self.entries[child]
            yield entry
            if not leave(entry):
                stack.extend(self.children.get(child, ()))

    def _turn(self, waiting: list[Entry], count: int, now: float) -> list[Entry]:
        share = count * (now - (self._looked or now)) / ROUND_SECONDS
        waiting.sort(key=lambda entry: entry.due)
        return waiting[: max(LEAST_LOOKS, int(share) + 1)]

    def _settle(self, entries: dict[int, Entry], now: float) -> None:
        children: dict[int, list[int]] = {}
        for pid, entry in entries.items():
            children.setdefault(entry.stat.ppid, []).append(pid)
        self.entries, self.children, self._looked = entries, children, now
        known = [pid for pid, entry in entries.items() if entry.kind.identity]
        self._family = {*known, *(entry.stat.pid for pid in known for entry in self.descendants(pid))}

    def _new(self, procfs: Procfs, pid: int, now: float) -> Entry | None:
        stat = procfs.stat(pid)
        return self._read(procfs, stat, now, None) if stat else None

    def _relative(self, procfs: Procfs, entry: Entry, now: float) -> Entry | None:
        stat = procfs.stat(entry.stat.pid)
        if stat is None:
            return None
        if stat.start_ticks != entry.stat.start_ticks:
            return self._read(procfs, stat, now, None)
        if stat.comm == entry.stat.comm and not self._may_change(entry, now):
            return Entry(stat, entry.kind, entry.digest, entry.due)
        return self._read(procfs, stat, now, entry.kind)

    def _may_change(self, entry: Entry, now: float) -> bool:
        """Say whether a command line may be another one though the kernel's name is the same."""
        if entry.kind.identity:
            return False  # a title stays, and reading it again could block
        return entry.digest == _LEFT_OUT or entry.kind.spawned or now - entry.stat.started < YOUNG_SECONDS

    def _stranger(self, procfs: Procfs, entry: Entry, entries: dict[int, Entry], now: float) -> None:
        pid = entry.stat.pid
        data = procfs.cmdline(pid)
        if data is None or hash(data) == entry.digest:
            entries[pid] = Entry(entry.stat, entry.kind, entry.digest, self._due(entry.stat, now))
            return
        changed = self._new(procfs, pid, now)
        if changed:
            entries[pid] = changed
        else:
            del entries[pid]

    def _read(self, procfs: Procfs, stat: Stat, now: float, before: Kind | None) -> Entry | None:
        data = procfs.cmdline(stat.pid)
        if data is None and not procfs.is_skipped(stat.pid):
            return None
        kind = kind_of(parse_cmdline(data), stat.comm) if data else before or self._unread(stat)
        if before and before.argv and _is_launcher(before) and _is_launcher(kind) and not kind.argv:
            kind = before  # it has titled itself over the flags that we know
        if kind.identity and not (before and before.identity):
            self._room -= 1
            if self._room < 0:
                self.dropped += 1
                return Entry(stat, _NOTHING, _LEFT_OUT, now)
        return Entry(stat, kind, hash(data or b""), self._due(stat, now))

    def _unread(self, stat: Stat) -> Kind:
        """Say what a zombie is, or a process whose command line cannot be read now."""
        known = self.remembered.get(stat.identity)
        return Kind(known) if known else kind_of((stat.comm,), stat.comm)

    def _due(self, stat: Stat, now: float) -> float:
        if now - stat.started < YOUNG_SECONDS:
            return now
        # What is first seen together is looked at again spread over the round, not all at once.
        return now + ROUND_SECONDS * (1.0 if self._looked is not None else stat.pid * 0.618034 % 1.0)


def _is_launcher(kind: Kind) -> bool:
    return kind.identity is not None and kind.identity.role == LAUNCHER
