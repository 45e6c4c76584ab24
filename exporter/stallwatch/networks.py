"""How is a server asked that runs in another network namespace, as in a container?

A socket belongs to the namespace in which it was made, whoever connects it later. So a thread enters that of the
server, makes one socket there and ends; the event loop and all other threads stay where they are. It takes
CAP_SYS_ADMIN, and CAP_SYS_PTRACE where the server is another user's.

A request gets the one socket that was made for it and no other: without one it is not made at all, since the same
address means another server in our own namespace.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from stallwatch.aside import Reads
from stallwatch.exchange import NotMadeError
from stallwatch.snapshot import Server

CANNOT_ENTER = "other_network_namespace"
HINT = "give the exporter CAP_SYS_ADMIN, or publish the port and name it as servers[].host and port"
ENTER_SECONDS = 2.0

_CLONE_NEWNET = 0x40000000


@dataclass(slots=True)
class _Door:
    """The namespace that a request goes out from, and the socket for it until it is taken."""

    network: str
    made: socket.socket | None


_DOOR: ContextVar[_Door | None] = ContextVar("door", default=None)
"""Of the request that a task makes; its HTTP session is that of other requests as well."""


def _enter(handle: int) -> None:
    import ctypes  # noqa: PLC0415  (0.7 MiB, which a node without such servers need not spend)

    call = ctypes.CDLL(None, use_errno=True).setns
    if call(ctypes.c_int(handle), ctypes.c_int(_CLONE_NEWNET)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@dataclass(slots=True)
class Networks:
    """Makes the sockets of one collector, one at a time for one server."""

    procfs: str = "/proc"
    enter: Callable[[int], None] = _enter
    seconds: float = ENTER_SECONDS
    _makings: Reads[socket.socket] = field(default_factory=lambda: Reads("network namespace"))

    @asynccontextmanager
    async def within(self, server: Server) -> AsyncIterator[None]:
        """Have the next connection in this context go out from where a server listens; raises NotMadeError."""
        if not server.network:
            yield
            return
        try:
            key = f"{server.name} {server.network} {_family(server)}"
            made = await self._makings.read(key, lambda: self._made(server), self.seconds)
        except asyncio.TimeoutError:
            raise NotMadeError(CANNOT_ENTER, f"it was not entered within {self.seconds:g} s") from None
        door = _Door(server.network, made)
        before = _DOOR.set(door)
        try:
            yield
        finally:
            _DOOR.reset(before)
            if door.made is not None:
                door.made.close()

    def _made(self, server: Server) -> socket.socket:
        try:
            for process in server.processes:
                with suppress(FileNotFoundError, ProcessLookupError):
                    if made := self._through(process.pid, server):
                        return made
        except PermissionError as error:
            raise NotMadeError(CANNOT_ENTER, f"it may not be entered: {HINT}") from error
        except OSError as error:
            raise NotMadeError(CANNOT_ENTER, f"it cannot be entered: {error.strerror}") from error
        raise NotMadeError(CANNOT_ENTER, "none of its processes is there any more")

    def _through(self, pid: int, server: Server) -> socket.socket | None:
        """Make a socket where a process is, None where the pid is another's by now; this thread stays there."""
        handle = os.open(f"{self.procfs}/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if f"net:[{os.fstat(handle).st_ino}]" != server.network:
                return None
            self.enter(handle)
            return socket.socket(_family(server), socket.SOCK_STREAM)
        finally:
            os.close(handle)


def _family(server: Server) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in (server.address or "") else socket.AF_INET


def here() -> str:
    """Name the network namespace that connections of this context go out from, "" for our own."""
    door = _DOOR.get()
    return door.network if door else ""


def open_socket(address: tuple[Any, ...]) -> socket.socket:
    """Return the socket for a connection to this address, which is that of `getaddrinfo`; raises NotMadeError."""
    door = _DOOR.get()
    if door is None:
        family, kind, protocol = address[:3]
        return socket.socket(family, kind, protocol)
    made, door.made = door.made, None
    if made is None:
        raise NotMadeError(CANNOT_ENTER, "one connection was made there, and another is wanted")
    return made
