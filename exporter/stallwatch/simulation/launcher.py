"""How does the main process of a played server behave? It starts its ranks, writes the log, and answers on its port.

It runs as `python -m sglang.launch_server FLAGS`, through a stub of that name which the player puts on the path, so
that its command line is that of the real thing. Commands come as JSON lines on standard input; what it logs goes to
standard error, as with SGLang.
"""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import Any

HEALTH_SECONDS = 1.0
"""SGLang looks once a second whether its probe was answered, so that a good answer takes at least this long."""

STATUSES = {"ok": 200, "unauthorized": 401, "http_error": 500}
BROKEN = {
    "empty": b"",
    "invalid": b"this is no HTTP\r\n\r\n",
    "redirect": b"HTTP/1.1 302 Found\r\nLocation: /health\r\nContent-Length: 0\r\n\r\n",
    "half": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
}
ENDLESS = {"drip": (b".", 0.1), "flood": (b"." * 65536, 0.0)}  # what is sent again and again, and the pause after it


def reply(status: int, body: bytes = b"") -> bytes:
    """Return a whole HTTP answer."""
    return b"HTTP/1.1 %d played\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(body), body)


class Launcher:
    """The main process: its children by title, its port when it is open, how it answers."""

    def __init__(self) -> None:
        self._children: dict[str, Process] = {}
        self._server: asyncio.Server | None = None
        self._health: str | int = "ok"
        self._metrics: str | None = None
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
            if child.returncode is None:
                child.send_signal(signal.SIGCONT)  # one that is stopped would never end
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
        self._metrics = command.get("metrics", self._metrics)
        if "listen" in command and self._server is None:
            self._server = await asyncio.start_server(self._answer, "127.0.0.1", command["listen"])
        if command.get("close") and self._server:
            self._server.close()
            self._server = None

    async def _spawn(self, title: str) -> None:
        arguments = [sys.executable, "-m", "stallwatch.simulation.actor", title]
        child = await asyncio.create_subprocess_exec(*arguments, stdin=PIPE, stdout=PIPE)
        if child.stdout:
            await child.stdout.readline()
        self._children[title] = child

    def _tell(self, title: str, behaviour: dict[str, Any]) -> None:
        child = self._children[title]
        if child.returncode is not None:
            return
        if "signal" in behaviour:
            child.send_signal(behaviour["signal"])
        elif child.stdin:
            child.stdin.write(json.dumps(behaviour).encode() + b"\n")

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readline()).decode(errors="replace").split()
        path = request[1] if len(request) > 1 else ""
        if path == "/metrics":
            answer = reply(404) if self._metrics is None else reply(200, self._metrics.encode())
        elif self._health == "timeout":
            self._waiting.add(writer)  # kept open and never answered
            return
        elif self._health in ENDLESS:
            with suppress(ConnectionError):
                await _send_without_end(writer, *ENDLESS[str(self._health)])
            return
        else:
            answer = await self._health_answer()
        writer.write(answer)
        if self._health == "reset" and isinstance(writer.transport, asyncio.Transport):
            writer.transport.abort()
        writer.close()

    async def _health_answer(self) -> bytes:
        word = self._health
        if word == "ok":
            await asyncio.sleep(HEALTH_SECONDS)
        if isinstance(word, str) and word in BROKEN:
            return BROKEN[word]
        return reply(word if isinstance(word, int) else STATUSES.get(word, 500))


async def _send_without_end(writer: asyncio.StreamWriter, part: bytes, pause: float) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    while True:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(pause)


def main() -> None:
    """Play the main process."""
    asyncio.run(Launcher().play())
