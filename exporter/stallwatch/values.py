"""What may stand in a setting?

The plain types of the configuration: each says what it allows, in the words that an error message uses. Durations are
seconds here, `1h30m` outside.
"""

import ipaddress
import re
from typing import Annotated, Any

from msgspec import Meta

USUAL_URL = "http://127.0.0.1:19847"
"""Where the exporter of this node listens unless it is told otherwise."""

LONGEST = 31_536_000.0  # a year: timers of the event loop overflow far above
UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>[0-9]+(?:\.[0-9]+)?){unit}(?![a-z]))?" for unit in UNITS))
_PLAIN = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_LISTEN = re.compile(r"(?P<host>\[[^\[\]]+\]|[^:\[\]]*):(?P<port>[0-9]{1,5})")


def parse_duration(raw: Any) -> Any:
    """Return the seconds of `500ms`, `15s`, `1h30m` or a plain number; what is no text is returned as it is."""
    if not isinstance(raw, str):
        return raw
    if _PLAIN.fullmatch(raw):
        return float(raw)
    found = _DURATION.fullmatch(raw)
    if not raw or found is None:
        raise ValueError(f"no duration: {raw}")
    return sum(float(number) * UNITS[unit] for unit, number in found.groupdict().items() if number)


def format_duration(seconds: float) -> str:
    """Write seconds the way that `parse_duration` reads them."""
    left = round(seconds * 1000)
    parts = []
    for unit, size in UNITS.items():
        count, left = divmod(left, round(size * 1000))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_address(raw: Any) -> Any:
    """Return a literal IP address or `localhost` unchanged; a name that must be resolved first is refused."""
    if isinstance(raw, str) and raw != "localhost":
        ipaddress.ip_address(raw)
    return raw


def split_listen_address(address: str) -> tuple[str | None, int]:
    """Return host (None: every address of the node) and port of `:19847`, `127.0.0.1:19847` or `[::1]:19847`."""
    found = _LISTEN.fullmatch(address)
    if found is None or int(found["port"]) > 65535:
        raise ValueError(f"no listen address: {address}")
    host = found["host"]
    if host.startswith("["):
        ipaddress.IPv6Address(host[1:-1])
    elif host:
        parse_address(host)
    return host.strip("[]") or None, int(found["port"])


def _parse_listen_address(raw: Any) -> Any:
    if isinstance(raw, str):
        split_listen_address(raw)
    return raw


# `extra` is for the reader of settings: `parse` turns what was written into the value, `file` marks a file name that is
# relative to the configuration, `secret` a value that no message may show, `partial` a mapping of some of those keys.
Duration = Annotated[
    float,
    Meta(
        gt=0, le=LONGEST, description="a duration above 0 such as 500ms, 15s or 1h30m", extra={"parse": parse_duration}
    ),
]
# A snapshot is old after 30 s for the page and after 90 s for the rules, and each look costs some milliseconds.
LookInterval = Annotated[
    float, Meta(ge=0.05, le=20, description="a duration from 50ms to 20s", extra={"parse": parse_duration})
]
ProbeTimeout = Annotated[
    float, Meta(ge=1, le=LONGEST, description="a duration of at least 1s", extra={"parse": parse_duration})
]
ProbeInterval = Annotated[
    float, Meta(ge=60, le=LONGEST, description="a duration of at least 1m", extra={"parse": parse_duration})
]
Port = Annotated[int, Meta(ge=1, le=65535, description="a port from 1 to 65535")]
Count = Annotated[int, Meta(ge=1, le=65536, description="a whole number from 1")]
ByteCount = Annotated[int, Meta(ge=1_000_000, le=2**50, description="a number of bytes from 1000000")]
MostRequests = Annotated[int, Meta(ge=0, le=65536, description="a number of requests, 0 for any number")]
UserId = Annotated[int, Meta(ge=0, le=2**32 - 2, description="the number of a user, 0 for root")]
GpuIndex = Annotated[int, Meta(ge=0, le=65536, description="a GPU number from 0")]
ListenAddress = Annotated[
    str,
    Meta(
        description="an address such as :19847, 127.0.0.1:19847 or [::1]:19847", extra={"parse": _parse_listen_address}
    ),
]
Address = Annotated[
    str, Meta(description="an IP address such as 127.0.0.1 or ::1, or localhost", extra={"parse": parse_address})
]
ServerName = Annotated[
    str, Meta(pattern=r"\A[!-~]{1,128}\Z", description="a name of 1 to 128 printable ASCII characters without spaces")
]
GroupName = Annotated[
    str, Meta(pattern=r"\A[!-~]{1,128}\Z", description="a word of 1 to 128 printable ASCII characters without spaces")
]
TelemetryPath = Annotated[
    str,
    Meta(
        pattern=r"\A(?!/-(?:/|\Z))(?!/api(?:/|\Z))(?:/[A-Za-z0-9._~-]+)+\Z",
        description="a path such as /metrics, and none of /, /-/... and /api/..., which are taken",
    ),
]
HealthPath = Annotated[
    str, Meta(pattern=r"\A/(?!/)[!-~]{0,255}\Z", description="a path that begins with one / such as /health")
]
FileName = Annotated[str, Meta(pattern=r"\A[^\x00]+\Z", description="a file name", extra={"file": True})]
SecretFileName = Annotated[
    str, Meta(pattern=r"\A[^\x00]+\Z", description="a file name", extra={"file": True, "secret": True})
]
