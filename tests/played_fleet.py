"""A node with servers of every kind, two real exporters that watch them, and a real Prometheus with the shipped rules.

One exporter sees the GPUs; the other has none to see, as on a node without.
"""

import asyncio
import http.client
import json
import subprocess
import time
import urllib.parse
from contextlib import AsyncExitStack, suppress

from exporter_process import ExporterProcess
from nvml_library import environment
from stallwatch.simulation.live import gpu_state, live_servers
from stallwatch.simulation.pager import Pager, free_port
from stallwatch.simulation.scenario import scenario_of

GPUS = {
    "works": {"utilization": 85, "memory_gib": 60, "power_watts": 420},
    "waits": {"utilization": 0, "memory_gib": 60, "power_watts": 60},
    "spins": {"utilization": 100, "memory_gib": 60, "power_watts": 90},
}
READY = {"for": "10m", "phase": "ready", "scheduler": {"cpu": 0.1}, "log": "silent", "health": "ok"}
WORK = {"running": 5, "queued": 1, "tokens_per_second": 300}
LOAD = {
    "for": "4s",
    "phase": "loading_weights",
    "gpu": {"utilization": 3, "memory_gib": {"from": 1, "to": 76}, "power_watts": 90},
    "scheduler": {"cpu": 0.1},
    "log": "progress",
    "health": "refused",
}
SERVERS = {
    "busy": (
        ["--tp-size", "4", "--nnodes", "2", "--node-rank", "0", "--dist-init-addr", "10.0.0.1:5000"],
        [{**READY, "gpu": GPUS["works"], "log": "progress", "engine": WORK}],
    ),
    "idle": (
        ["--base-gpu-id", "2"],
        [{**READY, "gpu": GPUS["waits"], "engine": {"running": 0, "queued": 0, "tokens_per_second": 0}}],
    ),
    "hung in its start": (
        ["--tp-size", "2", "--base-gpu-id", "3"],
        [LOAD, {"for": "10m", "gpu": {"utilization": 0}, "scheduler": {"cpu": 0}, "log": "silent"}],
    ),
    "hung at work": (
        ["--base-gpu-id", "5"],
        [
            {**READY, "for": "6s", "gpu": GPUS["works"], "log": "progress", "engine": WORK},
            {**READY, "gpu": GPUS["spins"], "health": 503, "engine": {**WORK, "tokens_per_second": 0}},
        ],
    ),
}
FAST = {
    "GPU__INTERVAL": "1s",
    "DISCOVERY__INTERVAL": "1s",
    "ENGINE__INTERVAL": "1s",
    "SOCKET__INTERVAL": "1s",
    "HEALTH__INTERVAL": "2s",
    "LIMITS__SUSPECT": "2s",
    "LIMITS__EVIDENCE": "4s",
    "LIMITS__STALLED": "4s",
    "LIMITS__SILENT": "5s",
    "LIMITS__START_WITHOUT_MOVEMENT": "5s",
    "LIMITS__START_WITHOUT_MOVEMENT_PARTIAL": "5s",
}


def scenario():
    """Return what is played: a server that works, one that rests, one that hangs in its start, one that hangs later."""
    servers = []
    for name, (args, segments) in SERVERS.items():
        words = [*args, "--port", str(free_port()), "--model-path", f"/models/{name}"]
        servers.append({"version": "0.5.9", "args": words, "segments": segments})
    return scenario_of({"name": "fleet", "node": {"gpus": 6}, "servers": servers})


class PlayedFleet:
    """The played node, `with_gpus` and `without` as Prometheus calls its two exporters, and what Prometheus says."""

    def __init__(self, directory, library):
        self._directory = directory
        self._state = directory / "gpus"
        self._scenario = scenario()
        self._players = live_servers(self._scenario, directory)
        environ = environment(library, self._state)
        kept = [{"EVIDENCE__ENABLED": "true", "EVIDENCE__DIRECTORY": directory / f"evidence{n}"} for n in range(2)]
        flags = ((), ("--no-collector.gpu",))
        self._exporters = tuple(
            ExporterProcess(environ, few, **FAST, **own) for few, own in zip(flags, kept, strict=True)
        )
        self.with_gpus, self.without = (f"127.0.0.1:{exporter.port}" for exporter in self._exporters)
        self.servers = dict(zip(SERVERS, (player.name for player in self._players), strict=True))
        self._port = free_port()
        self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        self._stack = AsyncExitStack()

    async def __aenter__(self):
        async with AsyncExitStack() as stack:
            self._show([], 0.0)
            for exporter in self._exporters:
                await stack.enter_async_context(exporter)
            process = subprocess.Popen(self._prometheus(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            stack.callback(self._connection.close)
            for player in self._players:
                stack.push_async_callback(player.close)
            stack.push_async_callback(_ended, asyncio.create_task(self._play()))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_):
        await self._stack.aclose()

    def ask(self, expr, at, *, instant=True):
        """Return the series that Prometheus gives for a query at a moment, or over the minute before it."""
        words = {"time": at} if instant else {"start": at - 60, "end": at, "step": 1}
        return self._get("query" if instant else "query_range", {"query": expr, **words})["result"]

    def values(self, selector, label):
        """Return the values of a label of these series, as a choice of a dashboard offers them."""
        return self._get(f"label/{label}/values", {"match[]": selector})

    def _get(self, path, words):
        self._connection.request("GET", f"/api/v1/{path}?{urllib.parse.urlencode(words)}")
        said = json.load(self._connection.getresponse())
        assert said["status"] == "success", f"{words}: {said['error']}"
        return said["data"]

    async def _play(self):
        t, begin = 0.0, None
        while True:
            for player in self._players:
                await player.advance(t)
            self._show(self._players, t)
            await asyncio.sleep(0.5)
            begin = begin or time.monotonic()  # time goes by once all have started
            t = time.monotonic() - begin

    def _show(self, players, t):
        part = self._state.with_suffix(".part")
        part.write_text(gpu_state(self._scenario.node, players, t))
        part.replace(self._state)

    def _prometheus(self):
        folder = self._directory / "prometheus"
        folder.mkdir()
        config = Pager(folder, 0)._prometheus()
        del config["alerting"]
        config["scrape_configs"][0]["static_configs"] = [{"targets": [self.with_gpus, self.without]}]
        (folder / "prometheus.yml").write_text(json.dumps(config))
        address = f"--web.listen-address=127.0.0.1:{self._port}"
        return [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            address,
        ]


async def _ended(task):
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
