"""How does the exporter fare beside real processes that come and go?

It runs as its users run it. Servers of real processes are started, killed and started again, their logs rotated;
workers are ended and killed; scrapes come all the time, and some clients never read their answer.
"""

import asyncio
import os
import random
import signal
import socket
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from stallwatch.expense import expense_of
from stallwatch.simulation.pager import free_port
from stallwatch.simulation.played import PlayedServer

SETTINGS = {"INTERVAL": "250ms", "DISCOVERY__INTERVAL": "500ms", "HEALTH__INTERVAL": "1s", "WORKERS__DEADLINE": "2s"}
READY = "[2026-01-01 00:00:00] The server is fired up and ready to roll!"
ALLOWED = {"series": 200, "memory KiB of all": 12_288, "descriptors": 6, "threads": 2, "processes": 2}


class RealExporter:
    """The exporter as a process, with what it and its workers hold."""

    def __init__(self, folder: Path) -> None:
        self.port, self._folder, self._log = free_port(), folder, (folder / "log").open("wb")
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Return its pid."""
        if self._process is None:
            raise RuntimeError("the exporter was not started")
        return self._process.pid

    async def start(self) -> None:
        """Start it, and return once it answers."""
        names = {f"STALLWATCH_{key}": value for key, value in SETTINGS.items()}
        environ = {**os.environ, **names, "STALLWATCH_STATE__FILE": str(self._folder / "memory.json")}
        environ["STALLWATCH_EVIDENCE__DIRECTORY"] = str(self._folder / "evidence")
        command = [sys.executable, "-m", "stallwatch", "serve", f"--web.listen-address=127.0.0.1:{self.port}"]
        self._process = await asyncio.create_subprocess_exec(*command, stderr=self._log, env=environ)
        while not await self.scrape():  # noqa: ASYNC110 another process brings no event
            await asyncio.sleep(0.1)

    async def stop(self) -> None:
        """End it."""
        if self._process and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()
        self._log.close()

    async def scrape(self) -> str:
        """Return a scrape, nothing where there is none."""

        def get() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
                return str(answer.read(), "utf-8")

        with suppress(OSError):
            return await asyncio.to_thread(get)
        return ""

    def workers(self) -> list[int]:
        """Return the pids of its children."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    async def held(self) -> dict[str, float]:
        """Return what it and its workers hold now."""
        text, pids = await self.scrape(), [self.pid, *self.workers()]
        expenses = [expense for pid in pids if (expense := expense_of(pid))]
        return {
            "series": sum(not line.startswith("#") and 'server="' not in line for line in text.splitlines()),
            "memory KiB of all": sum(expense.resident_bytes for expense in expenses) / 1024,
            "descriptors": _count(self.pid, "fd"),
            "threads": _count(self.pid, "task"),
            "processes": len(pids),
        }

    def faults(self) -> list[str]:
        """Return the lines of its log that tell of an exception that nobody handled."""
        lines = (self._folder / "log").read_text(errors="replace").splitlines()
        return [line[:200] for line in lines if "Traceback" in line or not line.startswith("ts=")]


def _count(pid: int, folder: str) -> int:
    return len(list(Path(f"/proc/{pid}/{folder}").iterdir()))


class Churn:
    """What goes on around the exporter, rolled by dice."""

    def __init__(self, folder: Path, exporter: RealExporter) -> None:
        self.dice, self.events = random.Random(2), 0  # noqa: S311 dice
        self._folder, self._exporter = folder, exporter
        self._servers: list[PlayedServer] = []
        self._deaf: list[socket.socket] = []

    async def event(self) -> None:
        """Have something happen."""
        self.events += 1
        await self.dice.choice(
            (self._start, self._end, self._rotate, self._rotate, self._hurt_a_worker, self._connect)
        )()

    async def close(self) -> None:
        """End all servers and connections."""
        for server in self._servers:
            await server.crash()
        for client in self._deaf:
            client.close()

    async def _start(self) -> None:
        if len(self._servers) >= 3:
            await self._end()
        port = free_port()
        server = PlayedServer(self._folder / f"server{self.events}", ["--port", str(port), "--tp-size", "2"])
        self._servers.append(server)
        await server.start()
        await server.spawn("sglang::scheduler_TP0", "sglang::scheduler_TP1")
        await server.log(READY)
        await server.tell(listen=port)

    async def _end(self) -> None:
        if self._servers:
            server = self._servers.pop(self.dice.randrange(len(self._servers)))
            await (server.crash() if self.dice.random() < 0.5 else server.stop())

    async def _rotate(self) -> None:
        if self._servers:
            server = self.dice.choice(self._servers)
            server.log_path.with_name("server.log.1").write_bytes(server.log_path.read_bytes())
            os.truncate(server.log_path, 0)
            await server.log("[2026-01-01 00:00:00] one more line")

    async def _hurt_a_worker(self) -> None:
        if workers := self._exporter.workers():
            with suppress(ProcessLookupError):
                os.kill(self.dice.choice(workers), self.dice.choice((signal.SIGKILL, signal.SIGTERM)))

    async def _connect(self) -> None:
        client = socket.create_connection(("127.0.0.1", self._exporter.port))
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" if self.dice.random() < 0.5 else b"GET /")
        self._deaf.append(client)
        if len(self._deaf) > 3:
            self._deaf.pop(0).close()


async def soak_real(
    seconds: float, every: float = 1.0
) -> tuple[list[dict[str, float]], list[str], str, dict[str, float]]:
    """Return samples of what is held, the unhandled exceptions, what was done, and how much more is allowed."""
    samples: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        exporter = RealExporter(folder)
        churn, end = Churn(folder, exporter), time.monotonic() + seconds
        try:
            await exporter.start()
            while time.monotonic() < end:
                await churn.event()
                await asyncio.sleep(every * churn.dice.random())
                samples.append(await exporter.held())
        finally:
            await churn.close()
            await exporter.stop()
        return samples, exporter.faults(), f"{seconds:.0f} s, {churn.events} events", dict(ALLOWED)
