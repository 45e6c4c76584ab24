"""What does the exporter that runs here say?

Asked of a literal address only, without a proxy, past no redirect, for a bounded time and a bounded answer: whoever
listens there must not be able to keep a command from coming to its end.
"""

import http.client
import ipaddress
import json
import ssl
import threading
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from stallwatch.answer import Answer
from stallwatch.config import ConfigError

ASK_TIMEOUT = 3.0
LOCKED = "it wants a password: give --http.config.file"
LARGEST_ANSWER = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Client:
    """As whom an exporter is asked, and whom that trusts: the usual where there is no context.

    On loopback it is verified only by a CA that is named, or by the name that its certificate has to be for.
    """

    authorization: str = field(default="", repr=False)
    context: ssl.SSLContext | None = None
    names_ca: bool = False
    server_name: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of each request."""
        return {"Authorization": self.authorization} if self.authorization else {}


ANYBODY = Client()


class RefusedError(Exception):
    """An exporter may be there, but does not tell us: the message says what it answered."""


def asked(url: str, timeout: float = ASK_TIMEOUT, client: Client = ANYBODY) -> dict[str, Any] | None:
    """Return the status, None where none answers; raises RefusedError, and ConfigError for a URL that is none."""
    place = place_of(url)
    outcome: list[dict[str, Any] | RefusedError | None] = []
    # A socket's timeout is for one read; an answer that drips would go on for ever.
    asking = threading.Thread(target=lambda: outcome.append(_answer(place, timeout, client)), daemon=True)
    asking.start()
    asking.join(timeout)
    found = outcome[0] if outcome else None
    if isinstance(found, RefusedError):
        raise found
    return found


def place_of(url: str) -> SplitResult:
    """Take a URL apart; raises ConfigError for one that is no address of an exporter."""
    wrong = "--url: expected http:// or https:// with an IP address or localhost, and a port"
    try:
        place = urlsplit(url)
        host, _port = place.hostname or "", place.port
        if host != "localhost":
            ipaddress.ip_address(host)
    except ValueError:
        raise ConfigError(wrong) from None
    if place.scheme not in ("http", "https"):
        raise ConfigError(wrong)
    return place


def _answer(place: SplitResult, timeout: float, client: Client) -> dict[str, Any] | RefusedError | None:
    connection = connection_to(place, timeout, client)
    try:
        connection.request("GET", f"{place.path.rstrip('/')}/api/v1/status", headers=client.headers)
        response = connection.getresponse()
        if response.status == http.client.UNAUTHORIZED:
            return RefusedError(f"HTTP 401, {'wrong password' if client.authorization else LOCKED}")
        if response.status != http.client.OK:
            return RefusedError(f"HTTP {response.status}")
        status: dict[str, Any] = json.loads(response.read(LARGEST_ANSWER))
        msgspec.convert(status, Answer)  # whatever program it is that has taken the port
    except ssl.SSLError as error:
        return RefusedError(f"TLS: {error.reason}")
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return None
    finally:
        connection.close()
    return status


def connection_to(place: SplitResult, timeout: float, client: Client = ANYBODY) -> http.client.HTTPConnection:
    """Return a connection that is made with the first request."""
    host = "127.0.0.1" if place.hostname == "localhost" else place.hostname or ""
    if place.scheme == "http":
        return http.client.HTTPConnection(host, place.port, timeout=timeout)
    context = client.context or ssl.create_default_context()
    if ipaddress.ip_address(host).is_loopback and not client.server_name:  # which a certificate seldom names
        context.check_hostname = False
        if not client.names_ca:
            context.verify_mode = ssl.CERT_NONE
    return _Connection(host, place.port, timeout, context, client.server_name or host)


class _Connection(http.client.HTTPSConnection):
    """A connection to an address whose certificate may be for another name."""

    def __init__(self, host: str, port: int | None, timeout: float, context: ssl.SSLContext, name: str) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._trusted, self._name = context, name

    def connect(self) -> None:
        """Connect, and require that name."""
        http.client.HTTPConnection.connect(self)
        self.sock = self._trusted.wrap_socket(self.sock, server_hostname=self._name)
