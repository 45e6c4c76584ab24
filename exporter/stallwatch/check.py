"""How are the servers of this node, right now? Asked of the running exporter, or looked at for a few seconds."""

import asyncio
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from stallwatch.asking import ANYBODY, Client, RefusedError, asked
from stallwatch.config import Config, ConfigError
from stallwatch.terminal.layout import printed, width_of
from stallwatch.terminal.servers import lines
from stallwatch.values import USUAL_URL

WELL = frozenset({"idle", "busy", "starting", "stopping"})
DOUBTFUL = frozenset({"slow", "suspect"})
HUNG = frozenset({"stalled", "dead"})


def check(  # noqa: PLR0913 one argument per flag
    config: Config,
    *,
    url: str | None = None,
    client: Client | None = None,
    look: bool = False,
    server: str = "",
    as_json: bool = False,
    seconds: float = 10.0,
    record: Path | None = None,
) -> int:
    """Print how the servers are and return the exit code: 0 well, 1 doubtful, 2 hung or dead, 3 unknown or none.

    The exporter is asked, at its usual place or at a URL, as this client where one is given. Where none answers at the
    usual place, with `look`, or with a file to record into, it looks itself. Raises ConfigError where the exporter that
    is meant cannot be asked: a look of seconds must not pass for its answer.
    """
    status = None if look or record else told(url, client)
    if status is None:
        status = asyncio.run(looked(config, seconds, record)) | {"looked_for": seconds}
    servers = [entry for entry in status["servers"] if server in {"", entry["server"]}]
    if as_json:
        sys.stdout.write(f"{json.dumps({**status, 'servers': servers})}\n")
    else:
        sys.stdout.write(printed(lines(status, servers, width_of(sys.stdout)), sys.stdout))
    return exit_code(servers)


def told(url: str | None, client: Client | None = None) -> dict[str, Any] | None:
    """Return what the exporter says, None where none answers at its usual place."""
    try:
        status = asked(url or USUAL_URL, client=client or ANYBODY)
    except RefusedError as error:
        raise ConfigError(
            f"the exporter at {url or USUAL_URL} does not tell us: {error} (--look looks itself)"
        ) from error
    if status is None and (url or client):
        raise ConfigError(f"no exporter answers at {url or USUAL_URL} (--look looks itself, at this node)")
    return status


async def looked(config: Config, seconds: float, record: Path | None = None) -> dict[str, Any]:
    """Return what is seen in so many seconds without a running exporter; each snapshot is recorded where asked for."""
    from stallwatch.monitor import Monitor  # noqa: PLC0415 not needed when an exporter answers
    from stallwatch.recording import Recorder  # noqa: PLC0415 the same
    from stallwatch.report import report  # noqa: PLC0415 the same
    from stallwatch.signals import start_workers  # noqa: PLC0415 the same

    logging.getLogger("stallwatch").addHandler(logging.NullHandler())  # what is missing stands in the answer
    recorder = Recorder(record) if record else None
    monitor = Monitor(config, start_workers(config))
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end or not monitor.view.lanes:
            await monitor.tick()
            if recorder:
                recorder.take(monitor.view.snapshot)
            await asyncio.sleep(min(config.interval, max(0.0, end - time.monotonic())))
    finally:
        await monitor.close()
    return report(monitor.view)


def exit_code(servers: list[dict[str, Any]]) -> int:
    """Return the exit code for the worst of these servers."""
    verdicts = {entry["verdict"] for entry in servers}
    if verdicts & HUNG:
        return 2
    if verdicts & DOUBTFUL:
        return 1
    return 0 if verdicts and verdicts <= WELL else 3
