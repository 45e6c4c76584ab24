"""To whom may a server's API key be shown?

Only to a process that listens on the server's port and is of a user who may know the key: the one that the
configuration names (`servers[].uid`), root, our own user, or the owner of the file that holds it. A title and a flag
can be anybody's; the user of a listening socket is what the kernel says. An address that is none of this node's is not
asked about, since nobody here can listen on it, and only the configuration leads there.

It is looked up before the key is attached, and again when the connection stands and nothing has been sent: a listener
that is there both times is the one that took the connection.
"""

import asyncio
import errno
import ipaddress
import os
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

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


@dataclass(frozen=True, slots=True)
class _Key:
    header: str = field(repr=False)
    users: frozenset[int]


@dataclass(slots=True)
class ApiKeys:
    """The keys that one collector attaches, by the address and port that they are for."""

    procfs: Procfs = field(default_factory=Procfs)
    read: Callable[[Path], Found | None] = read_key
    _reads: Reads[Found | None] = field(default_factory=lambda: Reads("api key"))
    _keys: dict[tuple[str, int], _Key] = field(default_factory=dict)

    async def authorization(
        self, collector: str, server: Server, api_key_file: str | None, uid: int | None
    ) -> tuple[dict[str, str], tuple[Failure, ...]]:
        """Return the header that carries the key of this file; without a usable key, none and a failure."""
        place = (_plain(server.address or ""), server.launch.port or 0)
        self._keys.pop(place, None)
        if api_key_file is None:
            return {}, ()
        found = await self._found(api_key_file)
        if found is None:
            return {}, (Failure(collector, "api_key_unreadable", api_key_file, server.name),)
        key, owner = found
        users = frozenset({ROOT, os.geteuid(), owner} | (set() if uid is None else {uid}))
        if foreign := self._foreign(*place, users):
            return {}, (Failure(collector, WITHHELD, foreign, server.name),)
        known = self._keys[place] = _Key(f"Bearer {key}", users)
        return {"Authorization": known.header}, ()

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
        address = _plain(address)
        key = self._keys.get((address, port))
        if key is None or key.header != header:
            raise NotMadeError(WITHHELD, f"no key is for port {port}")
        if foreign := self._foreign(address, port, key.users):
            raise NotMadeError(WITHHELD, foreign)

    def _foreign(self, address: str, port: int, users: Collection[int]) -> str:
        """Say in a sentence which other user has the port, nothing where none has."""
        others = {listener.uid for listener in self._listeners(address, port)} - set(users)
        if not others:
            return ""
        who = " and ".join(f"user {uid}" for uid in sorted(others))
        return f"{who} listens on port {port}, which may not know the key; see servers[].uid"

    def _listeners(self, address: str, port: int) -> list[Listener]:
        """List those to which a connection could go: the kernel prefers the one that is bound to just this address."""
        if not _is_of_this_node(address):
            return []
        ours = [listener for listener in self.procfs.listeners("self") if listener.port == port]
        for name in (address, *_ANY[ipaddress.ip_address(address).version]):
            if found := [listener for listener in ours if listener.address == name]:
                return found
        return []


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
