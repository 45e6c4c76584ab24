"""A node on which things go wrong: eight GPUs, a server of two ranks that answers probes, and the exporter."""

import asyncio
import os
import signal
import statistics
import time
from contextlib import asynccontextmanager
from itertools import count

from exporter_process import ExporterProcess, Scrape
from nvml_library import environment
from stallwatch.simulation.pager import free_port
from stallwatch.simulation.played import PlayedGpus, PlayedServer

RANKS = ("sglang::scheduler_TP0", "sglang::scheduler_TP1")
FAST = {
    "INTERVAL": "250ms",
    "GPU__INTERVAL": "500ms",
    "DISCOVERY__INTERVAL": "500ms",
    "HEALTH__INTERVAL": "1s",
    "HEALTH__TIMEOUT": "3s",
    "WORKERS__DEADLINE": "1s",
}
STUCK = "gpu 3 delay nvmlDeviceGetPowerUsage {seconds}"
OTHERS = ("process", "log", "health")


class Node:
    """A played node of eight GPUs, a server of two ranks that answers probes, and the exporter that watches it."""

    def __init__(self, directory, library):
        self.port = free_port()
        self.name = f"sglang:{self.port}"
        self.gpus = PlayedGpus(directory / "gpus", 8)
        self.exporter = ExporterProcess(environment(library, self.gpus.path), **FAST)
        self.server = None
        self.pids = {}
        self._directory = directory
        self._lives = count()

    async def start(self, *, ready=True, listen=True):
        """Start the server, or start it again."""
        arguments = ["--model-path", "/models/m", "--tp-size", "2", "--port", str(self.port)]
        self.server = PlayedServer(self._directory / f"life{next(self._lives)}", arguments)
        await self.server.start()
        self.pids = await self.server.spawn(*RANKS)
        self.gpus.hold(self.pids[title] for title in RANKS)
        if ready:
            await self.server.log("[2026-01-01 00:00:00] The server is fired up and ready to roll!")
        if listen:
            await self.server.tell(listen=self.port)

    def driver(self, *statements):
        """Have the driver play these statements on top of what it plays."""
        text = "\n".join((self.gpus.path.read_text().rstrip(), *statements))
        part = self.gpus.path.with_suffix(".part")
        part.write_text(f"{text}\n")
        part.replace(self.gpus.path)

    def kill(self):
        """Kill all processes of the server at once."""
        for pid in (*self.pids.values(), self.server.pid):  # the others end with it, so it comes last
            os.kill(pid, signal.SIGKILL)

    def sees(self, scrape, *signals):
        """Tell whether these signals of the server are there."""
        return all(scrape.value("signal_success", server=self.name, signal=signal) == 1 for signal in signals)

    async def seen(self, *signals):
        """Return a scrape in which these signals are there, all four where none is given."""
        return await self.exporter.until(lambda scrape: self.sees(scrape, *(signals or ("gpu", *OTHERS))))

    async def everything_seen(self):
        """Return a scrape in which the server is whole."""

        def whole(scrape):
            ranks = scrape.value("server_processes", server=self.name, role="scheduler")
            return ranks == 2 and self.sees(scrape, "gpu", *OTHERS)

        return await self.exporter.until(whole)


@asynccontextmanager
async def a_node(directory, library):
    """Have a node and end all its processes."""
    made = Node(directory, library)
    try:
        yield made
    finally:
        if made.exporter.process and made.exporter.process.returncode is None:
            await made.exporter.stop(signal.SIGKILL)
        if made.server:
            await made.server.stop()


async def scrapes(node, fault, times=50):
    """Scrape again and again, say how long that took, and return the scrapes; none waits for what is stuck."""
    texts, took = [], []
    for _ in range(times):
        begin = time.monotonic()
        texts.append(await node.exporter.get())
        took.append(time.monotonic() - begin)
        await asyncio.sleep(0.05)
    took.sort()
    print(f"{fault}: p50 {statistics.median(took) * 1000:.1f} ms, p99 {took[-max(1, times // 100)] * 1000:.1f} ms")
    assert took[-1] < 1
    return [Scrape(text) for text in texts]


def fresh(scrapes_):
    """Tell whether the snapshot advanced while they were taken."""
    times = [scrape.value("snapshot_timestamp_seconds") for scrape in scrapes_]
    return times == sorted(times) and len(set(times)) >= 3


async def gone(pid):
    """Wait until a process has gone."""
    while os.path.exists(f"/proc/{pid}"):
        await asyncio.sleep(0.05)


def reasons(scrape, collector):
    """Return why rounds of a collector missed something, and how often."""
    found = scrape.all("collector_failures_total", collector=collector)
    return {labels["reason"]: value for labels, value in found}
