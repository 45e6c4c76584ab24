"""How does a server speak TLS as the web file says?

The files are read here, once and whole, and handed to OpenSSL from memory: a certificate that is being replaced is
either read or not, and what was read is known afterwards.
"""

import hashlib
import ipaddress
import os
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from stallwatch.config import ConfigError
from stallwatch.gate.webfile import Pem, Tls
from stallwatch.plainfile import read_plain
from stallwatch.settings.reload import digest_of

LARGEST_FILE = 1 << 20
CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
CIPHERS_13 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
CIPHERS_12 = {
    f"TLS_ECDHE_{kind}_WITH_{ours}": f"ECDHE-{kind}-{theirs}"
    for kind in ("ECDSA", "RSA")
    for ours, theirs in (
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
        ("AES_128_CBC_SHA", "AES128-SHA"),
        ("AES_256_CBC_SHA", "AES256-SHA"),
    )
}
_VERIFIED = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}


class TlsLoader:
    """Builds contexts, and knows by `seen` which files the last one was made of (path to the digest of its content)."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self.seen: dict[Path, str] = {}

    def context(self, tls: Tls) -> ssl.SSLContext:
        """Return the context of a server; raises ConfigError for what cannot be read or done."""
        self.seen = {}
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version, context.maximum_version = (_VERSIONS[name] for name in tls.versions)
        context.set_alpn_protocols(["http/1.1"])
        if not tls.prefer_server_cipher_suites:
            context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
        self._set_ciphers(context, tls)
        self._set_curves(context, tls.curves)
        pems = {name: self._read(pem, name) for name, pem in self._pems(tls).items()}
        self._set_certificate(context, pems)
        self._set_clients(context, tls, pems.get("client_ca"))
        return context

    def _pems(self, tls: Tls) -> dict[str, Pem]:
        pems = {"cert": tls.certificate, "key": tls.key, "client_ca": tls.client_ca}
        return {name: pem for name, pem in pems.items() if pem is not None}

    def _read(self, pem: Pem, name: str) -> bytes:
        if pem.file is None:
            return pem.text.encode()
        try:
            content = _content(pem.file)
        except (OSError, ValueError) as error:
            self.seen[pem.file] = digest_of(pem.file)
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self._fail(f"{name}_file", f"{pem.file}: cannot be read: {reason}")
        self.seen[pem.file] = hashlib.sha256(content).hexdigest()
        return content

    def _set_certificate(self, context: ssl.SSLContext, pems: Mapping[str, bytes]) -> None:
        if b"-----BEGIN CERTIFICATE-----" not in pems["cert"]:
            self._fail("cert", "no PEM certificate is in it")
        if b"PRIVATE KEY-----" not in pems["key"]:
            self._fail("key", "no PEM key is in it")
        with _in_memory(pems["cert"]) as certificate, _in_memory(pems["key"]) as key:
            try:
                context.load_cert_chain(certificate, key, password=self._no_password)
            except ssl.SSLError as error:
                what = {"KEY_VALUES_MISMATCH": "the key is not that of the certificate"}
                self._fail("cert", what.get(error.reason or "", f"certificate or key is no good: {error.reason}"))

    def _no_password(self) -> str:
        self._fail("key", "is encrypted, and there is nobody to ask for the password")

    def _set_clients(self, context: ssl.SSLContext, tls: Tls, client_ca: bytes | None) -> None:
        context.verify_mode = _VERIFIED[tls.client_auth]
        if client_ca is not None:
            try:
                context.load_verify_locations(cadata=client_ca.decode("ascii", "ignore"))
            except (ssl.SSLError, ValueError):
                self._fail("client_ca", "no PEM certificate is in it")
        elif context.verify_mode != ssl.CERT_NONE:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)

    def _set_ciphers(self, context: ssl.SSLContext, tls: Tls) -> None:
        for name in tls.cipher_suites:
            if name not in CIPHERS_12 and name not in CIPHERS_13:
                self._fail("cipher_suites", f"unknown suite {ascii(name)[:80]}; allowed: {', '.join(CIPHERS_12)}")
        names = [CIPHERS_12[name] for name in tls.cipher_suites if name in CIPHERS_12]
        if not tls.cipher_suites or (not names and tls.versions[0] == "TLS13"):
            return  # those of TLS 1.3 are always on, here as in the toolkit
        if not names:
            self._fail("cipher_suites", "names no suite of TLS 1.2; set min_version: TLS13 to do without")
        if missing := set(names) - _offered(context, names):
            self._fail("cipher_suites", f"not offered by {ssl.OPENSSL_VERSION}: {', '.join(sorted(missing))}")

    def _set_curves(self, context: ssl.SSLContext, curves: tuple[str, ...]) -> None:
        for name in curves:
            if name not in CURVES:
                self._fail("curve_preferences", f"unknown curve {ascii(name)[:80]}; allowed: {', '.join(CURVES)}")
        if not curves:
            return
        several: Callable[[str], None] | None = getattr(context, "set_groups", None)  # since Python 3.15
        try:
            if several is not None:
                several(":".join(CURVES[name] for name in curves))
            elif len(curves) == 1:
                context.set_ecdh_curve(CURVES[curves[0]])
            else:
                self._fail("curve_preferences", "this Python can be given one curve only, or none to allow all")
        except (ssl.SSLError, ValueError):
            self._fail("curve_preferences", f"not offered by {ssl.OPENSSL_VERSION}")

    def _fail(self, key: str, wrong: str) -> NoReturn:
        raise ConfigError(f"{self._origin}: tls_server_config.{key}: {wrong}")


def has_allowed_name(certificate: Mapping[str, Any] | None, allowed: tuple[str, ...]) -> bool:
    """Say whether a client's certificate, as `getpeercert` tells it, has one of these alternative names."""
    names = {_plain(value) for kind, value in (certificate or {}).get("subjectAltName", ()) if isinstance(value, str)}
    return not names.isdisjoint(_plain(name) for name in allowed)


def _plain(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name.strip()))
    except ValueError:
        return name


def _offered(context: ssl.SSLContext, names: Sequence[str]) -> set[str]:
    """Let the context take these suites and return those that it knows."""
    try:
        context.set_ciphers(":".join(names))
    except ssl.SSLError:  # it knows none of them
        return set()
    return {one["name"] for one in context.get_ciphers()}


def _content(path: Path) -> bytes:
    content = read_plain(path, LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise ValueError("larger than 1 MiB")
    return content


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Give a name to what OpenSSL takes from files only."""
    handle = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(handle, content)
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)
