"""Which addresses does a name have? Asked of the system in a daemon thread, which may hang without keeping anybody.

aiohttp's own resolver asks in a thread of the event loop's pool, and the end of the loop waits for that pool.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from stallwatch import aside

Found = list[tuple[Any, ...]]
LookUp = Callable[..., Found]


class Names(AbstractResolver):
    """Looks names up; while one look hangs, the same name is not looked up by another thread."""

    def __init__(self, look_up: LookUp = socket.getaddrinfo) -> None:
        self._look_up = look_up
        self._looking: dict[str, asyncio.Future[Found | OSError]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a name; raises OSError."""
        looking = self._looking.get(host)
        if looking is None or looking.done():
            looking = self._looking[host] = aside.begin(lambda: self._looked_up(host, port, family), "resolver")
        await asyncio.wait({looking})  # which, unlike `await looking`, leaves it be when we are cancelled
        found = looking.result()
        if isinstance(found, OSError):
            raise found
        return [
            ResolveResult(
                hostname=host, host=address[0], port=port, family=kind, proto=proto, flags=socket.AI_NUMERICHOST
            )
            for kind, _, proto, _, address in found
        ]

    def _looked_up(self, host: str, port: int, family: socket.AddressFamily) -> Found | OSError:
        try:
            return self._look_up(host, port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG)
        except (OSError, UnicodeError) as error:  # a name with an empty or too long part is none
            return error if isinstance(error, OSError) else socket.gaierror(socket.EAI_NONAME, "no such name")

    async def close(self) -> None:
        """Leave behind what hangs: the next session asks for it again."""
