"""What is each client doing, and since when?

aiohttp waits for a slow client for ever. Here a connection has `PATIENCE` seconds for one whole exchange, from the
first byte (or the connect) to the last one that was taken, and `IDLE` seconds until the next; and every answer goes out
under the same headers, those that aiohttp makes by itself too.
"""

import asyncio
import fcntl
import logging
import ssl
import sys
import termios
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Protocol

from aiohttp import web
from multidict import CIMultiDict

logger = logging.getLogger("stallwatch.web")

PATIENCE = 15.0
IDLE = 120.0
POLL = 0.02
LONGEST_LINE = 8190
MOST_BYTES = 128 * 1024
"""So much may come in one exchange, with headers, body and all."""


class Rules(Protocol):
    """What a connection asks of the gate."""

    def welcomes(self, certificate: Mapping[str, Any] | None) -> bool:
        """Say whether a client with this certificate may come in."""

    def dress(self, headers: CIMultiDict[str]) -> None:
        """Add the headers that every answer has."""

    def answered(self, connection: web.RequestHandler) -> None:
        """Take note that a request is over, however it went."""


class Connection(web.RequestHandler):
    """One client: `since` is when it began what it does now, `welcome` that it once got an answer that is no error."""

    def __init__(
        self,
        server: web.Server,
        rules: Rules,
        context: ssl.SSLContext | None,
        lost: Callable[["Connection"], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=IDLE,
            access_log=None,  # type: ignore[arg-type]
            logger=logger,
            max_line_size=LONGEST_LINE,
            max_field_size=LONGEST_LINE,
            lingering_time=1.0,
        )
        self.context = context
        self.begun: asyncio.Task[None] | None = None  # what makes it out of a socket
        self.asking = True
        self.since = loop.time()
        self.sending_since: float | None = None
        self.welcome = False
        self._rules = rules
        self._lost = lost
        self._received = 0
        self._has_more = self._is_last = self._is_dropped = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless the client's certificate is not one of those that may come in."""
        super().connection_made(transport)
        if not self._rules.welcomes(transport.get_extra_info("peercert")):
            self.drop()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Tell the others that it is gone."""
        super().connection_lost(exc)
        self._rules.answered(self)
        self._lost(self)

    def data_received(self, data: bytes) -> None:
        """Note that a request comes, and take no more of it than one may have."""
        if self._is_dropped:
            return
        if not self.asking:
            self.asking, self.since, self._received = True, self._loop.time(), 0
        self._has_more = True
        self._received += len(data)
        if self._received > MOST_BYTES:
            self.drop()
        else:
            super().data_received(data)

    def begin(self) -> None:
        """Take note that a whole request is there, and now worked on."""
        self.asking, self.since, self._has_more = True, self._loop.time(), False

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer, under the headers that all have."""
        if isinstance(resp, web.StreamResponse) and not resp.prepared:
            self._rules.dress(resp.headers)
            if self._is_last:
                resp.force_close()
        self.sending_since = self._loop.time()
        try:
            sent, is_broken = await super().finish_response(request, resp, start_time)
            while self.transport is not None and _unsent(self.transport):  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(POLL)
        finally:
            self.sending_since = None
            self._rules.answered(self)
        self.asking, self.since, self._received = self._has_more, self._loop.time(), 0
        self.welcome = self.welcome or sent.status < HTTPStatus.BAD_REQUEST
        return sent, is_broken

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it quotes the client
    ) -> web.StreamResponse:
        """Answer what is no HTTP, or what we could not do; only the latter is worth a line of the log."""
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            logger.error("a request failed", exc_info=exc, extra={"method": request.method, "path": request.path})
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer is sent already")
        answer = web.Response(status=status, text=f"{HTTPStatus(status).phrase}\n")
        answer.force_close()
        return answer

    def is_overdue(self, now: float) -> bool:
        """Say whether it has taken longer than it may for what it does."""
        return now - self.since > (PATIENCE if self.asking else IDLE)

    def end(self) -> None:
        """Close it after the exchange that goes on, at once when there is none."""
        self._is_last = True
        if not self.asking:
            self.drop()

    def drop(self) -> None:
        """Close it whatever goes on."""
        self._is_dropped = True
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()
        elif self.begun is not None:
            self.begun.cancel()


def _unsent(transport: asyncio.BaseTransport) -> bool:
    """Say whether the other side has yet to take something; what transports themselves say leaves out a part of it."""
    one = transport.get_extra_info("socket")
    if one is None or one.fileno() < 0:  # it is closed
        return False
    return int.from_bytes(fcntl.ioctl(one.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder) > 0
