"""Whom does a probe over TLS trust?

The chain is verified against `ca_file`; the name is not, since a certificate seldom names the address that is asked.
Without `ca_file`, a loopback address is not verified at all, and any other one fully, with the system's CAs.

CAs are read in a thread, since they may lie on a mount that is dead, and taken in again only once they have changed,
which takes 20 ms for those of the system.
"""

import asyncio
import contextlib
import ipaddress
import os
import ssl
from collections.abc import Hashable
from typing import Generic, TypeVar

from stallwatch.aside import Reads
from stallwatch.exchange import NotMadeError
from stallwatch.plainfile import read_plain
from stallwatch.snapshot import Server

READ_SECONDS = 2.0
LARGEST_FILE = 4 << 20

Context = TypeVar("Context", bound=ssl.SSLContext)


class Trust(Generic[Context]):
    """The TLS contexts of one collector, each kept for as long as the CAs that it trusts stay the same."""

    def __init__(self, kind: type[Context]) -> None:
        self._kind = kind
        self._reads: Reads[Context] = Reads("ca")
        self._kept: dict[str, tuple[Hashable, Context]] = {}

    async def context(self, server: Server, ca_file: str | None) -> Context | None:
        """Return the context for a server's address, None where it speaks no TLS; raises NotMadeError."""
        if not server.launch.tls:
            return None
        if ca_file is None and ipaddress.ip_address(server.address or "").is_loopback:
            return self._unverified()
        return await self._read(ca_file)

    async def of_system(self) -> Context:
        """Return a context with the CAs of the system; where they cannot be read now, those of before; NotMadeError."""
        try:
            return await self._read(None)
        except NotMadeError:
            _, context = self._kept.get("", (None, None))
            if context is None:
                raise
            return context

    async def _read(self, ca_file: str | None) -> Context:
        place = ca_file or "the CAs of the system"
        try:
            return await self._reads.read(place, lambda: self._verified(ca_file), READ_SECONDS)
        except asyncio.TimeoutError:
            raise NotMadeError("ca_unreadable", f"{place}: not read within {READ_SECONDS:g} s") from None
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise NotMadeError("ca_unreadable", f"{place}: {reason}") from error

    def _unverified(self) -> Context:
        context = self._kind(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context

    def _verified(self, ca_file: str | None) -> Context:
        content = _content(ca_file) if ca_file else _state_of_the_systems()
        known, context = self._kept.get(ca_file or "", (None, None))
        if context is None or known != content:
            context = self._made(content)
            self._kept[ca_file or ""] = (content, context)
        return context

    def _made(self, content: Hashable) -> Context:
        context = self._kind(ssl.PROTOCOL_TLS_CLIENT)
        if not isinstance(content, bytes):
            context.load_default_certs()
            return context
        context.check_hostname = False
        try:
            context.load_verify_locations(cadata=content.decode("ascii", "ignore"))
        except ssl.SSLError as error:
            raise ValueError("no PEM certificate is in it") from error
        return context


def _content(file: str) -> bytes:
    content = read_plain(file, LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise ValueError("too large")
    return content


def _state_of_the_systems() -> tuple[tuple[int, int, int], ...]:
    """Tell the CAs of the system from those that they were before."""
    paths = ssl.get_default_verify_paths()
    states = []
    for path in filter(None, (paths.cafile, paths.capath)):
        with contextlib.suppress(OSError):
            found = os.stat(path)  # noqa: PTH116 (it is a name of OpenSSL's)
            states.append((found.st_ino, found.st_size, found.st_mtime_ns))
    return tuple(states)
