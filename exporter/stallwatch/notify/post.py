"""How is one message sent, and what came of it?

One POST over a connection of its own, past no redirect and without a look at the answer's body; certificates are
verified with the system's CAs, a proxy is taken from the environment. What is said of a failure is its kind alone.
"""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from yarl import URL

from stallwatch import __version__, aside
from stallwatch.http_probe import ERRORS, NotMadeError, result_of_error
from stallwatch.notify.address import AddressError, proxy_of, read_url
from stallwatch.notify.names import Names
from stallwatch.notify.tally import Result
from stallwatch.trust import Trust

WITHIN = 10.0
READ_WITHIN = 2.0
"""How long the file may take: one on a dead mount costs a try, and no more than one thread."""
TRY_AGAIN = frozenset({408, 429})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one POST, and in a few words why it was not delivered."""

    result: Result
    why: str = ""


class Post:
    """Sends messages to the URL in a file, which is read for each."""

    def __init__(self, names: Names | None = None, within: float = WITHIN, trust: ssl.SSLContext | None = None) -> None:
        self._names = names or Names()
        self._within = within
        self._trust = trust
        self._systems = Trust(ssl.SSLContext)
        self._reading: dict[Path, asyncio.Future[URL]] = {}

    async def url(self, file: Path) -> URL:
        """Return the URL in this file; raises AddressError."""
        if file not in self._reading:
            self._reading[file] = aside.begin(lambda: read_url(file), "webhook url")
        reading = self._reading[file]
        done, _ = await asyncio.wait({reading}, timeout=READ_WITHIN)
        if not done:
            raise AddressError(f"not read within {READ_WITHIN:g} s")
        self._reading.pop(file, None)
        return reading.result()

    async def send(self, file: Path, body: bytes) -> Outcome:
        """Post a body of JSON to the URL in this file."""
        try:
            return _outcome(await self._status(await self.url(file), body))
        except AddressError as error:
            return Outcome("failed", f"its file: {error}")
        except NotMadeError as error:
            return Outcome("failed", error.reason)
        except ERRORS as error:
            return Outcome("failed", _kind(error))

    async def _status(self, url: URL, body: bytes) -> int:
        connector = aiohttp.TCPConnector(force_close=True, use_dns_cache=False, resolver=self._names)
        session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._within),
            headers={"User-Agent": f"stallwatch/{__version__}", "Content-Type": "application/json"},
            auto_decompress=False,
            trust_env=False,  # it would also read .netrc, in the event loop
        )
        async with session:
            proxy = proxy_of(url)
            encrypted = url.scheme == "https" or (proxy is not None and proxy.scheme == "https")
            # aiohttp was not to load the CAs of the system, see `lightly`.
            trust = (self._trust or await self._systems.of_system()) if encrypted else True
            answer = await session.post(url, data=body, allow_redirects=False, proxy=proxy, ssl=trust)
            answer.close()
            return answer.status


def _outcome(status: int) -> Outcome:
    if 200 <= status < 300:
        return Outcome("delivered")
    refused = 400 <= status < 500 and status not in TRY_AGAIN
    redirect = ", a redirect, which is not followed" if 300 <= status < 400 else ""
    return Outcome("given_up" if refused else "failed", f"HTTP {status}{redirect}")


def _kind(error: BaseException) -> str:
    """Name an error without its text, in which the URL may stand."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "name_not_resolved"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy answers HTTP {error.status}"
    try:
        return result_of_error(error)
    except NotMadeError as own:
        return own.reason
