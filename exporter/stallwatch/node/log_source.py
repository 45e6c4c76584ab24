"""Where does a server's log go?

Told by what its standard error and output are connected to. Only regular files are ever opened, by others: opening a
pipe would steal from it. A pipe leads to the process that reads it, and to the file which that one writes. What was
found is kept until the link changes; a pipe without a known reader is tried again at growing intervals.
"""
# ruff: noqa: PTH116  (building a Path costs more than the call)

import heapq
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from stallwatch.node import inside
from stallwatch.node.procfs import WRITTEN_TO, Procfs
from stallwatch.node.surroundings import QuarantinedError, guard
from stallwatch.node.table import ProcessTable, boottime

HINT = 'start it with "2>&1 | tee -a FILE" or ">> FILE 2>&1", or name its log in the configuration'
MOST_CANDIDATES = 256
MOST_PIPES = 3  # how many processes may stand between the server and its file
LONGEST_WAIT = 60.0
_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")
_WORDS = {
    "terminal": "it logs to a terminal",
    "dev_null": "its output goes to /dev/null",
    "pipe": "it logs to a pipe whose reader writes no file that we can see",
    "socket": "it logs to a socket, such as that of the journal",
    "closed": "its output is closed",
    "permission_denied": "we may not see where it logs",
    "quarantined": "looking at its log did not return, and is not tried now",
}


@dataclass(frozen=True, slots=True)
class LogSource:
    """Where a log is, and what its path must not lead out of; or why there is none to read."""

    path: str | None = None
    absence: str = ""
    root: str = ""


@dataclass(frozen=True, slots=True)
class _Pipe:
    """What was found behind a pipe, how it was found, and when."""

    source: LogSource
    reader: tuple[int, int, str]  # pid, descriptor and link of the file
    first: float
    tried: float


def absent(reason: str) -> LogSource:
    """Return a source that says why there is no log."""
    return LogSource(None, f"{reason}: {_WORDS[reason]}; {HINT}")


class LogSources:
    """Finds the logs of servers, and remembers what is costly to find."""

    def __init__(self, table: ProcessTable, clock: Callable[[], float] = boottime) -> None:
        self._table = table
        self._clock = clock
        self._files: dict[tuple[int, int, str], LogSource] = {}
        self._pipes: dict[str, _Pipe] = {}

    def find(self, procfs: Procfs, pids: Sequence[int], descriptors: Iterable[int]) -> LogSource:
        """Return the log that the first of these processes writes through the first of these descriptors."""
        first = None
        for pid, descriptor in product(pids, descriptors):
            source = self._of(procfs, pid, descriptor)
            if source.path:
                return source
            first = first or source
        return first or absent("closed")

    def forget_others(self, pids: frozenset[int]) -> None:
        """Drop what is remembered of files of all other processes, and of pipes that no longer lead anywhere."""
        readers = {pipe.reader[0] for pipe in self._pipes.values()}
        self._files = {key: source for key, source in self._files.items() if key[0] in pids | readers}
        now = self._clock()
        self._pipes = {link: pipe for link, pipe in self._pipes.items() if now - pipe.tried < 10 * LONGEST_WAIT}

    def _of(self, procfs: Procfs, pid: int, descriptor: int, pipes: int = 0) -> LogSource:
        try:
            link = procfs.link(pid, f"fd/{descriptor}")
        except PermissionError:
            return absent("permission_denied")
        if link is None:
            return absent("closed")
        if link.startswith("pipe:"):
            return self._behind(procfs, pid, link, pipes)
        told = _told_by_name(link)
        return told or self._file(procfs, pid, descriptor, link, pipes)

    def _file(self, procfs: Procfs, pid: int, descriptor: int, link: str, pipes: int) -> LogSource:
        key = (pid, descriptor, link)
        if key in self._files:
            return self._files[key]
        status = _status(procfs, pid, descriptor, link)
        if isinstance(status, LogSource):
            return status
        if stat.S_ISFIFO(status.st_mode):
            return self._behind(procfs, pid, link, pipes)
        if not stat.S_ISREG(status.st_mode):
            return absent("terminal")
        self._files[key] = reachable(procfs, pid, descriptor, link, status)
        return self._files[key]

    def _behind(self, procfs: Procfs, pid: int, link: str, pipes: int) -> LogSource:
        now, known = self._clock(), self._pipes.get(link)
        if known and known.source.path and _still_there(procfs, known.reader):
            return known.source
        if known and not known.source.path and now - known.tried < min(LONGEST_WAIT, known.tried - known.first + 5):
            return known.source
        source, reader = self._search(procfs, pid, link, pipes)
        self._pipes[link] = _Pipe(source, reader, known.first if known else now, now)
        return source

    def _search(self, procfs: Procfs, pid: int, link: str, pipes: int) -> tuple[LogSource, tuple[int, int, str]]:
        for reader, is_input in _readers(procfs, self._table, pid, link) if pipes < MOST_PIPES else ():
            outputs = ((fd, target, self._of(procfs, reader, fd, pipes + 1)) for fd, target in _written(procfs, reader))
            found = [(source, (reader, fd, target)) for fd, target, source in outputs if source.path]
            # One that reads other things too, as a supervisor does, may write another's log.
            if found and (is_input or len(found) == 1):
                return found[0]
        return absent("pipe"), (0, 0, "")


def _told_by_name(link: str) -> LogSource | None:
    if link.startswith("socket:"):
        return absent("socket")
    if link == "/dev/null":
        return absent("dev_null")
    return absent("terminal") if link.startswith(_TERMINALS) else None


def _status(procfs: Procfs, pid: int, descriptor: int, link: str) -> os.stat_result | LogSource:
    try:
        guard(procfs, link)
        return os.stat(procfs.path(pid, f"fd/{descriptor}"))
    except QuarantinedError:
        return absent("quarantined")
    except PermissionError:
        return absent("permission_denied")
    except OSError:
        return absent("closed")


def reachable(procfs: Procfs, pid: int, descriptor: int, link: str, status: os.stat_result) -> LogSource:
    """Name an open file by a path that follows rotation, which its descriptor does not; it must be the same by now."""
    within = procfs.path(pid, "root")
    for root, path in (("/", link), (within, within + link)):
        try:
            with inside.held(root, link, links=False) as handle:
                seen = os.fstat(handle)
        except OSError:
            continue
        if (seen.st_dev, seen.st_ino) == (status.st_dev, status.st_ino):
            return LogSource(path, root=root)
    path = procfs.path(pid, f"fd/{descriptor}")
    return LogSource(path, root=path)


def _still_there(procfs: Procfs, reader: tuple[int, int, str]) -> bool:
    pid, descriptor, link = reader
    try:
        return procfs.link(pid, f"fd/{descriptor}") == link
    except PermissionError:
        return False


def _readers(procfs: Procfs, table: ProcessTable, pid: int, link: str) -> Iterable[tuple[int, bool]]:
    """Yield who reads a pipe, as standard input or not; only those above the writer are searched for the latter."""
    for candidate in _candidates(table, pid):
        if _reads(procfs, candidate, 0, link):
            yield candidate, True
    for above in list(table.ancestors(pid))[:8]:
        try:
            descriptors = procfs.fds(above.stat.pid)[:1024]
        except PermissionError:
            continue
        if any(_reads(procfs, above.stat.pid, descriptor, link) for descriptor in descriptors):
            yield above.stat.pid, False


def _candidates(table: ProcessTable, pid: int) -> Sequence[int]:
    writer = table.entries.get(pid)
    if writer is None:
        return ()
    own = writer.stat

    def distance(other: int) -> tuple[bool, bool, bool, float]:
        seen = table.entries[other].stat
        apart = abs(seen.start_ticks - own.start_ticks)
        return seen.pgrp != own.pgrp, seen.session != own.session, seen.ppid != own.ppid, apart

    return heapq.nsmallest(MOST_CANDIDATES, (other for other in table.entries if other != pid), key=distance)


def _reads(procfs: Procfs, pid: int, descriptor: int, link: str) -> bool:
    try:
        if procfs.link(pid, f"fd/{descriptor}") != link:
            return False
    except PermissionError:
        return False
    return procfs.access_mode(pid, descriptor) == os.O_RDONLY


def _written(procfs: Procfs, reader: int) -> Iterable[tuple[int, str]]:
    """Yield what a reader writes to, what it opened itself before its standard output."""
    try:
        descriptors = procfs.fds(reader)[:64]
        for descriptor in sorted(descriptors, key=lambda number: (number < 3, number)):
            target = procfs.link(reader, f"fd/{descriptor}")
            if target and descriptor != 2 and procfs.access_mode(reader, descriptor) in WRITTEN_TO:
                yield descriptor, target
    except PermissionError:
        return
