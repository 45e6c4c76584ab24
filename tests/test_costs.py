"""Costs, as counts that do not depend on how busy the machine is, each with a limit a fifth above what it is now.

`make bench` measures what they come to. Whoever exceeds a limit on purpose raises it here, and sees what it costs.
"""

import gc
import os
import subprocess
import sys
import time
import tracemalloc
from dataclasses import asdict
from pathlib import Path

import pytest

from crowd import Server, crowd_program, running  # noqa: F401 a fixture
from stallwatch.collectors import log, process
from stallwatch.finder import Finder
from stallwatch.node.procfs import Procfs, read_file
from stallwatch.node.table import boottime
from stallwatch.signals import WORKER_MODULES
from stallwatch.simulation.pager import free_port
from stallwatch.simulation.scenario import scenario_of

ROOT = Path(__file__).parents[1]
RANKS = 8
HEAVY = {"aiohttp", "asyncio", "msgspec", "prometheus_client", "watchdog", "yaml"}
OF_INCIDENTS = {"stallwatch.evidence.content", "stallwatch.evidence.gathering", "stallwatch.sources.stacks"}
OF_WORKERS = {"stallwatch.finder", "stallwatch.logs.life", "stallwatch.node.handles"}
OLD = 1e6  # seconds after which no process is young
BUSY = {
    "for": "30m",
    "phase": "ready",
    "gpu": {"utilization": 80, "memory_gib": 76, "power_watts": 450},
    "scheduler": {"cpu": 0.9},
    "log": "progress",
    "health": "ok",
    "engine": {"running": 8, "queued": 1, "tokens_per_second": 400},
}


def modules_after(statement):
    """Return what a fresh Python has loaded after a statement."""
    code = f"import sys; before = set(sys.modules)\n{statement}\nprint(*(set(sys.modules) - before))"
    paths = os.pathsep.join(path for path in sys.path if path.endswith("exporter"))
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(("worker", "most"), [("gpu", 88), ("host", 140), ("evidence", 122), ("trial", 68)])
def test_a_worker_imports_little(worker, most):
    """Each loads what its reads need, and nothing that the exporter alone needs."""
    load = f"from stallwatch.child import _load; _load({WORKER_MODULES[worker]!r}, {{}}, print)"
    loaded = modules_after(f"from stallwatch.lightly import SELDOM, Lazily\nwith Lazily(SELDOM): {load}")
    assert not HEAVY & loaded
    assert len(loaded) <= most, sorted(loaded)


@pytest.mark.parametrize(
    ("statement", "unwanted", "most"),
    [
        ("import stallwatch.serve", {"psutil", "yaml", "watchdog", "bcrypt", *OF_INCIDENTS, *OF_WORKERS}, 560),
        ("import stallwatch.cli", {"aiohttp", "prometheus_client", "psutil", "yaml", "watchdog"}, 180),
        ("import stallwatch.check", {"aiohttp", "prometheus_client", "psutil", "yaml", "watchdog"}, 260),
    ],
)
def test_a_command_imports_only_what_it_needs(statement, unwanted, most):
    """What few need is loaded by those few: it takes memory in `serve`, and time before `check` says anything."""
    loaded = modules_after(statement)
    assert not unwanted & loaded
    assert len(loaded) <= most, sorted(loaded)


class Counting:
    """Reads files, and counts how often."""

    def __init__(self):
        self.count = 0

    def __call__(self, path, limit):
        """Read one."""
        self.count += 1
        return read_file(path, limit)


def reads_of(function):
    """Return how many system calls that read a function makes in this thread."""

    def so_far():
        text = Path("/proc/thread-self/io").read_text()
        return int(text.split("syscr: ")[1].split()[0])

    before = so_far()
    spent_on_looking = so_far() - before
    before = so_far()
    function()
    return so_far() - before - spent_on_looking


def found(port):
    """Return the server with this port as discovery finds it now, None where it does not yet."""
    reading, _ = Finder(Procfs()).read([], frozenset())
    return next((one for one in reading.servers if one.launch.port == port), None)


@pytest.fixture
def a_server(crowd_program, tmp_path):  # noqa: F811 the fixture
    """Run a server of eight ranks, and return it as discovery found it."""
    with running([Server(crowd_program, free_port(), tmp_path / "log", ranks=RANKS)]) as (started,):
        server = found(started.port)
        while server is None or len(server.processes) <= RANKS:  # its ranks title themselves by and by
            time.sleep(0.02)
            server = found(started.port)
        yield server


def test_a_look_at_the_processes_of_a_server_reads_little(a_server):
    """Of each process a handful of small files is read, each once or twice."""
    read = process.reader({}, lambda _note: None)
    targets = [process.target(a_server)]
    read(targets, frozenset())
    assert reads_of(lambda: read(targets, frozenset())) <= 13 * (RANKS + 1)


def test_a_look_at_a_quiet_log_reads_nothing(a_server, tmp_path):
    """Its size tells that there is nothing new."""
    assert a_server.log_path == str(tmp_path / "log")
    read = log.reader({}, lambda _note: None)
    targets = [log.target(a_server)]
    read(targets, frozenset())
    assert reads_of(lambda: read(targets, frozenset())) <= 3


def test_discovery_reads_the_known_and_not_the_crowd(a_server):
    """Between two looks only the state of a server's own processes is read again, however many others there are."""
    counting = Counting()
    discovery = Finder(Procfs(read=counting), clock=lambda: boottime() + OLD)
    for _ in range(2):
        counting.count = 0
        reading, _ = discovery.read([], frozenset())
    servers = [server for server in reading.servers if server.name == a_server.name]
    assert len(servers) == 1
    assert counting.count <= 2 * sum(len(server.processes) for server in reading.servers) + 16


@pytest.fixture
async def exporter(tmp_path, monkeypatch):
    """Return an exporter that has watched a played busy server of eight ranks for a minute."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from virtual_exporter import VirtualExporter  # noqa: PLC0415 it lies beside the tests

    servers = [{"version": "0.5.9", "args": ["--tp-size", "8", "--port", "30000"], "segments": [BUSY]}]
    made = VirtualExporter(scenario_of({"name": "busy", "node": {"gpus": 8}, "servers": servers}), tmp_path / "memory")
    for second in range(1, 60):
        await made.look(float(second))
    yield made
    await made.close()


async def test_a_scrape_is_small(exporter):
    """What Prometheus has to take in and keep: bytes on the wire, and series."""
    assert [verdict.state for verdict in exporter.monitor.view.verdicts.values()] == ["busy"]
    page = exporter.exposition.page("text/plain")
    series = sum(not line.startswith(b"#") for line in page.plain.splitlines())
    assert series <= 450
    assert len(page.plain) <= 48_000
    assert len(page.zipped) <= 7_700


async def test_a_look_takes_little_memory_and_gives_it_back(exporter):
    """At its most a look holds less than this above what it began with, and sixty of them leave nothing."""
    tracemalloc.start()
    try:
        await exporter.look(60.0)
        gc.collect()
        begun, most = tracemalloc.get_traced_memory()[0], 0
        for second in range(61, 121):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            await exporter.look(float(second))
            most = max(most, tracemalloc.get_traced_memory()[1] - before)
        gc.collect()
        left = tracemalloc.get_traced_memory()[0] - begun
    finally:
        tracemalloc.stop()
    assert most <= 400_000
    assert left <= 60_000


def test_what_is_known_of_a_server_crosses_in_few_bytes(a_server):
    """A request about one server is small: it is written and read again each second."""
    asked = process.target(a_server)
    assert len(str(asked)) <= 190 * (RANKS + 1)
    assert len(str(asdict(a_server))) <= 2400
