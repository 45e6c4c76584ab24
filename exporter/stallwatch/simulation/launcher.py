"""How does the main process of a played server behave? It starts its ranks, writes the log, and answers on its port.

It runs as `python -m sglang.launch_server FLAGS`, through a stub of that name which the player puts on the path, so
that its command line is that of the real thing. Commands come as JSON lines on standard input; what it logs goes to
standard error, as with SGLang.
"""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from typing import Any

HEALTH_SECONDS = 1.0
"""SGLang looks once a second whether its probe was answered, so that a good answer takes at least this long."""

REPLIES = {
    "ok": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "503": b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
}


class Launcher:
    """The main process: its children by title, its port when it is open, how it answers."""

    def __init__(self) -> None:
        self._children: dict[str, Process] = {}
        self._server: asyncio.Server | None = None
        self._health = "ok"
        self._waiting: set[asyncio.StreamWriter] = set()

    async def play(self) -> None:
        """Obey until standard input ends, then end the children."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            await self._obey(json.loads(line))
            sys.stdout.write(json.dumps({title: child.pid for title, child in self._children.items()}) + "\n")
            sys.stdout.flush()
        for child in self._children.values():
            if child.stdin:
                child.stdin.close()
            await child.wait()

    async def _obey(self, command: dict[str, Any]) -> None:
        for title in command.get("spawn", ()):
            await self._spawn(title)
        for title, behaviour in command.get("to", {}).items():
            self._tell(title, behaviour)
        for line in command.get("log", ()):
            sys.stderr.write(line)
            sys.stderr.flush()
        self._health = command.get("health", self._health)
        if "listen" in command:
            self._server = await asyncio.start_server(self._answer, "127.0.0.1", command["listen"])

    async def _spawn(self, title: str) -> None:
        arguments = [sys.executable, "-m", "stallwatch.simulation.actor", title]
        child = await asyncio.create_subprocess_exec(*arguments, stdin=PIPE, stdout=PIPE)
        if child.stdout:
            await child.stdout.readline()
        self._children[title] = child

    def _tell(self, title: str, behaviour: dict[str, Any]) -> None:
        child = self._children[title]
        if behaviour.get("kill"):
            child.kill()
        elif child.stdin:
            child.stdin.write(json.dumps(behaviour).encode() + b"\n")

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readline()).decode(errors="replace").split()
        if self._health == "timeout":
            self._waiting.add(writer)  # kept open and never answered
            return
        if request[1:2] == ["/health"]:
            await asyncio.sleep(HEALTH_SECONDS)
        writer.write(REPLIES[self._health])
        await writer.drain()
        writer.close()


def main() -> None:
    """Play the main process."""
    asyncio.run(Launcher().play())
