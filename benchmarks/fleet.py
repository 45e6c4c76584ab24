"""What does a fleet cost its Prometheus? Series, bytes and CPU of each scrape, and memory, measured and extrapolated.

So many exporters are played: the real exposition of played nodes of eight GPUs, each under a name, with GPUs and a
model of its own. One real Prometheus scrapes all of them and evaluates the shipped rules. It scrapes faster than in
life, so that each series gets as many samples as its head holds at 15 s; what is extrapolated is memory per series.

    python benchmarks/fleet.py [--nodes 200] [--scrapes 120] [--interval 3] [--to 1000]
"""

import argparse
import asyncio
import gzip
import json
import re
import shutil
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

sys.path.insert(0, str(Path(__file__).parent))
from virtual_exporter import VirtualExporter

from stallwatch.shipped import shipped_folder
from stallwatch.simulation.pager import free_port
from stallwatch.simulation.scenario import scenario_of

WARM, STEP = 120, 5.0
IN_LIFE = 15.0
HELD_SAMPLES = 3 * 3600 / IN_LIFE
"""How many samples of a series the head holds before it writes a block."""
BYTES_A_SAMPLE = 1.5
WORK = {"running": 20, "queued": 2, "tokens_per_second": 2000}
BUSY = {
    "for": "24h",
    "phase": "ready",
    "gpu": {"utilization": 96, "memory_gib": 120, "power_watts": 600},
    "scheduler": {"cpu": 1.0, "state": "R"},
    "log": "progress",
    "health": "ok",
    "engine": WORK,
}
ONE = [{"version": "0.5.9", "args": ["--tp-size", "8"], "segments": [BUSY]}]
FOUR = [
    {
        "version": "0.5.9",
        "args": ["--tp-size", "2", "--port", str(30000 + part), "--base-gpu-id", str(2 * part)],
        "segments": [BUSY],
    }
    for part in range(4)
]
NODE = {"gpus": 8, "gpu_memory_gib": 141, "power_limit_watts": 700}


@dataclass(frozen=True, slots=True)
class Measured:
    """What Prometheus says of itself once all has been scraped so often."""

    nodes: int
    series: float
    samples_a_scrape: float
    bytes_a_scrape: float
    zipped_a_scrape: float
    resident_bytes: float
    heap_bytes: float
    scrapes: float
    cpu_seconds_a_scrape: float  # without rules
    rules_cores: float
    rules_seconds: float


async def pages(servers: Sequence[Mapping[str, Any]], count: int, folder: Path) -> list[str]:
    """Return successive scrapes of one node that serves, after it has been watched for a while."""
    exporter = VirtualExporter(scenario_of({"name": "node", "node": NODE, "servers": servers}), folder / "memory.json")
    found = []
    for number in range(WARM + count):
        await exporter.look(number * STEP)
        if number >= WARM:
            lines = exporter.exposition.page("text/plain").plain.decode().splitlines(keepends=True)
            found.append("".join(line for line in lines if 'collector="kernel"' not in line))  # it is not played
    await exporter.close()
    return found


class Fleet:
    """All exporters, at one port: `/17/metrics` is node 17; one of eight has four servers, the others one."""

    def __init__(self, templates: Sequence[Sequence[str]], interval: float) -> None:
        self.port = free_port()
        self.sent = {"scrapes": 0, "bytes": 0, "zipped": 0}
        self._templates, self._interval, self._begin = templates, interval, time.monotonic()
        self._runner: web.AppRunner | None = None

    def page(self, node: int) -> bytes:
        """Return what this node shows now."""
        frames = self._templates[node % 8 == 0]
        text = frames[min(int((time.monotonic() - self._begin) / self._interval), len(frames) - 1)]
        return re.sub(r"GPU-", f"GPU-{node:04d}-", text).encode()

    async def __aenter__(self) -> "Fleet":  # noqa: PYI034  (Self came with Python 3.11)
        """Listen."""
        app = web.Application()
        app.router.add_get("/{node}/metrics", self._answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self._begin = time.monotonic()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End."""
        if self._runner:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        body = self.page(int(request.match_info["node"]))
        zipped = gzip.compress(body, 1)
        self.sent = {
            "scrapes": self.sent["scrapes"] + 1,
            "bytes": self.sent["bytes"] + len(body),
            "zipped": self.sent["zipped"] + len(zipped),
        }
        headers = {"Content-Encoding": "gzip", "Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=zipped, headers=headers)


def configuration(nodes: int, port: int, interval: float) -> dict[str, Any]:
    """Return the configuration of a Prometheus that scrapes all nodes and itself, with the shipped rules."""
    fleet = [
        {
            "targets": [f"127.0.0.1:{port}"],
            "labels": {"instance": f"gpu-{node}", "__metrics_path__": f"/{node}/metrics"},
        }
        for node in range(nodes)
    ]
    return {
        "global": {"scrape_interval": f"{interval:g}s", "scrape_timeout": f"{interval:g}s"},
        "rule_files": [str(shipped_folder("alerts") / "rules" / "*.yml")],
        "scrape_configs": [{"job_name": "stallwatch", "static_configs": fleet}],
    }


def asked(port: int) -> dict[str, float]:
    """Return what Prometheus publishes of itself; of several series of a name, their sum."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found: dict[str, float] = {}
    for line in lines:
        if not line.startswith("#"):
            name, value = line.partition("{")[0].split(" ")[0], line.rpartition(" ")[2]
            found[name] = found.get(name, 0.0) + float(value)
    return found


def query(port: int, expr: str) -> float:
    """Return the value of a query that gives one."""
    words = urllib.parse.urlencode({"query": expr})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{words}", timeout=60) as answer:
        return float(json.load(answer)["data"]["result"][0]["value"][1])


async def measure(nodes: int, scrapes: int, interval: float, folder: Path) -> Measured:
    """Play the fleet for so many scrapes and return what it cost."""
    templates = [await pages(servers, scrapes + 10, folder) for servers in (ONE, FOUR)]
    async with Fleet(templates, interval) as fleet:
        (folder / "prometheus.yml").write_text(json.dumps(configuration(nodes, fleet.port, interval)))
        port = free_port()
        flags = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}"]
        with (folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                "prometheus", *flags, f"--web.listen-address=127.0.0.1:{port}", stdout=log, stderr=log
            )
        try:
            await asyncio.sleep(scrapes * interval)
            return await asyncio.to_thread(_measured, nodes, fleet.sent, port)
        finally:
            process.terminate()
            await process.wait()


def _measured(nodes: int, sent: Mapping[str, int], port: int) -> Measured:
    own = asked(port)
    rules, uptime = (
        own["prometheus_rule_evaluation_duration_seconds_sum"],
        time.time() - own["process_start_time_seconds"],
    )
    return Measured(
        nodes=nodes,
        series=own["prometheus_tsdb_head_series"],
        samples_a_scrape=query(port, "avg(scrape_samples_scraped)"),
        bytes_a_scrape=sent["bytes"] / sent["scrapes"],
        zipped_a_scrape=sent["zipped"] / sent["scrapes"],
        resident_bytes=own["process_resident_memory_bytes"],
        heap_bytes=own["go_memstats_heap_inuse_bytes"],
        scrapes=sent["scrapes"] / nodes,
        cpu_seconds_a_scrape=max(0.0, own["process_cpu_seconds_total"] - rules) / sent["scrapes"],
        rules_cores=rules / uptime,
        rules_seconds=own["prometheus_rule_group_last_duration_seconds"],
    )


def report(one: Measured, nodes: int) -> str:
    """Return the table: what was measured, and what it makes for so many nodes at 15 s."""
    lines = [("", "measured", f"for {nodes:,}"), *_each(one, nodes), *_growing(one, nodes / one.nodes)]
    return "".join(f"{name:44}{here:>14}{there:>14}\n" for name, here, there in lines)


def _each(one: Measured, nodes: int) -> Iterator[tuple[str, str, str]]:
    """Yield what is so for one node or series, however many there are."""
    yield "nodes", f"{one.nodes:,}", f"{nodes:,}"
    for name, value in (
        ("samples a scrape of one node", one.samples_a_scrape),
        ("KiB a scrape of one node", one.bytes_a_scrape / 1024),
        ("KiB a scrape of one node, gzip", one.zipped_a_scrape / 1024),
        ("KiB of heap a series", one.heap_bytes / 1024 / one.series),
    ):
        yield name, f"{value:,.1f}", f"{value:,.1f}"


def _growing(one: Measured, factor: float) -> Iterator[tuple[str, str, str]]:
    """Yield what grows with the fleet."""
    resident, held = one.resident_bytes / 2**20, max(0.0, HELD_SAMPLES - one.scrapes) * BYTES_A_SAMPLE / 2**20
    scraping = one.cpu_seconds_a_scrape * one.nodes / IN_LIFE
    for name, value, form in (
        ("series in the head", one.series, "{:,.0f}"),
        ("samples a second at 15 s", one.samples_a_scrape * one.nodes / IN_LIFE, "{:,.0f}"),
        (f"MiB resident after {one.scrapes:.0f} scrapes", resident, "{:,.0f}"),
        ("MiB resident with three hours in the head", resident + one.series * held, "{:,.0f}"),
        ("cores for scrapes at 15 s", scraping, "{:,.2f}"),
        ("cores for rules", one.rules_cores, "{:,.2f}"),
        ("seconds of one evaluation of all rules", one.rules_seconds, "{:,.2f}"),
    ):
        yield name, form.format(value), form.format(value * factor)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What a fleet costs its Prometheus.")
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--scrapes", type=int, default=120)
    parser.add_argument("--interval", type=float, default=3.0, help="seconds between scrapes")
    parser.add_argument("--to", type=int, default=1000, help="nodes to extrapolate to")
    chosen = parser.parse_args()
    if not shutil.which("prometheus"):
        parser.error("prometheus is not installed")
    with tempfile.TemporaryDirectory(prefix="stallwatch-fleet-") as folder:
        one = asyncio.run(measure(chosen.nodes, chosen.scrapes, chosen.interval, Path(folder)))
    sys.stdout.write(report(one, chosen.to))
    return 0


if __name__ == "__main__":
    sys.exit(main())
