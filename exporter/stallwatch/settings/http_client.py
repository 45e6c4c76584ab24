"""What does the file say that `--http.config.file` names: as whom is an exporter asked, and whom does that trust?

It has the format of the HTTP clients of Prometheus, as promtool and amtool read it. What cannot be done here is an
error that says so; nothing is ignored.
"""

import base64
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stallwatch.asking import Client
from stallwatch.settings.checks import Checks
from stallwatch.settings.yaml_file import read_yaml

LARGEST_SECRET = 64 * 1024
_TLS_KEYS = ("ca_file", "cert_file", "key_file", "server_name", "insecure_skip_verify")


def read_client(path: Path) -> Client:
    """Read the file and those that it names, relative to it; raises ConfigError for what is wrong with them."""
    checks = Checks(str(path))
    raw = read_yaml(path)
    top = checks.mapping({} if raw is None else raw, "", ("basic_auth", "authorization", "tls_config"))
    if "basic_auth" in top and "authorization" in top:
        checks.fail("authorization", "stands beside basic_auth; one of the two is enough")
    tls = checks.mapping(top.get("tls_config"), "tls_config", _TLS_KEYS)
    return Client(
        _basic(checks, top.get("basic_auth"), path.parent) or _bearer(checks, top.get("authorization"), path.parent),
        _context(checks, tls, path.parent) if tls else None,
        bool(tls.get("ca_file")),
        _text(checks, tls, "tls_config", "server_name"),
    )


def _basic(checks: Checks, raw: Any, base: Path) -> str:
    at = "basic_auth"
    given = checks.mapping(raw, at, ("username", "password", "password_file"))
    if not given:
        return ""
    user = _text(checks, given, at, "username")
    if not user or ":" in user:
        checks.fail(f"{at}.username", "expected a name without a colon")
    password = _secret(checks, given, at, "password", base)
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _bearer(checks: Checks, raw: Any, base: Path) -> str:
    at = "authorization"
    given = checks.mapping(raw, at, ("type", "credentials", "credentials_file"))
    if not given:
        return ""
    header = f"{_text(checks, given, at, 'type') or 'Bearer'} {_secret(checks, given, at, 'credentials', base)}"
    if not header.isascii() or not header.isprintable():
        checks.fail(at, "expected printable ASCII in one line")
    return header


def _secret(checks: Checks, given: Mapping[str, Any], at: str, name: str, base: Path) -> str:
    text = _text(checks, given, at, name)
    file = _file(checks, given, at, f"{name}_file", base)
    if bool(text) == bool(file):
        checks.fail(at, f"expected one of {name} and {name}_file")
    if file is None:
        return text
    try:
        with file.open("rb") as opened:
            return opened.read(LARGEST_SECRET).decode().strip()
    except OSError as error:
        checks.fail(f"{at}.{name}_file", f"{file}: cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        checks.fail(f"{at}.{name}_file", f"{file}: not UTF-8")


def _text(checks: Checks, given: Mapping[str, Any], at: str, name: str) -> str:
    return "" if given.get(name) is None else checks.text(given[name], f"{at}.{name}")


def _file(checks: Checks, given: Mapping[str, Any], at: str, name: str, base: Path) -> Path | None:
    text = _text(checks, given, at, name)
    if "\0" in text:
        checks.fail(f"{at}.{name}", "no file has such a name")
    return base / text if text else None


def _context(checks: Checks, given: Mapping[str, Any], base: Path) -> ssl.SSLContext:
    at = "tls_config"
    ca, certificate, key = (_file(checks, given, at, name, base) for name in ("ca_file", "cert_file", "key_file"))
    if (certificate is None) != (key is None):
        checks.fail(at, "cert_file and key_file need each other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if checks.flag(given.get("insecure_skip_verify", False), f"{at}.insecure_skip_verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        name = "ca_file"
        if ca:
            context.load_verify_locations(ca)
        else:
            context.load_default_certs()
        name = "cert_file"
        if certificate and key:
            context.load_cert_chain(certificate, key, password=lambda: checks.fail(f"{at}.key_file", "is encrypted"))
    except ssl.SSLError as error:
        checks.fail(f"{at}.{name}", f"{ca if name == 'ca_file' else certificate}: no good: {error.reason}")
    except OSError as error:
        checks.fail(f"{at}.{name}", f"cannot be read: {error.strerror}")
    return context
