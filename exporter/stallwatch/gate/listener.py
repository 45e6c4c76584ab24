"""How do clients come in, so that none can keep another one out?

Each connection is accepted here, under the certificate of this moment. There are never more than `MOST_CONNECTIONS`:
for one more, the one goes that has not got an answer for the longest time, and only then one that has.
"""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import ssl
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from stallwatch.gate.admission import Gate
from stallwatch.gate.connections import PATIENCE, Connection
from stallwatch.values import split_listen_address

logger = logging.getLogger("stallwatch.web")

MOST_CONNECTIONS = 256
BACKLOG = 1024
LOOK_SECONDS = 1.0
_SHUTDOWN_SECONDS = 0.2  # twice that where a client hangs


class ListenError(Exception):
    """The address cannot be listened on."""


class Listener:
    """Serves an application to those whom the gate lets in."""

    def __init__(self, app: web.Application, gate: Gate, most: int | None = None) -> None:
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
        self._gate = gate
        self._most = most or _most_connections()
        self._sockets: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.connections: set[Connection] = set()

    @property
    def names(self) -> list[str]:
        """List where it listens, as a URL has it."""
        return sorted(_shown(one.getsockname()) for one in self._sockets)

    async def open(self, address: str) -> None:
        """Begin to serve there; raises ListenError."""
        try:
            self._sockets = list(_bound(*split_listen_address(address)))
        except OSError as error:
            reason = os.strerror(error.errno).lower() if error.errno else str(error)
            raise ListenError(f"{address}: {reason}") from error
        await self._runner.setup()
        accepting = [self._accept(one) for one in self._sockets]
        self._tasks = [asyncio.create_task(work) for work in (*accepting, self._look_after())]

    async def close(self) -> None:
        """Let nobody in any more, and end what goes on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self._sockets:
            one.close()
        begun = [connection.begun for connection in self.connections if connection.begun]
        for connection in self.connections:
            if connection.transport is None:
                connection.drop()
        await asyncio.gather(*begun, return_exceptions=True)
        await self._runner.cleanup()

    async def _accept(self, listening: socket.socket) -> None:
        loop, fault = asyncio.get_running_loop(), 0
        while True:
            try:
                client, _ = await loop.sock_accept(listening)
            except OSError as error:
                if fault != (fault := error.errno or 0):
                    logger.warning("no connection can be accepted", extra={"error": error.strerror})
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._drop_a_stranger()
                await asyncio.sleep(0.05)  # what is wrong may last
                continue
            fault = 0
            self._admit(client)
            await asyncio.sleep(0)  # as long as many come, accepting never waits

    def _admit(self, client: socket.socket) -> None:
        while len(self.connections) >= self._most:
            self._make_room()
        server = self._runner.server
        if server is None:  # it is being closed
            client.close()
            return
        connection = Connection(server, self._gate, self._gate.context, self.connections.discard)
        self.connections.add(connection)
        connection.begun = asyncio.create_task(self._begin(connection, client))

    async def _begin(self, connection: Connection, client: socket.socket) -> None:
        secure: dict[str, Any] = {}
        if connection.context is not None:
            secure = {"ssl": connection.context, "ssl_handshake_timeout": PATIENCE}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, client, **secure)
        except (OSError, ssl.SSLError):  # it went, or it is not one whom we trust
            self._forget(connection, client)
        except asyncio.CancelledError:
            self._forget(connection, client)
            raise

    def _forget(self, connection: Connection, client: socket.socket) -> None:
        self.connections.discard(connection)
        client.close()

    def _drop_a_stranger(self) -> None:
        """Make room without ending one who gets answers: where no descriptor is left, that would help nobody."""
        if not all(one.welcome for one in self.connections):
            self._make_room()

    def _make_room(self) -> None:
        if self.connections:
            first = min(self.connections, key=lambda one: (one.welcome, one.since))
            self.connections.discard(first)
            first.drop()

    async def _look_after(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for connection in list(self.connections):
                if connection.is_overdue(loop.time()):
                    connection.drop()
                elif connection.context is not self._gate.context:
                    connection.end()


def _most_connections() -> int:
    """Leave most descriptors to what else is open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(8, min(MOST_CONNECTIONS, soft // 4))


def _bound(host: str | None, port: int) -> Iterator[socket.socket]:
    if host is None and socket.has_dualstack_ipv6():
        yield _listening("::", port, dualstack_ipv6=True)
        return
    first = _listening({None: "0.0.0.0", "localhost": "127.0.0.1"}.get(host, host or ""), port)  # noqa: S104 - asked for
    yield first
    if host == "localhost" and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # a node may do without ::1
            yield _listening("::1", first.getsockname()[1])


def _listening(host: str, port: int, **options: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    one = socket.create_server((host, port), family=family, backlog=BACKLOG, **options)
    one.setblocking(False)
    return one


def _shown(name: tuple[Any, ...]) -> str:
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
