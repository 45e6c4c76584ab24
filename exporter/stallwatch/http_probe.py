"""How is a server of this node asked over HTTP, and what does an answer that fails say?

Only a literal address is asked, on a connection of its own, with no proxy, no cookie and no redirect.
"""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
from yarl import URL

from stallwatch import __version__
from stallwatch.exchange import NotMadeError
from stallwatch.snapshot import Server

__all__ = ["ERRORS", "NotMadeError", "open_session", "result_of_error", "url"]

ERRORS = (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError)

_RESULT_OF_ERRNO = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timeout",
    errno.ECONNRESET: "reset",
    errno.ECONNABORTED: "reset",
    errno.EPIPE: "reset",
}
_OUR_OWN_LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)


def open_session(
    trace_configs: Sequence[aiohttp.TraceConfig] = (),
    request_class: type[aiohttp.ClientRequest] = aiohttp.ClientRequest,
    socket_factory: Callable[[tuple[Any, ...]], socket.socket] | None = None,
) -> aiohttp.ClientSession:
    """Make an HTTP session that keeps no connection, cookie or name."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True, use_dns_cache=False, limit=0, socket_factory=socket_factory),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"User-Agent": f"stallwatch/{__version__}", "Accept-Encoding": "identity"},
        auto_decompress=False,
        trust_env=False,
        trace_configs=list(trace_configs),
        request_class=request_class,
    )


def url(server: Server, path: str) -> URL:
    """Return where a path of a server is."""
    scheme = "https" if server.launch.tls else "http"
    return URL.build(scheme=scheme, host=server.address or "", port=server.launch.port, path=path)


def result_of_error(error: BaseException) -> str:
    """Name what came instead of an answer; raises NotMadeError where it was our own doing."""
    cause = error.__cause__ or error
    if isinstance(error, asyncio.TimeoutError):
        return "timeout"
    if isinstance(error, aiohttp.ClientSSLError) or isinstance(cause, ssl.SSLError):
        return "tls_error"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "empty"
    if isinstance(cause, OSError):
        if cause.errno in _OUR_OWN_LIMITS:
            raise NotMadeError("no_socket", os.strerror(cause.errno)) from error
        return _RESULT_OF_ERRNO.get(cause.errno or 0, "unreachable")
    return "invalid"
