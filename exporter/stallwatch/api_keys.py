"""To whom may a server's API key be shown?

Only to a process that listens on the server's port and is of a user who may know the key: the one that the
configuration names (`servers[].uid`), root, our own user, or the owner of the file that holds it. A title and a flag
can be anybody's; the user of a listening socket is what the kernel says. An address that is none of this node's is not
asked about, since nobody here can listen on it, and only the configuration leads there.

In another network namespace only the user counts that the configuration names: root of a container may be anybody. And
somebody must listen there, since who owns a namespace can lead connections elsewhere.

It is looked up before the key is attached, and again when the connection stands and nothing has been sent: a listener
that is there both times is the one that took the connection.
"""

import asyncio
import errno
import ipaddress
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stallwatch import networks
from stallwatch.aside import Reads
from stallwatch.exchange import NotMadeError
from stallwatch.node.procfs import Listener, Procfs
from stallwatch.snapshot import Failure, Server

if TYPE_CHECKING:
    import aiohttp

WITHHELD = "api_key_withheld"
ROOT = 0
READ_SECONDS = 2.0
"""How long a key file may take: one on a dead mount costs the key, and no more than one thread."""

Found = tuple[str, int]
"""A key, and the user who owns its file."""
_LOOPBACK = {4: "127.0.0.1", 6: "::1"}
_ANY = {4: ("0.0.0.0", "::"), 6: ("::",)}  # noqa: S104  (compared with what others bind to)


def read_key(file: Path) -> Found | None:
    """Return what a key file holds, None where that is no key."""
    try:
        if not file.is_file():  # a pipe would block
            return None
        owner = file.stat().st_uid
        key = file.read_text("ascii").strip()
    except (OSError, ValueError):
        return None
    return (key, owner) if key and key.isprintable() else None


Place = tuple[str, str, int]
"""Where a key may go: the network namespace, "" for our own, and the address and port in it."""


@dataclass(frozen=True, slots=True)
class _Key:
    header: str = field(repr=False)
    users: frozenset[int]
    witness: int | str  # the process in whose network namespace it is looked who listens


@dataclass(slots=True)
class ApiKeys:
    """The keys that one collector attaches, by the place that they are for."""

    procfs: Procfs = field(default_factory=Procfs)
    read: Callable[[Path], Found | None] = read_key
    _reads: Reads[Found | None] = field(default_factory=lambda: Reads("api key"))
    _keys: dict[Place, _Key] = field(default_factory=dict)

    async def authorization(
        self, collector: str, server: Server, api_key_file: str | None, uid: int | None
    ) -> tuple[dict[str, str], tuple[Failure, ...]]:
        """Return the header that carries the key of this file; without a usable key, none and a failure."""
        place = (server.network, _plain(server.address or ""), server.launch.port or 0)
        self._keys.pop(place, None)
        if api_key_file is None or (server.network and not server.listening):  # nobody is there yet to be shown it
            return {}, ()
        found = await self._found(api_key_file)
        if found is None:
            return {}, (Failure(collector, "api_key_unreadable", api_key_file, server.name),)
        text, owner = found
        users = frozenset(
            (set() if server.network else {ROOT, os.geteuid(), owner}) | (set() if uid is None else {uid})
        )
        key = _Key(f"Bearer {text}", users, server.processes[0].pid if server.network else "self")
        if foreign := self._foreign(place, key):
            return {}, (Failure(collector, WITHHELD, foreign, server.name),)
        self._keys[place] = key
        return {"Authorization": key.header}, ()

    async def _found(self, file: str) -> Found | None:
        try:
            return await self._reads.read(file, lambda: self.read(Path(file)), READ_SECONDS)
        except asyncio.TimeoutError:
            return None

    def request_class(self) -> "type[aiohttp.ClientRequest]":
        """Return the requests of a session that shows a key to nobody else."""
        import aiohttp  # noqa: PLC0415 only who probes needs it

        keys = self

        class Request(aiohttp.ClientRequest):
            async def send(self, conn: aiohttp.connector.Connection) -> aiohttp.ClientResponse:
                """Send it, once it is certain who is at the other end."""
                if header := self.headers.get("Authorization"):
                    keys.require(self.url.host or "", self.url.port or 0, header)
                return await super().send(conn)

        return Request

    def require(self, address: str, port: int, header: str) -> None:
        """Raise NotMadeError unless this key may be shown to who listens there now."""
        place = (networks.here(), _plain(address), port)
        key = self._keys.get(place)
        if key is None or key.header != header:
            raise NotMadeError(WITHHELD, f"no key is for port {port}")
        if foreign := self._foreign(place, key):
            raise NotMadeError(WITHHELD, foreign)

    def _foreign(self, place: Place, key: _Key) -> str:
        """Say in a sentence which other user has the port, nothing where none has."""
        network, _, port = place
        listening = {listener.uid for listener in self._listeners(place, key.witness)}
        if network and not listening:
            return f"nobody is seen to listen on port {port} of that network namespace"
        others = listening - key.users
        if not others:
            return ""
        who = " and ".join(f"user {uid}" for uid in sorted(others))
        return f"{who} listens on port {port}, which may not know the key; see servers[].uid"

    def _listeners(self, place: Place, witness: int | str) -> list[Listener]:
        """List those to which a connection could go: the kernel prefers the one that is bound to just this address."""
        network, address, port = place
        if network and not self._is_in(witness, network):
            return []
        if not network and not _is_of_this_node(address):
            return []
        ours = [listener for listener in self.procfs.listeners(witness) if listener.port == port]
        for name in (address, *_ANY[ipaddress.ip_address(address).version]):
            if found := [listener for listener in ours if listener.address == name]:
                return found
        return []

    def _is_in(self, pid: int | str, network: str) -> bool:
        try:
            return self.procfs.link(pid, "ns/net") == network
        except PermissionError:
            return False


def _plain(address: str) -> str:
    """Write an address as the kernel does, and as what it leads to."""
    literal = ipaddress.ip_address(address)
    if isinstance(literal, ipaddress.IPv6Address) and literal.ipv4_mapped:
        literal = literal.ipv4_mapped
    return _LOOPBACK[literal.version] if literal.is_unspecified else str(literal)


def _is_of_this_node(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as tried:
        try:
            tried.bind((address, 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True
