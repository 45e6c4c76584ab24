"""What have SGLang's schedulers written into shared memory about their load?

From 0.5.13 on, the first scheduler of each data-parallel rank writes its own slot of `/dev/shm/sglang_loads_*.shm` on
every prefill, every few decode steps and every idle turn: a sign of life without HTTP and `--enable-metrics`.

A file belongs to a server if one of its scheduler processes holds it open. That leaves out files that another process
fills (between nodes, snapshots travel by ZeroMQ, into a file that is only renewed while somebody asks). In another
mount namespace, as in a container, its path means another file here: there it is reached through the open file itself,
and only where that lies in a tmpfs. All reads are of /proc and of tmpfs, none of which waits for anybody; no lock is
taken, since the writer must not wait for us either.
"""

import asyncio
import math
import os
import re
import stat
import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from stallwatch.node import inside
from stallwatch.node.procfs import Procfs, read_file
from stallwatch.snapshot import Process, Server

MAGIC, VERSION = b"SLNS", 2
HEADER = struct.Struct("<4sHHI")  # magic, version, data-parallel size, slot size
LENGTH = struct.Struct("<I")
MOST_SLOTS, LARGEST_SLOT = 256, 16 * 1024
SEARCH_AGAIN_AFTER = 30.0
_MOST_DESCRIPTORS = 4096  # of all schedulers of a server
_AT_ONCE = 256  # descriptors, in less than a millisecond

Pread = Callable[[int, int, int], bytes]


@dataclass(frozen=True, slots=True)
class Load:
    """What one data-parallel rank wrote last; `timestamp` is Unix time."""

    dp_rank: str
    timestamp: float
    running: float
    queued: float


class _Payload(msgspec.Struct):
    """The fields of a slot that matter; one that has its default was left out by the writer."""

    timestamp: float = 0.0
    dp_rank: int = 0
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0


_DECODER = msgspec.msgpack.Decoder(_Payload)


@dataclass(frozen=True, slots=True)
class _Tie:
    """A descriptor of a scheduler through which it holds its file open."""

    process: Process
    descriptor: int
    path: str


@dataclass(slots=True)
class LoadFiles:
    """Finds the file of each server and reads it.

    One search at a time, and in steps: the schedulers of a full node hold a hundred thousand descriptors, and are all
    searched first when the exporter starts.
    """

    procfs: Procfs = field(default_factory=Procfs)
    folder: str = "/dev/shm"  # noqa: S108  (where the engine writes it)
    stat: Callable[[str], os.stat_result] = os.stat
    _ties: dict[str, _Tie] = field(default_factory=dict)
    _next_search: dict[str, tuple[str, float]] = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def read(self, server: Server, now: float) -> tuple[Load, ...]:
        """Return what the ranks of a server wrote; empty where it has no file, or one that cannot be told to be its."""
        try:
            tie = await self._tie(server, now)
            return self._read(tie) if tie else ()
        except (OSError, ValueError):
            return ()

    def forget(self, names_alive: Collection[str]) -> None:
        """Drop what is remembered of servers that are gone."""
        for name in (self._ties.keys() | self._next_search.keys()) - set(names_alive):
            self._ties.pop(name, None)
            self._next_search.pop(name, None)

    async def _tie(self, server: Server, now: float) -> _Tie | None:
        tie = self._ties.pop(server.name, None)
        if tie is None or tie.process not in server.processes or not self._holds(tie):
            tie = await self._search(server, now)
        if tie is not None:
            self._ties[server.name] = tie
        return tie

    async def _search(self, server: Server, now: float) -> _Tie | None:
        incarnation, after = self._next_search.get(server.name, ("", 0.0))
        if incarnation == server.incarnation and now < after:
            return None
        self._next_search[server.name] = (server.incarnation, now + SEARCH_AGAIN_AFTER)
        wanted = re.compile(re.escape(f"{self.folder}/sglang_loads_") + r"[A-Za-z0-9._-]{1,200}_[0-9a-f]{8}\.shm")
        async with self._turn:
            for number, (process, descriptor) in enumerate(islice(self._descriptors(server), _MOST_DESCRIPTORS)):
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                path = self.procfs.link(process.pid, f"fd/{descriptor}") or ""
                if wanted.fullmatch(path) and self._holds(tie := _Tie(process, descriptor, path)):
                    return tie
        return None

    def _descriptors(self, server: Server) -> Iterator[tuple[Process, int]]:
        for process in server.processes:
            if process.role == "scheduler":
                yield from ((process, descriptor) for descriptor in self.procfs.fds(process.pid))

    def _holds(self, tie: _Tie) -> bool:
        pid = tie.process.pid
        seen = self.procfs.stat(pid)
        return (
            seen is not None
            and seen.start_ticks == tie.process.start_ticks
            and self.procfs.link(pid, f"fd/{tie.descriptor}") == tie.path
        )

    def _read(self, tie: _Tie) -> tuple[Load, ...]:
        pid, uid = tie.process.pid, self._uid(tie.process)
        if self.procfs.link(pid, "ns/mnt") == self.procfs.link("self", "ns/mnt"):
            with inside.held_itself(tie.path) as held:
                return read_loads(held, uid)
        with inside.held("", self.procfs.path(pid, f"fd/{tie.descriptor}")) as held:
            # What is held can be another file by now, of a file system that blocks whoever asks it anything.
            if self.procfs.filesystem(pid, _mount_of(held)) != "tmpfs":
                raise ValueError("not in a tmpfs")
            return read_loads(held, uid)

    def _uid(self, process: Process) -> int:
        return self.stat(self.procfs.path(process.pid, "")).st_uid


def _mount_of(held: int) -> int:
    """Return the number of the mount in which lies what is held, without asking its file system."""
    text = read_file(f"/proc/self/fdinfo/{held}", 4096).decode()
    return int(next(line for line in text.splitlines() if line.startswith("mnt_id:")).split()[1])


def read_loads(held: int, uid: int, pread: Pread = os.pread) -> tuple[Load, ...]:
    """Read a snapshot file that is held and belongs to this user; raises OSError or ValueError where it is none."""
    status = os.fstat(held)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
        raise ValueError("not a regular file of its scheduler")
    handle = inside.open_regular(held)
    try:
        header = pread(handle, HEADER.size, 0)
        if len(header) < HEADER.size:
            raise ValueError("no header")
        magic, version, slots, size = HEADER.unpack(header)
        if (magic, version) != (MAGIC, VERSION) or slots > MOST_SLOTS or not LENGTH.size < size <= LARGEST_SLOT:
            raise ValueError("not a header of a known layout")
        loads = (_slot(pread, handle, rank, size) or _slot(pread, handle, rank, size) for rank in range(slots))
        return tuple(load for load in loads if load)
    finally:
        os.close(handle)


def _slot(pread: Pread, handle: int, rank: int, size: int) -> Load | None:
    """Read one slot; None where it was being written, which the writer shows by a length of 0, or never was."""
    offset = HEADER.size + rank * size
    before = pread(handle, LENGTH.size, offset)
    if len(before) < LENGTH.size or not 0 < (length := LENGTH.unpack(before)[0]) <= size - LENGTH.size:
        return None
    payload = pread(handle, length, offset + LENGTH.size)
    if pread(handle, LENGTH.size, offset) != before:
        return None
    try:
        found = _DECODER.decode(payload)
    except msgspec.DecodeError:
        return None
    counts = (found.num_running_reqs, found.num_waiting_reqs)
    if found.dp_rank != rank or min(counts) < 0 or not (math.isfinite(found.timestamp) and found.timestamp > 0):
        return None
    return Load(str(rank), found.timestamp, float(counts[0]), float(counts[1]))
