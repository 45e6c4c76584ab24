"""Whose request is answered, and how many at once?

In this order: only requests that make sense, no faster than the rate that is allowed, only those who know a password
where there are any, and no more at once than `web.max_requests`.
"""

import base64
import binascii
import math
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from multidict import CIMultiDict

from stallwatch.gate.connections import Connection
from stallwatch.gate.passwords import BusyError, Passwords
from stallwatch.gate.tls import TlsLoader, has_allowed_name
from stallwatch.gate.webfile import Rate, WebFile, read_web_file

MOST_BODY = 64 * 1024
SLOW_AFTER = 1.0
"""An answer that the client has not taken after so many seconds gives way to another request."""

ORDERS = ("/-/reload", "/-/gpu/release")
_OWN = "/-/"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Policy:
    """What the web file says, with its certificates read."""

    file: WebFile = field(default_factory=WebFile)
    context: ssl.SSLContext | None = None


class PolicyLoader:
    """Reads the web file, and knows by `seen` which other files it named."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tls = TlsLoader(str(path))

    def load(self) -> Policy:
        """Read it; raises ConfigError."""
        file = read_web_file(self._path)
        return Policy(file, self._tls.context(file.tls) if file.tls else None)

    def seen(self) -> Mapping[Path, str]:
        """Map the files that the last load read to the digests of what they held."""
        return self._tls.seen


class Bucket:
    """Tokens for requests, one more each interval."""

    def __init__(self, rate: Rate, clock: Callable[[], float]) -> None:
        self.rate = rate
        self._clock = clock
        self._tokens = float(rate.burst)
        self._filled = clock()

    def take(self) -> bool:
        """Take a token if there is one."""
        now = self._clock()
        self._tokens = min(self.rate.burst, self._tokens + (now - self._filled) / self.rate.interval)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Gate:
    """Lets requests in by the policy of the moment; `headers` are those of every answer."""

    def __init__(
        self, headers: Mapping[str, str], most_requests: int = 40, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._headers = {**headers, "Server": "stallwatch"}  # else aiohttp names its version
        self._most = most_requests
        self._clock = clock
        self._policy = Policy()
        self._passwords: Passwords | None = None
        self._bucket: Bucket | None = None
        self._running: set[web.RequestHandler] = set()

    @property
    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context for connections of this moment, None for plain ones."""
        return self._policy.context

    def apply(self, policy: Policy) -> None:
        """Go on with another policy; who gave a password that is still the right one need not wait again."""
        self._policy, users, rate = policy, policy.file.users, policy.file.rate
        if self._passwords is None or self._passwords.users != users:
            self._passwords = Passwords(users) if users else None
        if self._bucket is None or self._bucket.rate != rate:
            self._bucket = Bucket(rate, self._clock) if rate else None

    def welcomes(self, certificate: Mapping[str, Any] | None) -> bool:
        """Say whether a client with this certificate may come in."""
        tls = self._policy.file.tls
        return tls is None or not tls.allowed_sans or has_allowed_name(certificate, tls.allowed_sans)

    def dress(self, headers: CIMultiDict[str]) -> None:
        """Add the headers that every answer has, and those that the web file wants."""
        for name, value in self._headers.items():
            headers.setdefault(name, value)
        for name, value in self._policy.file.headers.items():
            headers.popall(name, None)
            if value:
                headers[name] = value

    def answered(self, connection: web.RequestHandler) -> None:
        """Take note that a request is over."""
        self._running.discard(connection)

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request, or say why not."""
        if isinstance(request.protocol, Connection):
            request.protocol.begin()
        refusal = _senseless(request) or self._too_fast() or await self._stranger(request) or self._too_many(request)
        return refusal or await handler(request)

    def _too_fast(self) -> web.Response | None:
        if self._bucket is None or self._bucket.take():
            return None
        return _refusal(429, "too many requests", {"Retry-After": str(math.ceil(self._bucket.rate.interval))})

    async def _stranger(self, request: web.Request) -> web.Response | None:
        passwords = self._passwords
        if passwords is None:
            return None
        given = credentials(request.headers.get("Authorization", ""))
        try:
            if given and await passwords.right(*given, request.remote or ""):
                return None
        except BusyError:
            return _refusal(429, "too many passwords are being checked", {"Retry-After": "1"})
        return _refusal(401, "unauthorized", {"WWW-Authenticate": 'Basic realm="stallwatch", charset="UTF-8"'})

    def _too_many(self, request: web.Request) -> web.Response | None:
        if request.path.startswith(_OWN) and request.path not in ORDERS:
            return None  # whether the exporter lives must be told also when it is busy
        if self._most and len(self._running) >= self._most and not self._end_slowest():
            return _refusal(503, "too many requests at once", {"Retry-After": "1"})
        self._running.add(request.protocol)
        return None

    def _end_slowest(self) -> bool:
        since = {one: one.sending_since for one in self._running if isinstance(one, Connection)}
        sending = {one: begun for one, begun in since.items() if begun is not None}
        slowest = min(sending, key=lambda one: sending[one], default=None)
        if slowest is None or self._clock() - sending[slowest] < SLOW_AFTER:
            return False
        self._running.discard(slowest)
        slowest.drop()
        return True


def _senseless(request: web.Request) -> web.Response | None:
    allowed = ("GET", "HEAD", "POST") if request.path in ORDERS else ("GET", "HEAD")
    if request.method not in allowed:
        return _refusal(405, "method not allowed", {"Allow": "POST" if request.path in ORDERS else "GET, HEAD"})
    if not request.raw_path.startswith("/"):
        return _refusal(400, "only a path can be asked for")
    if (request.content_length or 0) > MOST_BODY:
        return _refusal(413, "too much")
    return None


def _refusal(status: int, text: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers=headers)


def credentials(header: str) -> tuple[bytes, bytes] | None:
    """Return name and password of an `Authorization: Basic` header, None for any other."""
    scheme, _, told = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(told.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (user, password) if colon else None
