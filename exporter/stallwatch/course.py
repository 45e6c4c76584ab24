"""How far has one HTTP request come, and how long did each part of it take?"""

import ssl
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # whoever only looks at readings does not load it
    import aiohttp

Clock = Callable[[], float]


@dataclass(slots=True)
class Course:
    """How far one request has come, in seconds of its clock."""

    clock: Clock
    opening: float | None = None
    handshake: float | None = None
    connected: float | None = None
    headers: float | None = None
    body: float | None = None
    status: int | None = None

    def begin(self) -> None:
        """Have the handshakes that this task makes from now on noted here."""
        _ASKING.set(self)

    def phases(self) -> dict[str, float]:
        """Return how long each part took that is over, in seconds."""
        borders = (
            ("connect", self.opening, self.connected if self.handshake is None else self.handshake),
            ("tls", self.handshake, self.connected),
            ("first_byte", self.connected, self.headers),
            ("transfer", self.headers, self.body),
        )
        return {name: end - begin for name, begin, end in borders if begin is not None and end is not None}


_ASKING: ContextVar[Course] = ContextVar("asking")
"""The course of the request that a task makes; its TLS context is that of other requests as well."""


class TimedContext(ssl.SSLContext):
    """Notes when a handshake begins, since the HTTP client times TCP and TLS as one."""

    def wrap_bio(self, *args: Any, **keywords: Any) -> ssl.SSLObject:
        """Begin a handshake."""
        course = _ASKING.get()
        course.handshake = course.clock()
        return super().wrap_bio(*args, **keywords)


def tracing() -> "aiohttp.TraceConfig":
    """Return what notes in the course that a request is given when its connection is opened and made."""
    import aiohttp  # noqa: PLC0415 only who probes needs it

    async def opening(_session: "aiohttp.ClientSession", trace: SimpleNamespace, _event: object) -> None:
        trace.trace_request_ctx.opening = trace.trace_request_ctx.clock()

    async def connected(_session: "aiohttp.ClientSession", trace: SimpleNamespace, _event: object) -> None:
        trace.trace_request_ctx.connected = trace.trace_request_ctx.clock()

    config = aiohttp.TraceConfig()
    config.on_connection_create_start.append(opening)
    config.on_connection_create_end.append(connected)
    return config
