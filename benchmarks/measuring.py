"""What does an exporter cost? CPU and memory of its processes, and what Prometheus gets from it, how fast."""

import asyncio
import gzip
import http.client
import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from exporters import Exporter

from stallwatch.expense import PAGE, TICKS

HEADERS = {
    "User-Agent": "Prometheus/2.42.0",
    "Accept": (
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
        "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    ),
    "Accept-Encoding": "gzip",
    "X-Prometheus-Scrape-Timeout-Seconds": "1",
}
"""What Prometheus 2.42 sends."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What an exporter cost: CPU as seconds in a minute, memory in MiB over all its processes, times in ms.

    `shared_out_mib` counts a page that several processes use once, `memory_mib` as often as there are processes.
    """

    cpu_seconds: float
    memory_mib: float
    shared_out_mib: float
    p50_ms: float
    p99_ms: float
    bytes: int
    series: int


def family_of(pid: int) -> list[int]:
    """Return a process and all below it."""
    pids = [pid]
    for one in pids:
        with suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
    return pids


def cpu_of(pids: Iterable[int]) -> float:
    """Return the CPU seconds of these processes and of children of theirs that have ended."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / TICKS


def memory_of(pids: Iterable[int]) -> float:
    """Return the resident memory of these processes together, in MiB."""
    pages = 0
    for pid in pids:
        with suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * PAGE / 1024**2


def shared_out_memory_of(pids: Iterable[int]) -> float:
    """Return the proportional memory (PSS) of these processes together, in MiB; takes longer, and holds them up."""
    kib = 0
    for pid in pids:
        with suppress(OSError):
            kib += int(Path(f"/proc/{pid}/smaps_rollup").read_text().split("Pss:")[1].split()[0])
    return kib / 1024


@dataclass(slots=True)
class Watched:
    """One exporter while it is scraped."""

    exporter: Exporter
    cpu: float = 0.0
    memory: float = 0.0
    took: list[float] = field(default_factory=list)
    page: bytes = b""
    _connection: http.client.HTTPConnection | None = None

    def begin(self) -> None:
        """Count from now on."""
        self.cpu, self.memory, self.took = cpu_of(family_of(self.exporter.pid)), 0.0, []

    def scrape(self) -> None:
        """Scrape as Prometheus does, over a connection that stays."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self.exporter.port, timeout=10)
        begin = time.perf_counter()
        self._connection.request("GET", self.exporter.path, headers=HEADERS)
        answer = self._connection.getresponse()
        body = answer.read()
        self.took.append(time.perf_counter() - begin)
        if answer.status != 200:
            raise RuntimeError(f"{self.exporter.name} answers {answer.status}")
        self.page = gzip.decompress(body) if answer.getheader("Content-Encoding") == "gzip" else body
        self.memory = max(self.memory, memory_of(family_of(self.exporter.pid)))

    def cost(self, seconds: float) -> Cost:
        """Return what it cost since it began."""
        spent = cpu_of(family_of(self.exporter.pid)) - self.cpu
        took = sorted(self.took)
        return Cost(
            cpu_seconds=spent * 60 / seconds,
            memory_mib=self.memory,
            shared_out_mib=shared_out_memory_of(family_of(self.exporter.pid)),
            p50_ms=1000 * statistics.median(took),
            p99_ms=1000 * took[max(0, round(0.99 * len(took)) - 1)],
            bytes=len(self.page),
            series=sum(not line.startswith(b"#") for line in self.page.splitlines() if line),
        )

    async def ready(self, within: float = 30.0) -> None:
        """Return once it answers."""
        end = time.monotonic() + within
        while time.monotonic() < end:
            with suppress(OSError, http.client.HTTPException, RuntimeError):
                await asyncio.to_thread(self.scrape)
                return
            self._connection = None
            await asyncio.sleep(0.1)
        raise RuntimeError(f"{self.exporter.name} does not answer")


async def scraped(watched: Sequence[Watched], seconds: float) -> list[Cost]:
    """Scrape each once a second, one after another, and return what each cost."""
    for one in watched:
        one.begin()
    begin = time.monotonic()
    rounds = round(seconds)
    for number in range(rounds):
        await asyncio.sleep(max(0.0, begin + number - time.monotonic()))
        for one in watched:
            await asyncio.to_thread(one.scrape)
    await asyncio.sleep(max(0.0, begin + rounds - time.monotonic()))
    passed = time.monotonic() - begin
    return [one.cost(passed) for one in watched]
