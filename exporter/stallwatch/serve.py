"""How does the exporter live? It starts, serves until it is told to end, and ends within two seconds whatever is stuck."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

from aiohttp import web

from stallwatch import __version__
from stallwatch.config import Config
from stallwatch.exposition import Exposition
from stallwatch.journal import setup
from stallwatch.monitor import Monitor, start_workers
from stallwatch.settings.reload import Reloader
from stallwatch.web import application

logger = logging.getLogger("stallwatch")


def serve(config: Config, load: Callable[[], Config]) -> int:
    """Run the exporter until SIGTERM or SIGINT and return its exit code."""
    setup(config.log.format, config.log.level)
    try:
        code = asyncio.run(run(config, load))
    except OSError as error:
        logger.error("cannot serve", extra={"address": config.web.listen_address, "error": error.strerror or str(error)})
        return 1
    logging.shutdown()
    sys.stdout.flush()
    # Nothing may run after this: a finalizer would kill a worker that is stuck inside a driver call, and wait for threads.
    os._exit(code)


async def run(config: Config, load: Callable[[], Config]) -> int:
    """Watch and serve until a signal says to end."""
    async with exporter(config, load) as running:
        await _told_to_end(running)
    logger.info("ended")
    return 0


@dataclass(frozen=True, slots=True)
class Running:
    """An exporter that watches and serves."""

    monitor: Monitor
    reloader: Reloader
    watching: asyncio.Task[None]


@asynccontextmanager
async def exporter(config: Config, load: Callable[[], Config], nvml: str = "pynvml") -> AsyncIterator[Running]:
    """Watch and serve for as long as the context lasts; `nvml` names the module that plays pynvml."""
    async with AsyncExitStack() as stack:
        monitor = Monitor(config, start_workers(config, nvml))
        stack.push_async_callback(monitor.close)
        reloader = Reloader(config.file, load, monitor.configure)
        exposition = Exposition(monitor.view, reloaded=lambda: reloader.last_successful)
        monitor.watch(exposition.publish)
        await _listen(stack, config, exposition, monitor, reloader)
        reloader.start()
        stack.push_async_callback(reloader.stop)
        watching = asyncio.create_task(monitor.run())
        stack.push_async_callback(_cancelled, watching)
        yield Running(monitor, reloader, watching)


async def _listen(
    stack: AsyncExitStack, config: Config, exposition: Exposition, monitor: Monitor, reloader: Reloader
) -> None:
    app = application(config.web, exposition, lambda: monitor.view, reloader.request)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    stack.push_async_callback(runner.cleanup)
    await runner.setup()
    host, _, port = config.web.listen_address.rpartition(":")
    await web.TCPSite(runner, host.strip("[]") or None, int(port)).start()
    logger.info("serving", extra={"address": config.web.listen_address, "version": __version__})


async def _told_to_end(running: Running) -> None:
    reloader, watching = running.reloader, running.watching
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: loop.create_task(reloader.request()))
    ended = asyncio.create_task(end.wait())
    done, _ = await asyncio.wait({ended, watching}, return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    if watching in done:
        watching.result()  # the monitor never ends by itself: what ended it is a bug, and must be seen


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
