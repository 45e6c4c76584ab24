"""Where does each process of a server stand in its Python code?

py-spy tells, which reads the memory of a process without pausing it (`--nonblocking`) and which the extra `stacks`
installs beside this interpreter: no other one is looked for. It runs as a child with no environment, one process after
another, the ranks first, and is killed when it is late or says too much; one that not even SIGKILL ends is left to
itself. A process with a thread in uninterruptible sleep is left alone, since py-spy might then never return.

Reasons of failures: `not_installed`, `uninterruptible`, `no_permission`, `vanished`, `not_python`, `timeout`,
`too_much`, `garbage`, `failed` (py-spy says why) and `backed_off` (two of its processes are stuck).
"""

import re
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from stallwatch.node.procfs import Procfs
from stallwatch.redaction import public
from stallwatch.snapshot import Failure, Process, Reading, Server
from stallwatch.sources.pyspy import MISSING, Deadlines, NoStackError, SpiedThread, Spy, installed

NAME = "stacks"

MOST_PROCESSES = 64
MOST_THREADS = 64
MOST_FRAMES = 64
_LONGEST_NAME = 100
_LIBRARY = re.compile(r".*/(?:(?:site|dist)-packages|lib/python3\.\d+)/")


@dataclass(frozen=True, slots=True)
class Frame:
    """One call: the file is cut to its package and module."""

    name: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """Where one thread stands: the innermost frame first."""

    name: str
    tid: int
    active: bool
    owns_gil: bool
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class ProcessStacks:
    """Where the threads of one process stand: its main thread first."""

    process: str
    rank: str
    pid: int
    threads: tuple[ThreadStack, ...]
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class StacksReading(Reading):
    """Where the processes of one server stand; `dropped` counts processes and threads that were left out."""

    server: str
    processes: tuple[ProcessStacks, ...]


async def read(
    server: Server,
    uninterruptible: Collection[int] = (),
    find: Callable[[], str | None] = installed,
    deadlines: Deadlines = Deadlines(),  # noqa: B008 it is frozen
    procfs: Procfs = Procfs(),  # noqa: B008 the same
) -> tuple[StacksReading | None, tuple[Failure, ...]]:
    """Read the stacks of all processes of a server, None where there was none to be had.

    `uninterruptible` holds the pids of those of which a thread is in uninterruptible sleep, as `threads` read it.
    """
    if (path := find()) is None:
        return None, (Failure(NAME, "not_installed", MISSING, server.name),)
    ranks_first = sorted(server.processes, key=lambda process: not process.rank)
    chosen, begun, failures, found = ranks_first[:MOST_PROCESSES], time.monotonic(), [], []
    spy = Spy(path, deadlines, procfs)
    dropped = len(ranks_first) - len(chosen)
    for process in chosen:
        if time.monotonic() - begun > deadlines.server:
            dropped += 1
            continue
        try:
            found.append(await _stacks(spy, process, uninterruptible))
        except NoStackError as error:
            failures.append(Failure(NAME, error.reason, f"{process.name} (pid {process.pid}): {error}", server.name))
    dropped += sum(one.dropped for one in found)
    reading = StacksReading(time.monotonic(), server.name, tuple(found), dropped=dropped) if found else None
    return reading, tuple(failures)


async def _stacks(spy: Spy, process: Process, uninterruptible: Collection[int]) -> ProcessStacks:
    _check(process, uninterruptible, spy.procfs)
    threads = await spy.ask(process)
    shown = tuple(_shown(threads, process.pid))
    return ProcessStacks(process.name, process.rank, process.pid, shown, len(threads) - len(shown))


def _check(process: Process, uninterruptible: Collection[int], procfs: Procfs) -> None:
    stat = procfs.stat(process.pid)
    if stat is None or stat.start_ticks != process.start_ticks:
        raise NoStackError("vanished", "it is gone")
    if stat.state in ("Z", "X"):
        raise NoStackError("vanished", "it has ended and nobody has waited for it (zombie): it has no stack")
    if process.pid in uninterruptible or stat.state == "D":
        raise NoStackError(
            "uninterruptible", "a thread of it is in uninterruptible sleep, or may be, so it was left alone"
        )


def _shown(threads: Iterable[SpiedThread], pid: int) -> Iterable[ThreadStack]:
    """Clean what a stranger named, and keep the main thread and the active ones where there are too many."""
    for thread in sorted(threads, key=lambda one: (one.os_thread_id != pid, not one.active))[:MOST_THREADS]:
        frames = tuple(
            Frame(public(one.name, _LONGEST_NAME), _tail(one.filename), one.line) for one in thread.frames[:MOST_FRAMES]
        )
        main = "MainThread" if thread.os_thread_id == pid else ""  # a program may know nothing of threads
        name = public(thread.thread_name or main, _LONGEST_NAME)
        yield ThreadStack(name, thread.os_thread_id or 0, thread.active, thread.owns_gil, frames)


def _tail(path: str) -> str:
    """Cut a path to what stands below its library's folder, or to its last two parts."""
    inside, parts = _LIBRARY.sub("", path), path.split("/")
    return public(inside if inside != path else "/".join(parts[-2:]), _LONGEST_NAME)
