"""What does /proc say?

The root of the tree is an argument. A process that vanishes while it is read is simply gone: None, or nothing. Reading
`cmdline` or `environ` takes a lock that a wedged process may hold for ever, so that is noted before, and left out where
the same note is among those to skip; all else here answered within milliseconds whatever state its process was in.
"""
# ruff: noqa: PTH115, PTH123, PTH208  (building a Path costs more than the reads that happen here thousands of times)

import os
import re
import socket
import stat
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
WRITTEN_TO = (os.O_WRONLY, os.O_RDWR)
PART_BYTES = 4096  # most files fit in one; memory for 32 KiB and more costs four times what the read does

_CONTAINER = re.compile(
    r"(?:docker[-/]|cri-containerd[-:]|crio-|libpod-|containerd[-/]|/)([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE
)
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})")
_ADDRESS_OF_THIS_NODE = re.compile(r"\|-- ([0-9.]+)\s+/32 host LOCAL")
_IDS = re.compile(r"^(Uid|Gid|Groups):[ \t]*([\d \t]*)$", re.MULTILINE)
_LIMITS = {"cmdline": 32 * 1024, "environ": 256 * 1024}
_MOST_WORDS = 2048


@dataclass(frozen=True, slots=True)
class Stat:
    """What a process's `stat` file says of who it is."""

    pid: int
    comm: str
    state: str
    ppid: int
    pgrp: int
    session: int
    start_ticks: int

    @property
    def identity(self) -> tuple[int, int]:
        """Tell this process from any other that had its pid."""
        return self.pid, self.start_ticks

    @property
    def started(self) -> float:
        """Say when it started, in seconds since boot."""
        return self.start_ticks / TICKS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening TCP socket: `address` is the literal it is bound to."""

    address: str
    port: int
    inode: int
    uid: int = field(default=0, compare=False)


def read_file(path: str, limit: int) -> bytes:
    """Read at most `limit` bytes of a file."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        parts = []
        while limit > 0 and (part := os.read(handle, min(limit, PART_BYTES))):
            parts.append(part)
            limit -= len(part)
        return b"".join(parts)
    finally:
        os.close(handle)


def parse_stat(data: bytes) -> Stat:
    """Parse a `stat` file; the name may itself hold spaces and parentheses."""
    head, _, tail = data.decode(errors="replace").rpartition(")")
    pid, _, comm = head.partition(" (")
    fields = tail.split()
    ppid, pgrp, session = (int(field) for field in fields[1:4])
    return Stat(int(pid), comm, fields[0], ppid, pgrp, session, int(fields[19]))


def parse_cmdline(data: bytes) -> tuple[str, ...]:
    """Split a command line, the first thousands of its words; a process that titled itself has padded it with NULs."""
    words = (word.decode(errors="replace") for word in data.split(b"\0") if word)
    return tuple(islice(words, _MOST_WORDS))


def parse_listener(line: bytes) -> Listener | None:
    """Parse one line of `net/tcp` or `net/tcp6`; None for a socket that does not listen."""
    fields = line.split()
    if len(fields) < 10 or fields[3] != b"0A":
        return None
    address, _, port = fields[1].decode().partition(":")
    words = [int(address[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(address), 8)]
    text = socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))
    return Listener(text.removeprefix("::ffff:"), int(port, 16), int(fields[9]), int(fields[7]))


def ignore(_text: str) -> None:
    """Note nothing."""


@dataclass(frozen=True, slots=True)
class Procfs:
    """A /proc tree, and what of it must not be read this time."""

    root: str = "/proc"
    note: Callable[[str], None] = ignore
    skip: frozenset[str] = frozenset()
    read: Callable[[str, int], bytes] = read_file

    def pids(self) -> list[int]:
        """List the processes; raises OSError where there is no tree."""
        return [int(name) for name in os.listdir(self.root) if name.isdecimal()]

    def hides_others(self) -> bool:
        """Say whether processes of other users are hidden (the mount option hidepid): not even pid 1 can be seen."""
        return self._read("self/stat", 64) is not None and self._read("1/stat", 64) is None

    def stat(self, pid: int) -> Stat | None:
        """Read who a process is."""
        data = self._read(f"{pid}/stat", 4096)
        return parse_stat(data) if data else None

    def is_skipped(self, pid: int) -> bool:
        """Say whether a read of this process never returned, so that it must not be tried now."""
        return f"pid {pid}" in self.skip

    def cmdline(self, pid: int) -> bytes | None:
        """Read a command line as it is; None also for one that is skipped."""
        return self._read_locked(pid, "cmdline")

    def environ(self, pid: int, names: Collection[str]) -> dict[str, str]:
        """Read these variables of a process's environment and no others; a process that titled itself has lost them."""
        words = parse_cmdline(self._read_locked(pid, "environ") or b"")
        pairs = (word.partition("=") for word in words)
        return {name: value for name, equals, value in pairs if equals and name in names}

    def namespaced_pids(self, pid: int) -> tuple[int, ...]:
        """List the pids that a process has, from this tree's namespace to its own."""
        found = re.search(rb"^NSpid:\s*([\d\s]+)$", self._read(f"{pid}/status", 16384) or b"", re.MULTILINE)
        return tuple(int(number) for number in found[1].split()) if found else ()

    def may_read(self, pid: int, file: os.stat_result) -> bool:
        """Say whether the bits of a file let a process read it, by its user, its groups, or as anybody."""
        text = (self._read(f"{pid}/status", 16384) or b"").decode(errors="replace")
        ids = {name: [int(one) for one in rest.split()] for name, rest in _IDS.findall(text)}
        user, groups = ids.get("Uid", [-1, -1])[1], (ids.get("Gid", [-1, -1])[1], *ids.get("Groups", ()))
        if user in (0, file.st_uid):
            return user == 0 or bool(file.st_mode & stat.S_IRUSR)
        return bool(file.st_mode & (stat.S_IRGRP if file.st_gid in groups else stat.S_IROTH))

    def control_groups(self, pid: int) -> str:
        """Return the control groups of a process, a line for each hierarchy."""
        return (self._read(f"{pid}/cgroup", 65536) or b"").decode(errors="replace")

    def container(self, pid: int) -> tuple[str, str]:
        """Return the container id and the pod uid of a process, empty where it has none."""
        text = self.control_groups(pid)
        container, pod = _CONTAINER.search(text), _POD.search(text)
        return container[1] if container else "", pod[1].replace("_", "-") if pod else ""

    def path(self, pid: int | str, name: str) -> str:
        """Name a file of a process."""
        return f"{self.root}/{pid}/{name}"

    def link(self, pid: int | str, name: str) -> str | None:
        """Read a link such as `fd/2`, `cwd` or `ns/net`; not being allowed to is an error, since that is not gone."""
        try:
            return os.readlink(self.path(pid, name))
        except PermissionError:
            raise
        except OSError:
            return None

    def fds(self, pid: int) -> list[int]:
        """List the open file descriptors of a process, with PermissionError as for a link."""
        try:
            return sorted(int(name) for name in os.listdir(self.path(pid, "fd")))
        except PermissionError:
            raise
        except OSError:
            return []

    def access_mode(self, pid: int, fd: int) -> int | None:
        """Say how a file descriptor was opened: O_RDONLY, O_WRONLY or O_RDWR."""
        found = re.search(rb"^flags:\s*([0-7]+)", self._read(f"{pid}/fdinfo/{fd}", 4096) or b"", re.MULTILINE)
        return int(found[1], 8) & os.O_ACCMODE if found else None

    def filesystem(self, pid: int, mount: int) -> str:
        """Return the type of what is mounted under this number where a process lives, empty where that is not there."""
        lines = (self._read(f"{pid}/mountinfo", 4 << 20) or b"").decode(errors="replace")
        found = re.search(rf"^{mount} .* - (\S+) ", lines, re.MULTILINE)
        return found[1] if found else ""

    def listeners(self, pid: int | str) -> list[Listener]:
        """List the listening TCP sockets of a process's network namespace."""
        return [listener for table in ("net/tcp", "net/tcp6") for listener in self._listeners(f"{pid}/{table}")]

    def addresses(self, pid: int | str = "self") -> frozenset[str]:
        """List the addresses of this node, as the network namespace of a process has them."""
        ipv4 = _ADDRESS_OF_THIS_NODE.findall((self._read(f"{pid}/net/fib_trie", 1 << 20) or b"").decode())
        lines = (self._read(f"{pid}/net/if_inet6", 1 << 20) or b"").decode().splitlines()
        ipv6 = (socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0])) for line in lines)
        return frozenset((*ipv4, *ipv6))

    def _listeners(self, name: str) -> Iterator[Listener]:
        try:
            with open(f"{self.root}/{name}", "rb") as lines:
                next(lines, None)
                for line in lines:
                    listener = parse_listener(line)
                    if listener is None:
                        return  # the kernel lists listening sockets first, and thousands of connections may follow
                    yield listener
        except OSError:
            return

    def _read(self, name: str, limit: int) -> bytes | None:
        try:
            return self.read(f"{self.root}/{name}", limit)
        except OSError:
            return None

    def _read_locked(self, pid: int, name: str) -> bytes | None:
        if self.is_skipped(pid):
            return None
        self.note(f"pid {pid}")
        return self._read(f"{pid}/{name}", _LIMITS[name])
