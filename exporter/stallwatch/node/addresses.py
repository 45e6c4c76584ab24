"""Where may a server's port be probed?

Only where one of its own processes listens, told by the inode of the socket, so that no title or flag of a foreign
process can make us call somewhere else. While nobody listens, loopback shows the refusal. All of it is looked up in the
network namespace of the server, and the address is one of there.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from stallwatch.node.owners import Owners
from stallwatch.node.procfs import Listener, Procfs

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (compared with what others bind to)
_NAMES = {"localhost": "127.0.0.1", "": "127.0.0.1"}
_MOST_PROCESSES = 64


@dataclass(frozen=True, slots=True)
class Address:
    """The literal address to probe, or why there is none; `listening` says that the server itself listens there.

    `network` names the namespace where the address is to be found, and is empty for our own.
    """

    literal: str | None = None
    absence: str = ""
    listening: bool = False
    network: str = ""


class Addresses:
    """Finds the addresses of servers, and remembers whose socket is whose."""

    def __init__(self) -> None:
        self._owners = Owners()

    def find(self, procfs: Procfs, pids: Sequence[int], host: str, port: int | None) -> Address:
        """Return where to probe a server that consists of these processes and was told to listen there."""
        if port is None:
            return Address(absence="no_port: it has no port, or none that is known")
        pids = pids[:_MOST_PROCESSES]
        try:
            network = _network(procfs, pids[0]) if pids else None
            if network is None:
                return Address(absence="no_process: none of its processes is there any more")
            listeners = [listener for listener in procfs.listeners(pids[0]) if listener.port == port]
            own = [listener for listener in listeners if self._owners.owns(procfs, pids, listener.inode)]
        except PermissionError:
            return Address(absence="permission_denied: we may not see whether it listens on its port")
        if own:
            return Address(_literal(min(own, key=lambda one: ":" in one.address)), listening=True, network=network)
        own_addresses = procfs.addresses(pids[0] if network else "self")
        return _silent(host, port, listeners, own_addresses, network)

    def port_of(self, procfs: Procfs, pid: int) -> int | None:
        """Return the port that a process listens on, where it listens on one and no more."""
        try:
            ports = {one.port for one in procfs.listeners(pid) if self._owners.owns(procfs, (pid,), one.inode)}
        except PermissionError:
            return None
        return ports.pop() if len(ports) == 1 else None


def _network(procfs: Procfs, pid: int) -> str | None:
    """Name the network namespace of a process where it is not ours, "" where it is, None for one that is gone."""
    theirs = procfs.link(pid, "ns/net")
    return "" if theirs == procfs.link("self", "ns/net") else theirs


def _literal(listener: Listener) -> str:
    return ANY_ADDRESS.get(listener.address, listener.address)


def _silent(host: str, port: int, listeners: Iterable[Listener], known: Collection[str], network: str) -> Address:
    host = _NAMES.get(host.strip("[]"), host.strip("[]"))
    literal = ANY_ADDRESS.get(host, host)
    loopback = literal == "::1" or (literal.startswith("127.") and literal.replace(".", "").isdecimal())
    if not loopback and literal not in known:
        return Address(absence="foreign_address: nobody listens yet, and its host is no address of this node")
    if any(literal in (listener.address, _literal(listener)) for listener in listeners):
        return Address(absence=f"port_taken: a process of another server listens on port {port}")
    return Address(literal, network=network)
