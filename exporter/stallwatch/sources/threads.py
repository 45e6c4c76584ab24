"""What does each thread of a server do: does it run, sleep, spin, or hang in the kernel, and where?

Two short looks at all threads tell one that spins from one that sleeps. Only files of /proc are read that answer while
their process is wedged: never cmdline, environ or maps. Nobody is stopped or attached to.

Reasons of failures: `permission_denied` (once per server; what cannot be read is None) and `quarantined`.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stallwatch.node.procfs import TICKS_PER_SECOND, Procfs, read_file
from stallwatch.redaction import redact
from stallwatch.snapshot import Failure, Reading
from stallwatch.sources.asked import Asking, Member, members_of, processes_of, word_of
from stallwatch.sources.descriptors import kind_of
from stallwatch.sources.onetask import Count, count_of, frames_of, manner_of, wchan_of
from stallwatch.sources.syscalls import of_a_descriptor, syscall_name

NAME = "threads"
BETWEEN_SECONDS = 0.7
FIRST_LOOK_SECONDS = 2.0  # a thread takes a fifth of a millisecond
BOTH_LOOKS_SECONDS = 4.0  # since a worker that takes 5 s is taken to be stuck
MOST_THREADS = 4096  # beside the main threads, which are always looked at
MOST_STATES = 16384  # of one process; the state alone takes a fiftieth of a millisecond
MOST_OF_ONE_PROCESS = 512

_SYSCALL_RIGHT = "system calls and descriptors of another user's processes need root and CAP_SYS_PTRACE"
_STACK_RIGHT = "kernel stacks need root and CAP_SYS_ADMIN"

target = processes_of


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread; what it did is from the first look to the second, and None is what could not be seen.

    `manner` is `spins` (computes and hardly ever waits), `works`, `wakes` (sleeps, and is woken now and then),
    `sleeps` (not once on a CPU), `uninterruptible` (sleeps in the kernel, where no signal reaches), `stopped`, `zombie`
    or `ended`; nothing where there was no time to look twice.
    """

    tid: int
    comm: str
    state: str
    manner: str
    cpu_seconds: float
    cpu_ratio: float | None  # cores
    voluntary_switches: int | None
    involuntary_switches: int | None
    wchan: str | None
    syscall: int | None  # None also where it runs
    syscall_name: str
    syscall_on: str  # what kind of descriptor it is called on
    stack: tuple[str, ...] | None  # of the kernel, innermost first


@dataclass(frozen=True, slots=True)
class ProcessThreads:
    """One of the server's processes, or a descendant of the one that `process` names.

    `uninterruptible` says whether any thread of it, one that was left out too, is or may be in such a sleep.
    """

    server: str
    process: str
    rank: str
    pid: int
    descendant: bool
    threads: tuple[Thread, ...]
    dropped: int = 0
    uninterruptible: bool = False


@dataclass(frozen=True, slots=True)
class ThreadsReading(Reading):
    """The threads of all processes that were asked about."""

    seconds: float = 0.0  # from the first look to the second
    processes: tuple[ProcessThreads, ...] = ()


def uninterruptible(reading: ThreadsReading) -> frozenset[int]:
    """Return the pids of the processes of which a thread sleeps in the kernel where no signal reaches it."""
    return frozenset(process.pid for process in reading.processes if process.uninterruptible)


@dataclass(slots=True)
class _Look:
    """One pair of looks at the processes of all servers."""

    procfs: Procfs
    clock: Callable[[], float]
    left: int = MOST_THREADS
    missing: set[str] = field(default_factory=set)
    counts: dict[tuple[int, int], Count] = field(default_factory=dict)

    def first(self, server: str, member: Member, sharers: int, until: float) -> ProcessThreads | None:
        """Read the threads of a process, of those that may be read still what is left to each of so many processes.

        Its main thread comes first, then those in uninterruptible sleep.
        """
        tids = self._tids(member.pid)
        if not tids:
            return None
        states = {tid: self._state(member.pid, tid) for tid in tids[:MOST_STATES]}
        tids.sort(key=lambda tid: (tid != member.pid, states.get(tid) != "D"))
        threads: list[Thread] = []
        tried = 0
        for tid in tids[: max(1, min(self.left // sharers, MOST_OF_ONE_PROCESS))]:
            if tried and self.clock() > until:
                break
            tried += 1
            threads += filter(None, [self._thread(member.pid, tid)])
        self.left -= len(threads)
        who = (server, member.process, member.rank, member.pid, member.descendant)
        seen = {*states.values(), *(thread.state for thread in threads)}
        return ProcessThreads(*who, tuple(threads), len(tids) - tried, "D" in seen or len(tids) > MOST_STATES)

    def second(self, process: ProcessThreads, until: float) -> ProcessThreads:
        """Say what each thread did since, as far as there is time."""
        return replace(process, threads=tuple(self._since(process.pid, thread, until) for thread in process.threads))

    def _tids(self, pid: int) -> list[int]:
        try:
            return sorted(int(name) for name in os.listdir(self.procfs.path(pid, "task")))  # noqa: PTH208  (as in procfs)
        except OSError:
            return []

    def _state(self, pid: int, tid: int) -> str:
        stat = self._read(pid, f"task/{tid}/stat") or b""
        return stat.rpartition(b") ")[2][:1].decode(errors="replace")

    def _thread(self, pid: int, tid: int) -> Thread | None:
        here = f"task/{tid}"
        count = self._count(pid, tid)
        if count is None:
            return None
        self.counts[pid, tid] = count
        number, name, kind = self._syscall(pid, here)
        return Thread(
            tid=tid,
            comm=redact(word_of(self._read(pid, f"{here}/comm") or b"")),
            state=count.state,
            manner="",
            cpu_seconds=count.ticks / TICKS_PER_SECOND,
            cpu_ratio=None,
            voluntary_switches=None,
            involuntary_switches=None,
            wchan=wchan_of(self._read(pid, f"{here}/wchan")),
            syscall=number,
            syscall_name=name,
            syscall_on=kind,
            stack=frames_of(self._read(pid, f"{here}/stack", _STACK_RIGHT)),
        )

    def _count(self, pid: int, tid: int) -> Count | None:
        at, stat = self.clock(), self._read(pid, f"task/{tid}/stat")
        return count_of(at, stat, self._read(pid, f"task/{tid}/status") or b"") if stat else None

    def _since(self, pid: int, thread: Thread, until: float) -> Thread:
        if self.clock() > until:
            return thread
        before, now = self.counts[pid, thread.tid], self._count(pid, thread.tid)
        if now is None:
            return replace(thread, manner="ended")
        ratio, switched = now.since(before)
        return replace(
            thread,
            manner=manner_of({before.state, now.state}, ratio, switched),
            cpu_ratio=round(ratio, 3),
            voluntary_switches=switched[0] if switched else None,
            involuntary_switches=switched[1] if switched else None,
        )

    def _syscall(self, pid: int, here: str) -> tuple[int | None, str, str]:
        words = (self._read(pid, f"{here}/syscall", _SYSCALL_RIGHT) or b"").split()
        if len(words) < 3 or words[0] == b"-1":
            return None, "", ""
        number = int(words[0])
        name, kind = syscall_name(number), ""
        if of_a_descriptor(name):
            kind = self._kind(pid, int(words[1], 16) & 0xFFFFFFFF)
        return number, name, kind

    def _kind(self, pid: int, descriptor: int) -> str:
        try:
            kind, device = kind_of(self.procfs.link(pid, f"fd/{descriptor}") or "")
        except PermissionError:
            self.missing.add(_SYSCALL_RIGHT)
            return ""
        return device or kind

    def _read(self, pid: int, file: str, right: str = "") -> bytes | None:
        """Return what a file holds; None where it is gone, and where it takes a right that is missing."""
        try:
            return self.procfs.read(self.procfs.path(pid, file), 16384)
        except PermissionError:
            self.missing.add(right or _SYSCALL_RIGHT)
        except OSError:
            return None  # the thread has ended, or this kernel does not tell
        return None


def reader(
    options: Mapping[str, str],
    note: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Callable[[list[dict[str, Any]], frozenset[str]], tuple[ThreadsReading, tuple[Failure, ...]]]:
    """Return the function that looks at the threads of servers."""

    def read(targets: list[dict[str, Any]], skip: frozenset[str]) -> tuple[ThreadsReading, tuple[Failure, ...]]:
        procfs, began = Procfs(options.get("procfs", "/proc"), note, skip, read_file), clock()
        look, asking = _Look(procfs, clock), Asking(NAME, "threads of pid ")
        processes: list[ProcessThreads] = []
        dropped = 0
        for one in targets:
            found, left_out = _first_look(look, asking, one, began + FIRST_LOOK_SECONDS)
            processes += found
            dropped += left_out
        half = clock()
        pause(BETWEEN_SECONDS)
        processes = [look.second(process, began + BOTH_LOOKS_SECONDS) for process in processes]
        seconds = round(clock() - half, 3)
        return ThreadsReading(clock(), seconds, tuple(processes), dropped=dropped), tuple(asking.failures)

    return read


def _first_look(look: _Look, asking: Asking, target: dict[str, Any], until: float) -> tuple[list[ProcessThreads], int]:
    """Return what is seen of the processes of one server, its own ones first, and how much is left out."""
    look.missing = set()
    members, dropped = members_of(asking, look.procfs, target, descendants=True)
    own = sum(not member.descendant for member in members)
    processes: list[ProcessThreads] = []
    for number, member in enumerate(members):
        look.procfs.note(asking.noted(member))
        if found := look.first(target["server"], member, max(1, own - number), until):
            processes.append(found)
            dropped += found.dropped
    if look.missing:
        detail = "; ".join(sorted(look.missing))
        asking.failures.append(Failure(NAME, "permission_denied", detail, target["server"]))
    return processes, dropped
