"""The command `stallwatch replay`: what would have been said of a scenario or recording, and when?"""

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from stallwatch.config import ConfigError
from stallwatch.recording import recorded
from stallwatch.redaction import clean
from stallwatch.replay import Look, broken, play, play_recording
from stallwatch.settings.limit_flag import limits_to_try
from stallwatch.simulation.rulesplay import AlertChange, alert_changes
from stallwatch.simulation.scenario import SHIPPED, Scenario, load_scenario, scenario_file

LONGEST_LINE = 4000
RECORDINGS = frozenset({".jsonl", ".json", ".gz"})


def replay(
    file: Path,
    *,
    as_json: bool = False,
    rules: Path | None = None,
    limits: Sequence[str] = (),
    out: TextIO = sys.stdout,
) -> int:
    """Print each change of a verdict (and of an alert, with rules) and return 1 when an expectation does not hold.

    `limits` are tried instead of those that the servers have, each written `stalled=3m`.
    """
    if rules and not shutil.which("promtool"):
        raise ConfigError("--rules needs promtool, which comes with Prometheus")
    if rules and not list(rules.glob("*.yml")):
        raise ConfigError(f"{rules}: holds no rules (*.yml)")
    is_recording = file.suffix in RECORDINGS or file.is_dir()
    scenario = None if is_recording else load_scenario(scenario_file(file))
    changed = limits_to_try(limits, [server.limits for server in scenario.servers] if scenario else [{}])
    wrong: list[str] = []
    looks: Iterable[Look] = _recorded_looks(file, changed)
    if scenario:
        looks, wrong = broken(scenario, play(scenario, changed=changed))
    elif rules:  # which need all at once; without any, a long recording is not held in memory
        looks = list(looks)
    alerts = alert_changes(scenario, looks, rules) if rules else []
    told = sorted(
        [*verdict_changes(looks), *(_of_alert(change) for change in alerts)], key=lambda entry: float(entry["t"])
    )
    out.writelines(f"{json.dumps(entry) if as_json else _line(entry)}\n" for entry in told)
    if rules and scenario:
        wrong += list(wrong_alerts(scenario, alerts))
    elif scenario and any(expectation.alerts is not None for expectation in scenario.expect):
        sys.stderr.write("its alerts were not judged: give --rules\n")
    for text in wrong:
        sys.stderr.write(f"{text}\n")
    return 1 if wrong else 0


def shipped_scenarios() -> Iterator[str]:
    """Yield a line for each scenario that comes with Stallwatch: the name to play it by, and its title."""
    files = sorted(SHIPPED.glob("*.yml"))
    width = max(len(file.stem) for file in files)
    return (f"{file.stem:<{width}}  {load_scenario(file).name}" for file in files)


def _recorded_looks(file: Path, changed: Mapping[str, float]) -> Iterator[Look]:
    look = None
    for look in play_recording(recorded(file), changed):
        yield look
    if look is None:
        raise ConfigError(f"{file}: holds no snapshot")


def verdict_changes(looks: Iterable[Look]) -> Iterator[dict[str, Any]]:
    """Yield an entry whenever the verdict or signature of a server changes, or it goes."""
    last: dict[str, tuple[str, str]] = {}
    for look in looks:
        for name, verdict in look.verdicts.items():
            key = (verdict.state, verdict.signature)
            if last.get(name) != key:
                last[name] = key
                said = {"verdict": verdict.state, "signature": verdict.signature, "reason": verdict.reason}
                yield {"t": look.t, "server": name, **said}
        for name in [name for name in last if name not in look.verdicts]:
            del last[name]
            yield {"t": look.t, "server": name, "verdict": "gone", "signature": "", "reason": "It is no longer there."}


def wrong_alerts(scenario: Scenario, changes: list[AlertChange]) -> Iterator[str]:
    """Yield which expected alerts do not fire; an empty list expects that no critical one does."""
    for expectation in scenario.expect:
        if expectation.alerts is None:
            continue
        firing = _firing(changes, expectation.at, expectation.server)
        where = f"{scenario.name}: at {expectation.at:g} s {expectation.server}"
        names = sorted({change.alert for change in firing})
        for alert in (alert for alert in expectation.alerts if alert not in names):
            yield f"{where}: expected alert {alert}, firing: {', '.join(names) or 'none'}"
        critical = sorted({change.alert for change in firing if change.labels.get("severity") == "critical"})
        if not expectation.alerts and critical:
            yield f"{where}: expected no critical alert, firing: {', '.join(critical)}"


def _firing(changes: list[AlertChange], at: float, server: str) -> list[AlertChange]:
    now: dict[tuple[Any, ...], AlertChange] = {}
    for change in (change for change in changes if change.t <= at):
        key = (change.alert, *sorted(change.labels.items()))
        now.pop(key, None)
        if change.state == "firing":
            now[key] = change
    return [change for change in now.values() if change.labels.get("server", server) == server or not server]


def _of_alert(change: AlertChange) -> dict[str, Any]:
    return {"t": change.t, "alert": change.alert, "state": change.state, "labels": dict(change.labels)}


def _line(entry: dict[str, Any]) -> str:
    minutes, seconds = divmod(round(entry["t"]), 60)
    if "alert" in entry:
        labels = entry["labels"]
        what = f"{entry['alert']} {entry['state']} ({labels.get('severity', '')}) {labels.get('server', '')}"
    else:
        what = f"{entry['server']} {entry['verdict']} {entry['signature']}: {entry['reason']}".replace(" : ", ": ")
    return f"{minutes:4d}:{seconds:02d}  {clean(what, LONGEST_LINE)}"
