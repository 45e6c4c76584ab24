"""What is read, how often, and by whom? See `COLLECTORS`; a new signal is one file in `collectors/` and one line here.

What can block is read by the workers, each of which loads only the modules named here.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stallwatch.collectors import engine, gpu, health, kernel, log, process, socket
from stallwatch.config import Config
from stallwatch.gpus.nvml import SLOWLY
from stallwatch.lanes import Outcome
from stallwatch.snapshot import Family, Moment, Reading, Server
from stallwatch.workers import Deadlines, Worker


@dataclass(frozen=True, slots=True)
class Collector:
    """One signal: what it yields, which worker reads it ("" when it is read here), how often, what is asked for."""

    name: str
    reading: type[Reading]
    families: Callable[[Sequence[Any], Moment], Iterable[Family]]
    interval: Callable[[Config], float]
    worker: str = ""
    target: Callable[[Server], dict[str, Any] | None] = lambda _server: None
    settings: Callable[[Config, str], Any] = lambda _config, _server: None  # of one that is read here, per server
    answered: Callable[[Any], bool] = lambda _reading: True  # whether the server got on with it


COLLECTORS = (
    Collector(gpu.NAME, gpu.GpuReading, gpu.families, lambda config: config.gpu.interval, worker="gpu"),
    Collector(
        process.NAME, process.ProcessReading, process.families, lambda config: config.interval, "host", process.target
    ),
    Collector(log.NAME, log.LogReading, log.families, lambda config: config.interval, "host", log.target),
    Collector(
        socket.NAME, socket.SocketReading, socket.families, lambda config: config.socket.interval, "host", socket.target
    ),
    Collector(
        kernel.NAME, kernel.KernelReading, kernel.families, lambda _config: kernel.INTERVAL, "host", kernel.target
    ),
    Collector(
        health.NAME,
        health.HealthReading,
        health.families,
        lambda config: config.health.interval,
        settings=lambda config, server: config.health_of(server),
        answered=health.answered,
    ),
    Collector(
        engine.NAME,
        engine.EngineReading,
        engine.families,
        lambda config: config.engine.interval,
        settings=lambda config, server: config.engine_of(server),
    ),
)
WORKER_MODULES = {
    "gpu": ("stallwatch.collectors.gpu", "stallwatch.sources.gpus"),
    "host": (
        "stallwatch.discovery",
        "stallwatch.collectors.process",
        "stallwatch.collectors.log",
        "stallwatch.collectors.socket",
        "stallwatch.collectors.kernel",
    ),
    "trial": ("stallwatch.trial",),
    "evidence": (
        "stallwatch.sources.threads",
        "stallwatch.sources.descriptors",
        "stallwatch.sources.environment",
        "stallwatch.sources.kernel",
        "stallwatch.sources.lines",
    ),
}

ON_DEMAND = ("trial", "evidence")  # workers that only live while something is asked of them


class Direct(Protocol):
    """A collector that reads here, over HTTP, one server at a time."""

    async def collect(self, server: Server, settings: Any) -> Outcome:
        """Read one server."""

    def forget(self, names_alive: Collection[str]) -> None:
        """Forget all servers but these."""

    async def close(self) -> None:
        """Close what is open."""


def start_workers(config: Config, played: Mapping[str, str] | None = None) -> dict[str, Worker]:
    """Return the workers; each starts with its first request. `played` are options of theirs that nobody configures."""
    options = {"procfs": config.path.procfs, "kmsg": config.path.kmsg, "nvml": "pynvml", **(played or {})}
    fast, slow = config.workers.deadline, config.workers.start_deadline
    first = {"gpu": slow}  # the driver may have to wake up first
    return {
        name: Worker(name, modules, options, Deadlines(fast, slow, first.get(name, fast), slowly=SLOWLY))
        for name, modules in WORKER_MODULES.items()
    }
