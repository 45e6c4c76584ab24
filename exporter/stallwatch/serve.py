"""How does the exporter live? It serves until it is told to end, and ends within two seconds whatever is stuck."""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import NoReturn

from stallwatch.assembly import Load, Running, exporting
from stallwatch.config import ConfigError
from stallwatch.gate.listener import ListenError
from stallwatch.journal import LoopFaults, setup
from stallwatch.release import USUAL_SECONDS
from stallwatch.tidying import Tidying

logger = logging.getLogger("stallwatch")

LAST_RESORT_SECONDS = 1.8


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
        tidy = Tidying()
        running.monitor.watch(lambda _view: tidy())
        try:
            await _told_to_end(running)
        finally:
            last_resort = threading.Timer(LAST_RESORT_SECONDS, os._exit, (1,))  # ends even a blocked event loop
            last_resort.daemon = True
            last_resort.start()
    logger.info("ended")
    return running


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
    loop.add_signal_handler(signal.SIGHUP, lambda: begin(running.reloads.request()))
    loop.add_signal_handler(signal.SIGUSR1, lambda: begin(running.monitor.release_gpu(USUAL_SECONDS)))
    ended = asyncio.create_task(end.wait())
    done, _ = await asyncio.wait({ended, running.watching}, return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    if running.watching in done:
        running.watching.result()  # the monitor never ends by itself: what ended it is a bug, and must be seen
