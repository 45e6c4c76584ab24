"""The command `stallwatch replay`: what would have been said of a scenario or recording, and when?"""

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from stallwatch.config import Config, ConfigError, RuleError
from stallwatch.evidence import store
from stallwatch.recording import recorded
from stallwatch.redaction import clean
from stallwatch.replay import Look, broken, play, play_recording
from stallwatch.sections import Limits
from stallwatch.settings.limit_flag import limits_to_try
from stallwatch.simulation.rulesplay import AlertChange, alert_changes
from stallwatch.simulation.scenario import SHIPPED, Scenario, load_scenario, scenario_file
from stallwatch.verdict import Verdict

LONGEST_LINE = 4000
LARGEST_VERDICT = 8 << 20
RECORDINGS = frozenset({".jsonl", ".json", ".gz"})


class _Told(msgspec.Struct):
    server: str
    limits: dict[str, float]


Entries = list[dict[str, Any]]


def replay(  # noqa: PLR0913 one argument per flag
    file: Path,
    *,
    as_json: bool = False,
    rules: Path | None = None,
    limits: Sequence[str] = (),
    server: str = "",
    out: TextIO = sys.stdout,
) -> int:
    """Print each change of a verdict (and of an alert, with rules) and return 1 when an expectation does not hold.

    `limits` are tried instead of those that the servers have, each written `stalled=3m`. Of the bundle of an incident
    its server is told of, under the limits that it had, unless another `server` is asked for.
    """
    if rules and not shutil.which("promtool"):
        raise ConfigError("--rules needs promtool, which comes with Prometheus")
    if rules and not list(rules.glob("*.yml")):
        raise ConfigError(f"{rules}: holds no rules (*.yml)")
    wrong: list[str] = []
    if file.suffix in RECORDINGS or file.is_dir():
        own = limits_in_bundle(file) if file.is_dir() else {}
        told = _of_recording(file, limits, own, rules)
        server = server or next(iter(own), "")
    else:
        told, wrong = _of_scenario(load_scenario(scenario_file(file)), limits, rules)
    # As data each line is a change; a person is also told how it ends.
    shown = [one for one in told if server in {"", one.get("server", server)} and not (as_json and "ends" in one)]
    out.writelines(f"{json.dumps(entry)}\n" if as_json else f"{_line(entry)}\n" for entry in shown)
    for text in wrong:
        sys.stderr.write(f"{text}\n")
    return 1 if wrong else 0


def _of_scenario(scenario: Scenario, limits: Sequence[str], rules: Path | None) -> tuple[Entries, list[str]]:
    """Return what would have been said of a scenario, and which of its expectations do not hold."""
    changed = limits_to_try(limits, [server.limits for server in scenario.servers])
    looks, wrong = broken(scenario, play(scenario, changed=changed))
    alerts = alert_changes(scenario, looks, rules) if rules else []
    if rules:
        wrong += list(wrong_alerts(scenario, alerts))
        if not alerts:
            sys.stderr.write("nothing would have been paged\n")
    elif any(expectation.alerts is not None for expectation in scenario.expect):
        sys.stderr.write("its alerts were not judged: give --rules\n")
    return _in_order(verdict_changes(looks), alerts), wrong


def _of_recording(
    file: Path, limits: Sequence[str], own: Mapping[str, Mapping[str, float]], rules: Path | None
) -> Entries:
    """Return what would have been said of a recording, and last how it leaves each server."""
    changed = limits_to_try(limits, list(own.values()) or [{}])
    looks: Iterable[Look] = _recorded_looks(file, changed, own)
    if rules:  # which need all at once; without any, a long recording is not held in memory
        looks = list(looks)
    last = _Last()
    told = list(verdict_changes(last.of(looks)))
    alerts = alert_changes(None, looks, rules) if rules else []
    return [*_in_order(told, alerts), *last.told()]


def _in_order(told: Iterable[dict[str, Any]], alerts: Iterable[AlertChange]) -> Entries:
    return sorted([*told, *map(_of_alert, alerts)], key=lambda entry: float(entry["t"]))


class _Last:
    """Lets looks pass and keeps the last one."""

    def __init__(self) -> None:
        self._look: Look | None = None

    def of(self, looks: Iterable[Look]) -> Iterator[Look]:
        """Yield the looks."""
        for look in looks:
            self._look = look
            yield look

    def told(self) -> Iterator[dict[str, Any]]:
        """Yield how each server is at the end: a verdict that lasts is told only where it begins."""
        look = self._look
        for name, verdict in look.verdicts.items() if look else ():
            yield {**_said(look.t if look else 0.0, name, verdict), "ends": True}


def limits_in_bundle(bundle: Path) -> dict[str, dict[str, float]]:
    """Return the limits that the server of a bundle had by then, by its name; nothing where the bundle tells none."""
    try:
        told = msgspec.json.decode(store.read(bundle / "verdict.json", LARGEST_VERDICT), type=_Told)
        limits = {name: value for name, value in told.limits.items() if name in Limits.__struct_fields__}
        Config(limits=msgspec.structs.replace(Limits(), **limits))
    except (OSError, msgspec.MsgspecError, RuleError, RecursionError):
        return {}
    return {told.server: limits}


def shipped_scenarios() -> Iterator[str]:
    """Yield a line for each scenario that comes with Stallwatch: the name to play it by, and its title."""
    files = sorted(SHIPPED.glob("*.yml"))
    width = max(len(file.stem) for file in files)
    return (f"{file.stem:<{width}}  {load_scenario(file).name}" for file in files)


def _recorded_looks(file: Path, changed: Mapping[str, float], own: Mapping[str, Mapping[str, float]]) -> Iterator[Look]:
    look = None
    for look in play_recording(recorded(file), changed, own):
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
                yield _said(look.t, name, verdict)
        for name in [name for name in last if name not in look.verdicts]:
            del last[name]
            yield {"t": look.t, "server": name, "verdict": "gone", "signature": "", "reason": "It is no longer there."}


def _said(t: float, server: str, verdict: Verdict) -> dict[str, Any]:
    said = {"verdict": verdict.state, "signature": verdict.signature, "reason": verdict.reason}
    return {"t": t, "server": server, **said}


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
    if "alert" in entry:
        labels = entry["labels"]
        what = f"{entry['alert']} {entry['state']} ({labels.get('severity', '')}) {labels.get('server', '')}"
    else:
        ends = "the recording ends, " if "ends" in entry else ""
        what = f"{ends}{entry['server']} {entry['verdict']} {entry['signature']}: {entry['reason']}".replace(
            " : ", ": "
        )
    return f"{_clock(entry['t'])}  {clean(what, LONGEST_LINE)}"


def _clock(t: float) -> str:
    minutes, seconds = divmod(round(t), 60)
    return f"{minutes:4d}:{seconds:02d}"
