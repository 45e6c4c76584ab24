"""What does each process of a server hold open, and what waits in its TCP sockets?

Told by the links of its descriptors and the socket tables of its network namespace. No link is followed and no file
asked for anything, since a dead mount never answers. No path leaves this file but those of well known devices.

Reasons of failures: `permission_denied` (once per server) and `quarantined`.
"""

import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stallwatch.node.procfs import Procfs, read_file
from stallwatch.node.sockets import ask_kernel, namespace_of
from stallwatch.snapshot import Failure, Reading
from stallwatch.sources.asked import Asking, Member, members_of, processes_of

NAME = "descriptors"
MISSING_RIGHT = "the descriptors of another user's processes need root and CAP_SYS_PTRACE"
MOST_DESCRIPTORS = 16384  # of one process; a link takes some microseconds
MOST_OF_ALL = 262_144
MOST_SOCKETS = 64  # of one process, told one by one
TABLE_BYTES = 8 << 20
NETLINK_PORTS = 64

_STATES = (
    "established syn_sent syn_recv fin_wait1 fin_wait2 time_wait close close_wait last_ack listen closing syn_recv"
)
_TCP_STATES = tuple(_STATES.split())  # from 1 on, as in linux/tcp_states.h
_DEVICE = re.compile(
    r"/dev/(?:nvidia[0-9]{1,3}|nvidiactl|nvidia-(?:uvm|uvm-tools|modeset)|nvidia-caps[\w-]{0,16}/[\w-]{1,24}"
    r"|infiniband/(?:uverbs|umad|issm|rdma_cm)[0-9]{0,3}|gdrdrv|dri/(?:card|renderD)[0-9]{1,3}|kfd|fuse|kmsg"
    r"|null|zero|full|u?random|tty|ptmx|pts/[0-9]{1,5})"
)
_ANONYMOUS = {"eventpoll": "epoll", "[eventpoll]": "epoll"}
_ANONYMOUS_KINDS = frozenset(
    {"eventfd", "inotify", "timerfd", "signalfd", "io_uring", "pidfd", "perf_event", "userfaultfd"}
)

target = processes_of


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """One TCP socket; the receive queue of a listener counts connections that are not accepted, others count bytes.

    `backlog` is how many may wait at a listener, None where the kernel does not tell.
    """

    state: str
    local: str
    remote: str
    receive_queue: int
    send_queue: int
    backlog: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessDescriptors:
    """What one of the server's own processes holds open.

    `kinds` counts all of it: `file`, `deleted`, `shared_memory`, `device`, `pipe`, `socket`, `epoll`, `eventfd` and so
    on; `devices` those of well known names.
    """

    server: str
    process: str
    rank: str
    pid: int
    kinds: dict[str, int]
    devices: dict[str, int]
    tcp_states: dict[str, int]
    tcp: tuple[TcpSocket, ...]  # listeners first, then those in which something waits
    unix_sockets: int
    other_sockets: int
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class DescriptorsReading(Reading):
    """What the processes that were asked about hold open."""

    processes: tuple[ProcessDescriptors, ...] = ()


@dataclass(frozen=True, slots=True)
class _Tables:
    """The sockets of one network namespace, by inode."""

    tcp: dict[int, TcpSocket] = field(default_factory=dict)
    unix: frozenset[int] = frozenset()


def kind_of(link: str) -> tuple[str, str]:
    """Return the kind of what a descriptor's link names, and its name where it is a well known device."""
    scheme, _, rest = link.partition(":")
    if link.startswith(("/dev/shm/", "/memfd:", "/SYSV")):  # noqa: S108  (a name to compare with)
        return "shared_memory", ""
    if link.startswith("/dev/"):
        return "device", link if _DEVICE.fullmatch(link) else ""
    if link.startswith("/"):
        return ("deleted" if link.endswith(" (deleted)") else "file"), ""
    if scheme == "anon_inode":
        name = rest.strip("[]")
        return _ANONYMOUS.get(name, name if name in _ANONYMOUS_KINDS else "anonymous"), ""
    return (scheme if scheme in {"pipe", "socket"} else "other"), ""


class Descriptors:
    """Looks once at what processes hold open; the tables of each network namespace are read once."""

    def __init__(self, procfs: Procfs) -> None:
        self._procfs = procfs
        self._tables: dict[int | None, _Tables] = {}
        self._left = MOST_OF_ALL

    def of(self, server: str, member: Member) -> ProcessDescriptors:
        """Return what one process holds open; raises PermissionError where that may not be seen."""
        descriptors = self._procfs.fds(member.pid)
        seen = descriptors[: min(MOST_DESCRIPTORS, self._left)]
        self._left -= len(seen)
        links = [link for one in seen if (link := self._procfs.link(member.pid, f"fd/{one}"))]
        found = [kind_of(link) for link in links]
        inodes = {int(link[8:-1]) for link in links if link.startswith("socket:[")}
        tables = self._tables_of(member.pid) if inodes else _Tables()
        tcp = sorted((tables.tcp[inode] for inode in inodes & tables.tcp.keys()), key=_interest)
        unix = len(inodes & tables.unix)
        return ProcessDescriptors(
            server,
            member.process,
            member.rank,
            member.pid,
            dict(Counter(kind for kind, _ in found)),
            dict(Counter(device for _, device in found if device)),
            dict(Counter(one.state for one in tcp)),
            tuple(tcp[:MOST_SOCKETS]),
            unix,
            len(inodes) - len(tcp) - unix,
            len(descriptors) - len(seen) + len(tcp[MOST_SOCKETS:]),
        )

    def _tables_of(self, pid: int) -> _Tables:
        namespace = namespace_of(self._procfs, pid)
        if namespace not in self._tables:
            tcp = {inode: one for table in ("tcp", "tcp6") for inode, one in _tcp(self._table(pid, table))}
            if namespace is not None and namespace == namespace_of(self._procfs, "self"):
                tcp.update(_with_backlogs(tcp))
            self._tables[namespace] = _Tables(tcp, frozenset(_unix(self._table(pid, "unix"))))
        return self._tables[namespace]

    def _table(self, pid: int, name: str) -> list[bytes]:
        try:
            return self._procfs.read(self._procfs.path(pid, f"net/{name}"), TABLE_BYTES).splitlines()[1:]
        except OSError:
            return []  # IPv6 is switched off, or the process is gone


def _interest(one: TcpSocket) -> tuple[bool, int, str, str]:
    return one.state != "listen", -one.receive_queue - one.send_queue, one.local, one.remote


def _tcp(lines: Iterable[bytes]) -> Iterator[tuple[int, TcpSocket]]:
    for line in lines:
        words = line.split()
        if len(words) >= 10 and 1 <= int(words[3], 16) <= len(_TCP_STATES):
            state = _TCP_STATES[int(words[3], 16) - 1]
            sent, _, received = words[4].partition(b":")
            local, remote = _endpoint(words[1]), _endpoint(words[2])
            yield int(words[9]), TcpSocket(state, local, remote, int(received, 16), int(sent, 16))


def _unix(lines: Iterable[bytes]) -> Iterator[int]:
    words = (line.split(maxsplit=7) for line in lines)
    return (int(one[6]) for one in words if len(one) >= 7)


def _endpoint(text: bytes) -> str:
    address, _, port = text.decode().partition(":")
    packed = b"".join(int(address[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(address), 8))
    if len(packed) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, packed)}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]:{int(port, 16)}"


def _with_backlogs(sockets: Mapping[int, TcpSocket]) -> dict[int, TcpSocket]:
    """Return the listeners of our own namespace with what the kernel tells of their backlogs over netlink only."""
    ports = sorted({int(one.local.rpartition(":")[2]) for one in sockets.values() if one.state == "listen"})
    try:
        told = ask_kernel(ports[:NETLINK_PORTS]) if ports else []
    except OSError:
        return {}  # it does not answer, and the backlogs stay unknown
    listeners = {one.inode: one.backlog for one in told if one.listens and one.inode in sockets}
    return {inode: replace(sockets[inode], backlog=backlog) for inode, backlog in listeners.items()}


def reader(
    options: Mapping[str, str], note: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> Callable[[list[dict[str, Any]], frozenset[str]], tuple[DescriptorsReading, tuple[Failure, ...]]]:
    """Return the function that looks at the descriptors of servers."""

    def read(targets: list[dict[str, Any]], skip: frozenset[str]) -> tuple[DescriptorsReading, tuple[Failure, ...]]:
        procfs = Procfs(options.get("procfs", "/proc"), note, skip, read_file)
        look = Descriptors(procfs)
        processes: list[ProcessDescriptors] = []
        asking = Asking(NAME, "descriptors of pid ")
        failures, dropped = asking.failures, 0
        for one in targets:
            members, left_out = members_of(asking, procfs, one)
            dropped += left_out
            for member in members:
                note(asking.noted(member))
                try:
                    processes.append(look.of(one["server"], member))
                except PermissionError:
                    failures.append(Failure(NAME, "permission_denied", MISSING_RIGHT, one["server"]))
        dropped += sum(process.dropped for process in processes)
        return DescriptorsReading(clock(), tuple(processes), dropped=dropped), tuple(dict.fromkeys(failures))

    return read
