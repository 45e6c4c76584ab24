"""How does the exporter live? It serves until it is told to end, and ends within two seconds whatever is stuck."""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from stallwatch import __version__
from stallwatch.config import Config, ConfigError
from stallwatch.exposition import Exposition
from stallwatch.journal import LoopFaults, setup
from stallwatch.keeping import Keeper, usual_file
from stallwatch.monitor import Monitor, start_workers
from stallwatch.release import USUAL_SECONDS
from stallwatch.settings.reload import Reloader
from stallwatch.status import StatusPage
from stallwatch.trends import Trends
from stallwatch.values import split_listen_address
from stallwatch.web import Orders, application

logger = logging.getLogger("stallwatch")

Load = Callable[[], Config]


class NoBadRequests(logging.Filter):
    """Leaves out what a client sent that is no HTTP: whoever reaches the port could fill the log with it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether the record is of anything else."""
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


NO_BAD_REQUESTS = NoBadRequests()

LAST_RESORT_SECONDS = 1.8
NEED_A_RESTART = ("web", "workers", "path", "state")
"""Sections of the configuration that count only from the next start on."""


class ListenError(Exception):
    """The address cannot be listened on."""


@dataclass(frozen=True, slots=True)
class Running:
    """An exporter that watches and serves."""

    monitor: Monitor
    reloader: Reloader
    watching: asyncio.Task[None]


def serve(load: Load, file: Path | None) -> int:
    """Run the exporter until SIGTERM or SIGINT and return its exit code; raises ConfigError if it cannot begin."""
    for number in (signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # nothing is there yet that could be reloaded or released
    try:
        # What ran is held, since a finalizer would kill a worker that is stuck inside a driver call.
        _ran = asyncio.run(run(load, file))
    except ConfigError:
        raise
    except ListenError as error:
        logger.error("cannot serve", extra={"error": str(error)})  # noqa: TRY400 a traceback tells nothing more
        return 1
    except Exception:
        logger.exception("ended by a fault of its own")
        return _leave(1)
    return _leave(0)


def _leave(code: int) -> NoReturn:
    """End at once: the interpreter would wait for threads and call finalizers."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


async def run(load: Load, file: Path | None) -> Running:
    """Watch and serve until a signal says to end, and return what ran."""
    asyncio.get_running_loop().set_exception_handler(LoopFaults(logger))
    async with exporting(load, file, prepare=lambda config: setup(config.log.format, config.log.level)) as running:
        try:
            await _told_to_end(running)
        finally:
            last_resort = threading.Timer(LAST_RESORT_SECONDS, os._exit, (1,))  # ends even a blocked event loop
            last_resort.daemon = True
            last_resort.start()
    logger.info("ended")
    return running


def exporter(config: Config, load: Load, nvml: str = "pynvml") -> AbstractAsyncContextManager[Running]:
    """Watch and serve with a configuration that is there already."""
    return exporting(load, config.file, nvml)


@asynccontextmanager
async def exporting(
    load: Load, file: Path | None, nvml: str = "pynvml", prepare: Callable[[Config], object] = lambda _config: None
) -> AsyncIterator[Running]:
    """Watch and serve for as long as the context lasts; `nvml` names the module that plays pynvml.

    `prepare` is called with each configuration, before it is used.
    """

    def apply(new: Config) -> None:
        prepare(new)
        if late := [name for name in NEED_A_RESTART if getattr(new, name) != getattr(config, name)]:
            logger.warning("some settings count only after a restart", extra={"settings": ",".join(late)})
        monitor.configure(new)

    async with AsyncExitStack() as stack:
        reloader = Reloader(file, load, apply)  # made before the first load, so that it sees what changes meanwhile
        config = load()
        prepare(config)
        monitor = Monitor(config, start_workers(config, nvml))
        stack.push_async_callback(monitor.close)
        exposition = Exposition(monitor.view, reloaded=lambda: reloader.last_successful)
        monitor.watch(exposition.publish)
        trends = Trends()
        monitor.watch(trends.take)
        keeper = Keeper(_kept_in(config))
        monitor.recall(keeper.load())
        monitor.watch(lambda view: keeper.keep(view.snapshot.moment.monotonic, monitor.remember))
        stack.push_async_callback(lambda: keeper.close(monitor.view.snapshot.moment.monotonic, monitor.remember))
        page = StatusPage(lambda: monitor.view, trends, config.web.telemetry_path)
        orders = Orders(reloader.request, monitor.release_gpu)
        app = application(config.web, exposition, lambda: monitor.view, orders, page)
        await _listen(stack, app, config.web.listen_address)
        reloader.start()
        stack.push_async_callback(reloader.stop)
        watching = asyncio.create_task(monitor.run())
        stack.push_async_callback(_cancelled, watching)
        yield Running(monitor, reloader, watching)


def _kept_in(config: Config) -> Path | None:
    if not config.state.enabled:
        return None
    return Path(config.state.file) if config.state.file else usual_file(os.environ)


async def _listen(stack: AsyncExitStack, app: web.Application, address: str) -> None:
    requests = logging.getLogger("stallwatch.http")
    requests.addFilter(NO_BAD_REQUESTS)
    # Its shutdown takes twice that where a client hangs.
    runner = web.AppRunner(app, access_log=None, logger=requests, shutdown_timeout=0.2)
    stack.push_async_callback(runner.cleanup)
    await runner.setup()
    host, port = split_listen_address(address)
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        raise ListenError(error.strerror or str(error)) from error
    places = ",".join(sorted(_shown(name) for name in runner.addresses))
    logger.info("serving", extra={"address": places, "version": __version__})


def _shown(name: tuple[str, int]) -> str:
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _told_to_end(running: Running) -> None:
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    requests: set[asyncio.Task[object]] = set()

    def begin(order: Coroutine[object, object, object]) -> None:
        request = loop.create_task(order)
        requests.add(request)
        request.add_done_callback(requests.discard)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: begin(running.reloader.request()))
    loop.add_signal_handler(signal.SIGUSR1, lambda: begin(running.monitor.release_gpu(USUAL_SECONDS)))
    ended = asyncio.create_task(end.wait())
    done, _ = await asyncio.wait({ended, running.watching}, return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    if running.watching in done:
        running.watching.result()  # the monitor never ends by itself: what ended it is a bug, and must be seen


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
