"""How does the exporter fare on a node that is only played? All of it but the reads, in virtual time.

The monitor, its lanes and quarantine, history, verdicts, exposition, page and memory are those of `stallwatch serve`.
The workers and probes answer out of a scenario, and fail at times as real ones do.
"""

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from stallwatch.child import fields_of
from stallwatch.collectors.engine import EngineReading
from stallwatch.collectors.gpu import GpuReading
from stallwatch.collectors.health import HealthReading
from stallwatch.collectors.log import LogReading
from stallwatch.collectors.process import ProcessReading
from stallwatch.collectors.socket import SocketReading
from stallwatch.config import Config
from stallwatch.discovery import DiscoveryReading
from stallwatch.exposition import Exposition
from stallwatch.keeping import Keeper
from stallwatch.lanes import Outcome
from stallwatch.monitor import Monitor
from stallwatch.simulation.plot import Scenario
from stallwatch.simulation.virtual import VirtualNode
from stallwatch.snapshot import Failure, Moment, Server, Snapshot
from stallwatch.status import StatusPage
from stallwatch.trends import Trends
from stallwatch.workers import WorkerError, WorkerState

KINDS = {"gpu": GpuReading, "process": ProcessReading, "log": LogReading, "socket": SocketReading}
FAULTS = (
    WorkerError("timeout", "no answer in 5 s, at: pid 1", "pid 1"),
    WorkerError("timeout", "no answer in 5 s, at: gpu 3 nvmlDeviceGetPowerUsage", "gpu 3 nvmlDeviceGetPowerUsage"),
    WorkerError("worker_died", "the worker ended after 0 bytes of a reply"),
    WorkerError("backed_off", "2 workers are stuck; the next starts when one ends"),
    WorkerError("garbage", "worker sent 7 bytes that are no reply to request 1"),
    b"garbage",
)


class Faults(logging.Handler):
    """Keeps what is logged with a traceback, and what the event loop could not hand to anybody."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line of the log."""
        if record.exc_info:
            self.texts.append(f"{record.getMessage()}: {record.exc_info[1]!r}")

    def of_loop(self, _loop: object, context: dict[str, Any]) -> None:
        """Take a report of the event loop."""
        self.texts.append(f"{context['message']}: {context.get('exception')!r}")


class PlayedWorker:
    """Answers for a worker out of the snapshot of the moment; one call of a thousand or so fails."""

    def __init__(self, name: str, exporter: "VirtualExporter", faulty: float) -> None:
        self.name, self._exporter, self._faulty, self.restarts = name, exporter, faulty, 0

    async def call(self, read: str, targets: list[dict[str, Any]], skip: Sequence[str] = ()) -> bytes:  # noqa: ARG002
        """Answer one request."""
        if read != "trial" and self._exporter.dice.random() < self._faulty:
            self.restarts += 1
            fault = self._exporter.dice.choice(FAULTS)
            if isinstance(fault, bytes):
                return fault
            raise fault
        snapshot = self._exporter.seen
        reading: Any = None
        if read == "discovery":
            reading = DiscoveryReading(snapshot.moment.monotonic, snapshot.servers)
        elif read in KINDS:
            reading = snapshot.get(KINDS[read])
        failures = () if reading else (Failure(read, "unreadable", "it is played so"),)
        return json.dumps({"id": 1, "reading": reading, "failures": failures}, default=fields_of).encode()

    def state(self) -> WorkerState:
        """Tell how it fares."""
        return WorkerState(self.name, True, self.restarts, 0)

    def retire(self) -> bool:
        """Be replaced by itself."""
        return True

    async def close(self) -> None:
        """End."""


class PlayedProbes:
    """Answers for a server's port."""

    def __init__(self, exporter: "VirtualExporter", kind: type[Any], name: str) -> None:
        self._exporter, self._kind, self._name = exporter, kind, name

    async def collect(self, server: Server, _settings: object) -> Outcome:
        """Return what the played server answers."""
        for reading in self._exporter.seen.all(self._kind):
            if reading.server == server.name:
                return reading, ()
        return None, (Failure(self._name, "refused", "", server.name),)

    def forget(self, _names: Collection[str]) -> None:
        """Remember nothing."""

    async def close(self) -> None:
        """End."""


class VirtualExporter:
    """The exporter on a played node; `faults` are the unhandled ones, `states` counts the verdicts that were given."""

    def __init__(self, scenario: Scenario, memory: Path, *, faulty: float = 0.0, seed: int = 0) -> None:
        self.dice, self.faults = random.Random(seed), Faults()  # noqa: S311 dice
        self.states: Counter[str] = Counter()
        self._node, self._last = VirtualNode(scenario), 0.0
        self.seen: Snapshot = self._node.look(0.0, 0.0)
        self._keeper = Keeper(memory)
        self._workers = {name: PlayedWorker(name, self, faulty) for name in ("gpu", "host", "trial")}
        logging.getLogger("stallwatch").addHandler(self.faults)
        asyncio.get_running_loop().set_exception_handler(self.faults.of_loop)
        self._begin()

    def _begin(self) -> None:
        probes = {
            "health": PlayedProbes(self, HealthReading, "health"),
            "engine": PlayedProbes(self, EngineReading, "engine"),
        }
        self.monitor = Monitor(Config(), self._workers, probes, lambda: self.moment)  # type: ignore[arg-type]
        self.monitor.recall(self._keeper.load())
        self.exposition, self._trends = Exposition(self.monitor.view), Trends()
        for watcher in (self.exposition.publish, self._trends.take):
            self.monitor.watch(watcher)
        self.page = StatusPage(lambda: self.monitor.view, self._trends, clock=lambda: self.moment.monotonic)

    @property
    def moment(self) -> Moment:
        """The present of the node."""
        return self.seen.moment

    async def look(self, t: float) -> None:
        """Go to this time of the scenario, look, and scrape."""
        self.seen, self._last = self._node.look(t, t - self._last), t
        await self.monitor.tick()
        await asyncio.sleep(0)
        self.states.update(verdict.state for verdict in self.monitor.view.verdicts.values())
        self.exposition.page("text/plain")

    async def restart(self) -> None:
        """End the exporter and begin another one, which goes on with what was kept."""
        await self._keeper.close(self.moment.monotonic, self.monitor.remember, within=10.0)
        await self.monitor.close()
        self._begin()

    def series(self) -> int:
        """Return how many series a scrape has now."""
        return sum(not line.startswith(b"#") for line in self.exposition.page("text/plain").plain.splitlines())

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of the first such sample."""
        for line in self.exposition.page("text/plain").plain.decode().splitlines():
            if line.startswith(f"stallwatch_{name}") and all(
                f'{key}="{value}"' in line for key, value in labels.items()
            ):
                return float(line.rpartition(" ")[2])
        return None

    async def close(self) -> None:
        """End the exporter."""
        await self.monitor.close()
        logging.getLogger("stallwatch").removeHandler(self.faults)
