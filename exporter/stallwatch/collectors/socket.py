"""Do clients wait on the port of a server: in the queue of those to be accepted, or with bytes that it has not read?

That is demand which needs no probe. Counted are the listeners of the port that a process of the server has open, and
the connections that came in through them, unaccepted ones included; connections count by the local address, so that
another program on the same port of another address does not. Where we may not see whose a listener is, every listener
of the port counts. A kept-alive connection and one over which nothing was sent hold no unread bytes; the server's own
requests to itself are requests like any other. All this is looked up in the network namespace of the server.

Reasons of failures: `no_permission`, `quarantined` and `unreadable`. A server whose processes have gone is absent.
"""

import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from stallwatch.node.owners import Owners
from stallwatch.node.procfs import Procfs, read_file
from stallwatch.node.sockets import ANY_IPV4, ANY_IPV6, TcpSocket, ask_kernel, namespace_of, open_netlink, parse_table
from stallwatch.snapshot import Failure, Family, Moment, Reading, Server

NAME = "socket"
NETLINK = "netlink sock_diag"

_MOST_PROCESSES = 256
_TABLE_LIMIT = 64 << 20


@dataclass(frozen=True, slots=True)
class ServerSockets:
    """What waits on the port of one server."""

    server: str
    listening: bool
    accept_queue: int  # connections
    unread_bytes: int


@dataclass(frozen=True, slots=True)
class SocketReading(Reading):
    """What waits on the ports of all servers on this node."""

    sockets: tuple[ServerSockets, ...]


@dataclass(slots=True)
class _Look:
    """One pass over all servers: the tables of each network namespace are read once."""

    procfs: Procfs
    owners: Owners
    connect: Callable[[], socket.socket]
    failures: list[Failure] = field(default_factory=list)

    def servers(self, targets: Iterable[dict[str, Any]]) -> Iterator[ServerSockets]:
        """Read all of them."""
        namespaces: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for target in targets:
            if home := self._home(target):
                number, pid = home
                namespaces.setdefault(number, []).append((pid, target))
        for number, inside in namespaces.items():
            pid, members = inside[0][0], [target for _, target in inside]
            sockets = self._sockets(number, pid, members)
            if sockets is not None:
                yield from (self._server(target, sockets) for target in members)

    def _home(self, target: dict[str, Any]) -> tuple[int, int] | None:
        """Return the network namespace of a server and a process in it; None where all its processes are gone."""
        for pid in (target["pid"], *target["others"]):
            try:
                number = namespace_of(self.procfs, pid)
            except PermissionError:
                self._fail("no_permission", f"pid {pid} net/tcp", [target])
                return None
            if number is not None:
                return number, pid
        return None

    def _sockets(self, namespace: int, pid: int, targets: Sequence[dict[str, Any]]) -> list[TcpSocket] | None:
        ports = {target["port"] for target in targets}
        if namespace == namespace_of(self.procfs, "self") and NETLINK not in self.procfs.skip:
            self.procfs.note(NETLINK)
            with suppress(OSError):  # /proc says the same, only slower
                return ask_kernel(ports, self.connect)
        found: list[TcpSocket] = []
        for name in ("net/tcp", "net/tcp6"):
            table = self._table(f"{pid}/{name}", targets)
            if table is None:
                return None
            found += parse_table(table, ports)
        return found

    def _table(self, name: str, targets: Sequence[dict[str, Any]]) -> bytes | None:
        """Return what a table holds, nothing where there is none, None where that is not to be known."""
        path = f"{self.procfs.root}/{name}"
        if f"table {path}" in self.procfs.skip:
            self._fail("quarantined", path, targets)
            return None
        self.procfs.note(f"table {path}")
        try:
            return read_file(path, _TABLE_LIMIT)
        except (FileNotFoundError, ProcessLookupError):
            return b"" if name.endswith("6") else None  # a node may do without IPv6, but not without IPv4
        except OSError as error:
            reason = "no_permission" if isinstance(error, PermissionError) else "unreadable"
            self._fail(reason, f"{path}: {error.strerror}", targets)
            return None

    def _server(self, target: dict[str, Any], sockets: Iterable[TcpSocket]) -> ServerSockets:
        here = [one for one in sockets if one.port == target["port"]]
        listeners = [one for one in here if one.listens]
        own = self._own(listeners, (target["pid"], *target["others"]))
        taken = {one.address for one in listeners}
        counted = {None, *(one.address for one in own)}  # a server that drains has closed its listener
        unread = sum(one.waiting for one in here if not one.listens and _accepting(one.address, taken) in counted)
        return ServerSockets(target["server"], bool(own), sum(one.waiting for one in own), unread)

    def _own(self, listeners: Sequence[TcpSocket], pids: Sequence[int]) -> Sequence[TcpSocket]:
        try:
            return [one for one in listeners if self.owners.owns(self.procfs, pids, one.inode)]
        except PermissionError:
            return listeners

    def _fail(self, reason: str, detail: str, targets: Iterable[dict[str, Any]]) -> None:
        self.failures += [Failure(NAME, reason, detail, target["server"]) for target in targets]


def _accepting(address: bytes, listening: Collection[bytes]) -> bytes | None:
    """Return the address of the listener through which a connection to this address comes in."""
    candidates = (address, ANY_IPV4, ANY_IPV6) if len(address) == len(ANY_IPV4) else (address, ANY_IPV6)
    return next((one for one in candidates if one in listening), None)


def reader(
    options: Mapping[str, str],
    note: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    connect: Callable[[], socket.socket] = open_netlink,
) -> Callable[[list[dict[str, Any]], frozenset[str]], tuple[SocketReading, tuple[Failure, ...]]]:
    """Return the function that looks at the ports of these servers, again and again."""
    procfs, owners = Procfs(options.get("procfs", "/proc"), note), Owners()

    def read(targets: list[dict[str, Any]], skip: frozenset[str]) -> tuple[SocketReading, tuple[Failure, ...]]:
        look = _Look(replace(procfs, skip=skip), owners, connect)
        found = tuple(look.servers(targets))
        return SocketReading(clock(), found), tuple(look.failures)

    return read


def target(server: Server) -> dict[str, Any] | None:
    """Return the port of a server, the process whose network namespace counts and those that may have it open."""
    port, processes = server.launch.port, server.processes
    if port is None or not 0 < port < 1 << 16 or not processes:  # a command line may say anything
        return None
    pids = dict.fromkeys((*(one.pid for one in processes), *(pid for one in processes for pid in one.tree)))
    first, *others = list(pids)[:_MOST_PROCESSES]
    return {"server": server.name, "port": port, "pid": first, "others": others}


def families(readings: Sequence[SocketReading], _moment: Moment) -> Iterable[Family]:
    """State what waits on the port of each server."""
    servers = [one for reading in readings for one in reading.sockets]

    def family(name: str, text: str, of: Callable[[ServerSockets], int]) -> Family:
        samples = tuple(((one.server,), float(of(one))) for one in servers)
        return Family(f"stallwatch_socket_{name}", text, "gauge", ("server",), samples)

    text = "Connections to the port of the server that it has not accepted yet."
    yield family("accept_queue", text, lambda one: one.accept_queue)
    text = (
        "Bytes in the connections of the port that the server has not read, those of unaccepted connections included."
    )
    yield family("unread_bytes", text, lambda one: one.unread_bytes)
