"""What does the file say that `--web.config.file` names?

It has the format of the Prometheus exporter toolkit, so that one file serves all exporters of a node. What cannot be
done here is an error that says so; nothing is ignored.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stallwatch.settings.checks import Checks
from stallwatch.settings.showing import shown_key

CLIENT_AUTH = ("NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert")
UNVERIFIED = {
    "RequestClientCert": "VerifyClientCertIfGiven or NoClientCert",
    "RequireAnyClientCert": "RequireAndVerifyClientCert",
    "RequireClientCert": "RequireAndVerifyClientCert",
}
VERSIONS = ("TLS12", "TLS13")
HEADERS: Mapping[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
MOST_EXPENSIVE = 18
_BCRYPT = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_TLS_KEYS = (
    *("cert", "key", "client_ca", "cert_file", "key_file", "client_ca_file", "client_auth_type"),
    *("client_allowed_sans", "min_version", "max_version", "cipher_suites", "prefer_server_cipher_suites"),
    "curve_preferences",
)


@dataclass(frozen=True, slots=True)
class Pem:
    """Certificates or a key: in a file, or written out."""

    file: Path | None = None
    text: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """How to speak TLS, in the words of the file."""

    certificate: Pem
    key: Pem
    client_ca: Pem | None = None
    client_auth: str = CLIENT_AUTH[0]
    allowed_sans: tuple[str, ...] = ()
    versions: tuple[str, str] = VERSIONS
    cipher_suites: tuple[str, ...] = ()
    prefer_server_cipher_suites: bool = True
    curves: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rate:
    """One request per `interval` seconds, and `burst` of them at once."""

    interval: float
    burst: int


@dataclass(frozen=True, slots=True)
class WebFile:
    """All that the file says; `users` maps names to bcrypt hashes, an empty value of `headers` takes one away."""

    tls: Tls | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    rate: Rate | None = None


def read_web_file(path: Path) -> WebFile:
    """Read the file, without the certificates that it names; raises ConfigError for what is wrong with it."""
    from stallwatch.settings.yaml_file import read_yaml  # noqa: PLC0415 YAML is loaded only where there is a file

    checks = Checks(str(path))
    raw = read_yaml(path)
    keys = ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")
    top = checks.mapping({} if raw is None else raw, "", keys)
    return WebFile(
        _tls(checks, top.get("tls_server_config"), path.parent),
        _headers(checks, top.get("http_server_config")),
        _users(checks, top.get("basic_auth_users")),
        _rate(checks, top.get("rate_limit")),
    )


def _tls(checks: Checks, raw: Any, base: Path) -> Tls | None:
    at = "tls_server_config"
    given = checks.mapping(raw, at, _TLS_KEYS)
    if not given:
        return None
    certificate, key, ca = (_pem(checks, given, name, base) for name in ("cert", "key", "client_ca"))
    for name, pem in (("cert", certificate), ("key", key)):
        if pem is None:
            checks.fail(at, f"missing one of {name} and {name}_file")
    assert certificate is not None and key is not None  # noqa: PT018, S101 - said to the type checker
    client_auth = _client_auth(checks, given, ca)
    return Tls(
        certificate,
        key,
        ca,
        client_auth,
        _sans(checks, given, client_auth),
        _versions(checks, given),
        _texts(checks, given, "cipher_suites"),
        checks.flag(given.get("prefer_server_cipher_suites", True), f"{at}.prefer_server_cipher_suites"),
        _texts(checks, given, "curve_preferences"),
    )


def _pem(checks: Checks, given: Mapping[str, Any], name: str, base: Path) -> Pem | None:
    at = f"tls_server_config.{name}"
    text = checks.text(given.get(name) or "", at)
    file = checks.text(given.get(f"{name}_file") or "", f"{at}_file")
    if text and file:
        checks.fail(at, f"stands beside {name}_file; one of the two is enough")
    if "\0" in file:
        checks.fail(f"{at}_file", "no file has such a name")
    return Pem(base / file if file else None, text) if text or file else None


def _client_auth(checks: Checks, given: Mapping[str, Any], ca: Pem | None) -> str:
    at = "tls_server_config.client_auth_type"
    named = given.get("client_auth_type") or CLIENT_AUTH[0]
    if isinstance(named, str) and named in UNVERIFIED:
        wrong = "is not possible here, where a certificate that is asked for is always verified"
        checks.fail(at, f"{named} {wrong}; use {UNVERIFIED[named]}")
    word = checks.word(named, at, CLIENT_AUTH)
    if ca is not None and word == CLIENT_AUTH[0]:
        checks.fail(at, f"a client CA is given, which {word} would not use")
    return word


def _sans(checks: Checks, given: Mapping[str, Any], client_auth: str) -> tuple[str, ...]:
    sans = _texts(checks, given, "client_allowed_sans")
    if sans and client_auth != "RequireAndVerifyClientCert":
        checks.fail("tls_server_config.client_allowed_sans", "needs client_auth_type: RequireAndVerifyClientCert")
    if not sans and given.get("client_allowed_sans") is not None:
        checks.fail("tls_server_config.client_allowed_sans", "is empty, so that no client could ever connect")
    return sans


def _versions(checks: Checks, given: Mapping[str, Any]) -> tuple[str, str]:
    low, high = (
        checks.word(given.get(name, default), f"tls_server_config.{name}", VERSIONS)
        for name, default in zip(("min_version", "max_version"), VERSIONS, strict=True)
    )
    if VERSIONS.index(low) > VERSIONS.index(high):
        checks.fail("tls_server_config.max_version", f"{high} is below min_version, which is {low}")
    return low, high


def _texts(checks: Checks, given: Mapping[str, Any], name: str) -> tuple[str, ...]:
    at = f"tls_server_config.{name}"
    return tuple(checks.text(item, f"{at}[{n}]") for n, item in enumerate(checks.list(given.get(name), at)))


def _headers(checks: Checks, raw: Any) -> dict[str, str]:
    at = "http_server_config"
    given = checks.mapping(raw, at, ("http2", "headers"))
    checks.flag(given.get("http2", True), f"{at}.http2")  # there is only HTTP/1.1 here, with which all clients are fine
    headers = checks.mapping(given.get("headers"), f"{at}.headers", tuple(HEADERS))
    return {name: _header(checks, name, value, f"{at}.headers.{name}") for name, value in headers.items()}


def _header(checks: Checks, name: str, raw: Any, at: str) -> str:
    value = checks.text("" if raw is None else raw, at)
    if not value.isascii() or not value.isprintable():
        checks.fail(at, "expected printable ASCII in one line")
    return checks.word(value, at, HEADERS[name]) if value and HEADERS[name] else value


def _users(checks: Checks, raw: Any) -> dict[str, str]:
    at = "basic_auth_users"
    users = {}
    for name, value in checks.mapping(raw, at, None).items():
        place = f"{at}.{shown_key(name)}"
        user = checks.text(name, place)
        if ":" in user:
            checks.fail(place, "a name with a colon cannot be sent")
        users[user] = _hash(checks, value, place)
    return users


def _hash(checks: Checks, raw: Any, at: str) -> str:
    found = _BCRYPT.fullmatch(raw) if isinstance(raw, str) else None
    if found is None or not 4 <= int(found[1]) <= 31:
        checks.fail(at, "expected a bcrypt hash, such as `htpasswd -nBC 10 NAME` prints behind the colon")
    if int(found[1]) > MOST_EXPENSIVE:
        checks.fail(at, f"a bcrypt hash of a cost over {MOST_EXPENSIVE} takes minutes to check")
    return found[0]


def _rate(checks: Checks, raw: Any) -> Rate | None:
    given = checks.mapping(raw, "rate_limit", ("interval", "burst"))
    interval = checks.duration(given.get("interval", 0), "rate_limit.interval")
    if not interval:
        return None
    return Rate(interval, checks.whole(given.get("burst", 0), "rate_limit.burst", least=1))
