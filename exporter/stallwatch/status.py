"""What does a person see? The page at `/`: links, the verdict on each server, and what cannot be read."""

from html import escape

from stallwatch import __version__
from stallwatch.monitor import View
from stallwatch.past import Past
from stallwatch.snapshot import Moment, Server
from stallwatch.verdict import Verdict
from stallwatch.wording import duration

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="5"><title>Stallwatch</title></head><body>
<h1>Stallwatch {version}</h1>
<p><a href="{metrics}">metrics</a> · <a href="/api/v1/status">status</a> · <a href="/-/healthy">healthy</a> ·
<a href="/-/ready">ready</a></p>
<h2>Servers</h2>
{servers}
<h2>What cannot be read</h2>
{failures}
</body></html>
"""


def page(view: View, telemetry_path: str) -> str:
    """Return the status page as HTML; everything that a watched process names is escaped."""
    snapshot = view.snapshot
    lines = [told(name, verdict, snapshot.moment) for name, verdict in view.verdicts.items()]
    failures = [
        f"{failure.server or 'this node'}: {failure.collector}: {failure.reason} ({failure.detail})"
        for failure in snapshot.failures
    ]
    return PAGE.format(
        version=escape(__version__),
        metrics=escape(telemetry_path),
        servers=_list(lines) or "<p>No inference server is seen on this node.</p>",
        failures=_list(failures) or "<p>Everything can be read.</p>",
    )


def told(name: str, verdict: Verdict, moment: Moment) -> str:
    """Return one line on a server: its verdict, since when, and why."""
    word = f"{verdict.state} ({verdict.signature})" if verdict.signature else verdict.state
    return f"{name}: {word} for {duration(moment.unix - verdict.since)}: {verdict.reason}"


def sentence(server: Server, past: Past, moment: Moment) -> str:
    """Return one line on a server: its phase, its GPUs, and how long ago anything moved."""
    parts = [past.phase or "phase unknown"]
    held = past.gpus.holding
    if held.memory_max is not None:
        parts.append(f"up to {held.memory_max / 1024**3:.0f} GiB on each of {len(server.gpus)} GPUs")
    if held.utilization_max is not None:
        parts.append(f"GPUs at most {held.utilization_max:.0%} busy")
    if past.moved:
        signal, at = max(past.moved.items(), key=lambda item: item[1])
        parts.append(f"last movement {duration(moment.monotonic - at)} ago ({signal})")
    for reason, since in past.demand_since.items():
        parts.append(f"{reason.replace('_', ' ')} for {duration(moment.monotonic - since)}")
    return f"{server.name}: {', '.join(parts)}"


def _list(lines: list[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>\n" for line in lines)
    return f"<ul>\n{items}</ul>" if lines else ""
