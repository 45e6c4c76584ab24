"""What does a receiver of Alertmanager's webhooks get to read? The JSON of its version 4, of all that fires on a node.

The group is the node: each message states all its alerts that fire and those that have just ended, the news first, and
is `resolved` when none fires any more. Fingerprints are those that Alertmanager gives the same labels.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from stallwatch.notify.incidents import DEAD, GPU_FAULT, STALLED, Alert, News

SUMMARIES = {
    STALLED: "Inference server has stalled.",
    DEAD: "Inference server is dead.",
    GPU_FAULT: "A GPU has a fault that no restart of a server mends.",
}
"""In the words of the shipped rules."""
RUNBOOKS = "https://github.com/stallwatch/stallwatch/blob/main/alerts/runbooks"
JOB = "stallwatch"
RECEIVER = "stallwatch"
NEVER = "0001-01-01T00:00:00Z"
"""Alertmanager's end of what has not ended."""
LATEST = 253_402_300_799.0
"""The last second of the year 9999, whatever a file that was kept may claim."""

_SAYS = {STALLED: "has stalled", DEAD: "is dead", GPU_FAULT: "cannot go on"}
_FNV_OFFSET, _FNV_PRIME = 14695981039346656037, 1099511628211


@dataclass(frozen=True, slots=True)
class Where:
    """Where the exporter is: `instance` as Prometheus names it, host and port, and the address of its page."""

    instance: str
    url: str


def message(news: News, where: Where) -> bytes:
    """Return the body of one POST."""
    alerts = [
        *(_alert(alert, where) for alert in news.begun),
        *(_alert(alert, where, ended=True) for alert in news.ended),
        *(_alert(alert, where) for alert in news.lasting),
    ]
    group = {"instance": where.instance, "job": JOB}
    named = ", ".join(f"{label}={json.dumps(value)}" for label, value in group.items())
    said = {
        "receiver": RECEIVER,
        "status": "firing" if news.begun or news.lasting else "resolved",
        "alerts": alerts,
        "groupLabels": group,
        "commonLabels": _common(alert["labels"] for alert in alerts),
        "commonAnnotations": _common(alert["annotations"] for alert in alerts),
        "externalURL": where.url,
        "version": "4",
        "groupKey": f"{{}}:{{{named}}}",
        "truncatedAlerts": 0,
    }
    return json.dumps(said).encode()


def labels_of(alert: Alert) -> dict[str, str]:
    """Return the labels that the shipped rules give an alert."""
    return {
        "alertname": alert.name,
        "instance": alert.instance,
        "job": JOB,
        "server": alert.server,
        "severity": "critical",
    }


def fingerprint(labels: Mapping[str, str]) -> str:
    """Return what Alertmanager knows an alert by: the FNV-1a hash of its labels in their order, as 16 hex digits."""
    words = (word for name in sorted(labels) for word in (name, labels[name]))
    found = _FNV_OFFSET
    for byte in b"".join(word.encode(errors="replace") + b"\xff" for word in words):
        found = (found ^ byte) * _FNV_PRIME % 2**64
    return f"{found:016x}"


def _alert(alert: Alert, where: Where, *, ended: bool = False) -> dict[str, Any]:
    labels = labels_of(alert)
    return {
        "status": "resolved" if ended else "firing",
        "labels": labels,
        "annotations": {
            "description": _description(alert),
            "runbook_url": f"{RUNBOOKS}/{alert.name}.md",
            "summary": SUMMARIES[alert.name],
        },
        "startsAt": _time(alert.starts_at),
        "endsAt": _time(max(alert.starts_at, alert.held_at)) if ended else NEVER,
        "generatorURL": where.url,
        "fingerprint": fingerprint(labels),
    }


def _description(alert: Alert) -> str:
    signature = f" Signature: {alert.signature.replace('_', ' ')}." if alert.signature else ""
    since = f" Since {_time(alert.starts_at)}."
    kept = f" Evidence: {alert.evidence} (stallwatch evidence show)." if alert.evidence else ""
    return f"{alert.server} on {alert.instance} {_SAYS[alert.name]}: {alert.reason}{signature}{since}{kept}"


def _time(unix: float) -> str:
    known = min(max(unix, 0.0), LATEST)
    return datetime.fromtimestamp(known, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _common(each: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return what all of them say alike."""
    first, *others = each
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}
