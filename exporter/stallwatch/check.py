"""How are the servers of this node, right now? Asked of the running exporter, or looked at for a few seconds."""

import asyncio
import json
import logging
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stallwatch.asking import RefusedError, asked
from stallwatch.config import Config
from stallwatch.redaction import clean
from stallwatch.wording import duration

WELL = frozenset({"idle", "busy", "starting", "stopping"})
DOUBTFUL = frozenset({"slow", "suspect"})
HUNG = frozenset({"stalled", "dead"})
LONGEST_LINE = 10_000
WIDTH = 100
COLUMNS = ("process", "rank", "state", "cpu", "phase")


def check(  # noqa: PLR0913 one argument per flag
    config: Config,
    *,
    url: str,
    server: str = "",
    as_json: bool = False,
    seconds: float = 10.0,
    record: Path | None = None,
) -> int:
    """Print how the servers are and return the exit code: 0 well, 1 doubtful, 2 hung or dead, 3 unknown or none.

    With a file to record into it looks itself even where an exporter answers.
    """
    status, refusal = None, ""
    if record is None:
        try:
            status = asked(url)
        except RefusedError as error:
            refusal = f" to us ({error})"
    if status is None:
        status = asyncio.run(looked(config, seconds, record)) | {"looked_for": seconds}
    servers = [entry for entry in status["servers"] if server in {"", entry["server"]}]
    text = [json.dumps({**status, "servers": servers})] if as_json else lines(status, servers, refusal)
    sys.stdout.write("\n".join([*text, ""]))
    return exit_code(servers)


async def looked(config: Config, seconds: float, record: Path | None = None) -> dict[str, Any]:
    """Return what is seen in so many seconds without a running exporter; each snapshot is recorded where asked for."""
    from stallwatch.monitor import Monitor, start_workers  # noqa: PLC0415 not needed when an exporter answers
    from stallwatch.recording import Recorder  # noqa: PLC0415 the same
    from stallwatch.report import report  # noqa: PLC0415 the same

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


def lines(status: Mapping[str, Any], servers: list[dict[str, Any]], refusal: str = "") -> list[str]:
    """Return what a person reads; `refusal` says how an exporter answered that tells us nothing."""
    text = []
    if status.get("looked_for"):
        seconds = f"{status['looked_for']:g} s"
        text.append(f"No exporter answers{refusal}; this is a look of {seconds}, which cannot know what came before.")
    if released := status.get("gpu_released_until"):
        text.append(f"The GPUs are released for {duration(released - status['time'])} more, and are not read.")
    if not servers:
        text.append("No inference server is seen on this node.")
        text += [line for one in status.get("failures", ()) for line in _wrapped(_unseen(one))]
    for entry in servers:
        text += _server(entry, status["time"])
    return [clean(line, LONGEST_LINE) for line in text]  # a terminal obeys what is no letter


def _unseen(failure: Mapping[str, Any]) -> str:
    """Return why servers may be there that are not seen, nothing where this is no reason for it."""
    return failure["detail"] if (failure["collector"], failure["server"]) == ("discovery", "") else ""


def _server(entry: Mapping[str, Any], now: float) -> list[str]:
    signature = f" ({entry['signature']})" if entry["signature"] else ""
    head = f"{entry['server']}: {entry['verdict'].upper()}{signature} for {duration(now - entry['since'])}"
    shown = _table([_row(rank) for rank in entry["ranks"]])
    missing = _wrapped(f"missing: {', '.join(entry['missing'])}") if entry["missing"] else []
    return [head, *_wrapped(entry["reason"]), *shown, *missing]


def _row(rank: Mapping[str, Any]) -> tuple[str, ...]:
    return (rank["process"], rank["rank"], rank["state"], _cores(rank["cpu_cores"]), rank["phase"] or "")


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    rows = [COLUMNS, *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return [f"  {'  '.join(row)}".rstrip() for row in padded]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent="  ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _cores(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"
