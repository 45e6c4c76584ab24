"""When would the alert rules have fired in a scenario? The exposition, scraped in virtual time, through promtool."""

import math
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from stallwatch.exposition import Exposition
from stallwatch.replay import Look
from stallwatch.simulation.plot import Scenario, WatcherEvent
from stallwatch.view import View

SCRAPE = 15.0
FRESH = 5.0
"""A scrape shows the last look before it, of at most this age."""
LABELS = {"job": "stallwatch", "instance": "node:19847"}
_EVALUATED = re.compile(r"time: (?P<time>[0-9hms]+),\n +exp: .*\n +got: (?P<got>.*)")
_ALERT = re.compile(r'\{((?:\w+="(?:[^"\\]|\\.)*"(?:, )?)+)\}')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_METRIC = re.compile(r"\b(?:stallwatch_\w+|up)\b")

Series = dict[tuple[tuple[str, str], ...], list[str]]


@dataclass(frozen=True, slots=True)
class AlertChange:
    """An alert that begins to fire, or ends."""

    t: float
    alert: str
    state: str
    labels: Mapping[str, str]


def alert_changes(scenario: Scenario | None, looks: Iterable[Look], rules: Path) -> list[AlertChange]:
    """Play the rules of a folder over the looks (of a scenario, or a recording) and return when each alert changes."""
    series = scraped(looks, _wanted(rules), scenario)
    firing: dict[float, list[dict[str, str]]] = evaluated(series, rules)
    return list(_changes(firing))


def scraped(looks: Iterable[Look], wanted: frozenset[str], scenario: Scenario | None = None) -> Series:
    """Return the samples of each scrape as promtool wants them: `_` where there is none."""
    series: Series = {}
    numbered = ((math.ceil(look.t / SCRAPE), look) for look in looks)
    by_scrape = {number: look for number, look in numbered if number * SCRAPE - look.t < FRESH}
    end = max(by_scrape, default=0) if scenario is None else int(scenario.seconds // SCRAPE)
    events, last = scenario.watcher if scenario else (), ""
    for number in range(end + 1):
        frozen = _holds(events, "frozen", number * SCRAPE)
        if not frozen and number in by_scrape:
            last = _text(by_scrape[number])
        answers = number in by_scrape or frozen
        if not _holds(events, "scrape_gap", number * SCRAPE):
            _append(series, {**(_samples(last, wanted) if answers else {}), _key("up", {}): str(int(answers))}, number)
    return {key: [*values, *["_"] * (end + 1 - len(values))] for key, values in series.items()}


def _holds(events: Iterable[WatcherEvent], what: str, t: float) -> bool:
    return any(event.what == what and event.at <= t < event.at + event.seconds for event in events)


def _text(look: Look) -> str:
    return Exposition(View(look.snapshot, look.pasts, (), (), look.verdicts)).page("text/plain").plain.decode()


def _samples(text: str, wanted: frozenset[str]) -> dict[Any, str]:
    families = text_string_to_metric_families(text)
    samples = (sample for family in families for sample in family.samples if sample.name in wanted)
    return {_key(sample.name, sample.labels): repr(float(sample.value)) for sample in samples}


def _key(name: str, labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return (("__name__", name), *sorted({**labels, **LABELS}.items()))


def _append(series: Series, samples: Mapping[Any, str], count: int) -> None:
    for key, value in samples.items():
        values = series.setdefault(key, [])
        values += ["_"] * (count - len(values)) + [value]


def _wanted(rules: Path) -> frozenset[str]:
    return frozenset(name for path in rules.glob("*.yml") for name in _METRIC.findall(path.read_text()))


def evaluated(series: Series, rules: Path) -> dict[float, list[dict[str, str]]]:
    """Return the alerts that fire at each evaluation, by promtool."""
    length = max((len(values) for values in series.values()), default=0)
    times = [n * SCRAPE for n in range(length)]
    test = {
        "rule_files": [str(path.resolve()) for path in sorted(rules.glob("*.yml"))],
        "evaluation_interval": f"{SCRAPE:g}s",
        "tests": [
            {
                "interval": f"{SCRAPE:g}s",
                "input_series": [{"series": _selector(key), "values": " ".join(v)} for key, v in series.items()],
                "promql_expr_test": [
                    {
                        "expr": 'ALERTS{alertstate="firing"}',
                        "eval_time": f"{t:g}s",
                        "exp_samples": [{"labels": "none", "value": 1}],
                    }
                    for t in times
                ],
            }
        ],
    }
    with tempfile.TemporaryDirectory(prefix="stallwatch-replay-") as folder:
        path = Path(folder) / "test.yml"
        path.write_text(yaml.safe_dump(test))
        done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False)  # noqa: S607 found on PATH
    return parsed(done.stdout + done.stderr, times)


def _selector(key: tuple[tuple[str, str], ...]) -> str:
    name, *labels = key
    pairs = ", ".join(f'{label}="{_escaped(value)}"' for label, value in labels)
    return f"{name[1]}{{{pairs}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def parsed(output: str, times: list[float]) -> dict[float, list[dict[str, str]]]:
    """Read promtool's account of expectations that were made to fail, which lists what fires."""
    firing: dict[float, list[dict[str, str]]] = {t: [] for t in times}
    for match in _EVALUATED.finditer(output):
        labels = [dict(_LABEL.findall(found)) for found in _ALERT.findall(match["got"])]
        firing[_seconds(match["time"])] = [one for one in labels if "alertname" in one]
    return firing


def _seconds(text: str) -> float:
    units = {"h": 3600, "m": 60, "s": 1}
    return float(sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([hms])", text)))


def _changes(firing: Mapping[float, list[dict[str, str]]]) -> Iterator[AlertChange]:
    before: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for t in sorted(firing):
        now = {tuple(sorted(labels.items())): labels for labels in firing[t]}
        for key, labels in (*now.items(), *before.items()):
            if (key in now) != (key in before):
                shown = {
                    name: value for name, value in labels.items() if name not in {"__name__", "alertname", "alertstate"}
                }
                yield AlertChange(t, labels["alertname"], "firing" if key in now else "resolved", shown)
        before = now
