"""Of what is an exporter made, and what hears of what? Put together in the order in which the parts need each other."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stallwatch import __version__, aside
from stallwatch.config import Config
from stallwatch.evidence.keeper import EvidenceKeeper
from stallwatch.exposition import Exposition
from stallwatch.flight import FlightRecorder
from stallwatch.gate.admission import Gate, Policy, PolicyLoader
from stallwatch.gate.listener import Listener
from stallwatch.keeping import LASTING, Keeper, usual_file
from stallwatch.monitor import Monitor
from stallwatch.notify.message import Where
from stallwatch.notify.webhook import Webhook
from stallwatch.settings.reload import Reloader
from stallwatch.signals import start_workers
from stallwatch.snapshot import Server
from stallwatch.status import StatusPage
from stallwatch.systemd import Notifier
from stallwatch.trends import Trends
from stallwatch.view import View
from stallwatch.web import SECURITY_HEADERS, Orders, application

if TYPE_CHECKING:
    from stallwatch.evidence.gathering import Found, Gatherer

logger = logging.getLogger("stallwatch")

Load = Callable[[], Config]

LOADING_SECONDS = 20.0
"""How long a disk may take for the code that gathers evidence."""
NEED_A_RESTART = ("web", "workers", "path", "state")
"""Sections of the configuration that count only from the next start on."""


@dataclass(frozen=True, slots=True)
class Reloads:
    """All that is read again: the configuration, and the web file where there is one."""

    configuration: Reloader[Config]
    web: Reloader[Policy] | None
    notifier: Notifier

    def __iter__(self) -> Iterator[Reloader[Any]]:
        """Go through those that there are."""
        return iter((self.configuration, self.web) if self.web else (self.configuration,))

    def last_successful(self) -> bool:
        """Say whether what is in the files is also what is in use."""
        return all(reloader.last_successful for reloader in self)

    async def request(self) -> str | None:
        """Reload now; return what is wrong, or None."""
        self.notifier.reloading()
        wrong = await asyncio.gather(*(reloader.request() for reloader in self))
        self.notifier.ready()
        return "; ".join(filter(None, wrong)) or None


@dataclass(frozen=True, slots=True)
class Running:
    """An exporter that watches and serves."""

    monitor: Monitor
    reloads: Reloads
    watching: asyncio.Task[None]


def exporter(config: Config, load: Load, played: Mapping[str, str]) -> AbstractAsyncContextManager[Running]:
    """Watch and serve a played node, with a configuration that is there already."""
    return exporting(load, config.file, played)


@asynccontextmanager
async def exporting(
    load: Load,
    file: Path | None,
    played: Mapping[str, str] | None = None,
    prepare: Callable[[Config], object] = lambda _config: None,
) -> AsyncIterator[Running]:
    """Watch and serve for as long as the context lasts.

    `played` says to the workers what of the node is played: `nvml`, the module that plays pynvml, and `below`, the
    process that started all servers. `prepare` is called with each configuration, before it is used.
    """

    def apply(new: Config) -> None:
        prepare(new)
        if late := [name for name in NEED_A_RESTART if getattr(new, name) != getattr(config, name)]:
            logger.warning("some settings count only after a restart", extra={"settings": ",".join(late)})
        monitor.configure(new)
        webhook.configure(new.notify.webhook_url_file)
        notifier.pace(new.interval)

    async with AsyncExitStack() as stack:
        notifier = Notifier(os.environ)
        reloader = Reloader(file, load, apply)  # made before the first load, so that it sees what changes meanwhile
        config = load()
        prepare(config)
        gate = Gate(SECURITY_HEADERS, config.web.max_requests)
        reloads = Reloads(reloader, _web_reloader(config, gate), notifier)
        monitor = Monitor(config, start_workers(config, played))
        stack.push_async_callback(monitor.close)
        webhook = Webhook()
        exposition = Exposition(monitor.view, reloaded=reloads.last_successful, tally=lambda: webhook.tally)
        monitor.watch(exposition.publish)
        monitor.watch(webhook.take)
        monitor.watch(lambda _view: notifier.alive())
        trends = Trends()
        monitor.watch(trends.take)
        await _keep(stack, config, monitor, webhook)
        await _keep_evidence(stack, monitor)
        page = StatusPage(lambda: monitor.view, trends, config.web.telemetry_path)
        orders = Orders(reloads.request, monitor.release_gpu)
        app = application(config.web, exposition, lambda: monitor.view, orders, page, gate=gate)
        listener = Listener(app, gate)
        await _listen(stack, listener, config.web.listen_address)
        webhook.begin(_where(listener, gate), config.notify.webhook_url_file)
        stack.push_async_callback(webhook.close)
        for one in reloads:
            one.start()
            stack.push_async_callback(one.stop)
        watching = asyncio.create_task(monitor.run())
        stack.push_async_callback(_cancelled, watching)
        notifier.pace(config.interval)
        notifier.ready()
        stack.callback(notifier.stopping)
        yield Running(monitor, reloads, watching)


def _web_reloader(config: Config, gate: Gate) -> Reloader[Policy] | None:
    """Let the gate go by the web file, and return what reads it again; raises ConfigError."""
    if config.web.config_file is None:
        return None
    loader = PolicyLoader(Path(config.web.config_file))
    reloader = Reloader(Path(config.web.config_file), loader.load, gate.apply, named=loader.seen)
    gate.apply(loader.load())
    return reloader


async def _keep(stack: AsyncExitStack, config: Config, monitor: Monitor, webhook: Webhook) -> None:
    """Recall what an exporter before this one remembered, and keep it for one after it."""

    def remember(now: float) -> dict[str, Any]:
        return {**monitor.remember(now), LASTING: webhook.remember()}

    keeper = Keeper(_kept_in(config))
    kept = await keeper.loaded() or {}
    webhook.recall(kept.pop(LASTING, []), time.monotonic())
    monitor.recall(kept)
    monitor.watch(lambda view: keeper.keep(view.snapshot.moment.monotonic, remember))
    stack.push_async_callback(lambda: keeper.close(monitor.view.snapshot.moment.monotonic, remember))


def _where(listener: Listener, gate: Gate) -> Where:
    """Say where this exporter is, as Prometheus would name it from elsewhere."""
    instance = f"{socket.gethostname()}:{listener.names[0].rpartition(':')[2]}"
    return Where(instance, f"{'https' if gate.context else 'http'}://{instance}")


async def _keep_evidence(stack: AsyncExitStack, monitor: Monitor) -> None:
    """Record the last half hour, and gather evidence of each incident."""

    def record(view: View) -> None:
        if monitor.config.evidence.enabled:
            recorder.take(view.snapshot, monitor.remember)

    async def gather(server: Server) -> "Sequence[Found]":
        gatherer = await asyncio.wait_for(aside.begin(lambda: _gatherer(monitor), "evidence"), LOADING_SECONDS)
        return await gatherer.gather(server)

    recorder = FlightRecorder()
    keeper = EvidenceKeeper(lambda: monitor.config.evidence, gather, recorder.dump)
    await keeper.load()
    monitor.kept = keeper.kept
    monitor.watch(record)
    monitor.watch(keeper.take)
    stack.push_async_callback(keeper.close)


def _gatherer(monitor: Monitor) -> "Gatherer":
    """Load what gathers with the first incident; in a thread, since it is read from a disk that may hang."""
    from stallwatch.evidence.gathering import Gatherer  # noqa: PLC0415 most exporters never see an incident

    return Gatherer(monitor)


def _kept_in(config: Config) -> Path | None:
    if not config.state.enabled:
        return None
    return Path(config.state.file) if config.state.file else usual_file(os.environ)


async def _listen(stack: AsyncExitStack, listener: Listener, address: str) -> None:
    stack.push_async_callback(listener.close)
    await listener.open(address)
    logger.info("serving", extra={"address": ",".join(listener.names), "version": __version__})


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
