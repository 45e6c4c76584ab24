"""What do the alert rules say? Read from the rules and from the inhibitions of the example configuration."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from stallwatch.sections import Limits
from stallwatch.values import format_duration

ALERTS = Path(__file__).parents[1] / "alerts"
ALERT_COLUMNS = ("alert", "severity", "says", "decided by", "after", "muted by")

_COMPARED = re.compile(r"\b((?:\w+:)?stallwatch_\w+|up)(?:\{[^}]*\})?(?:\[\w+\]\))? (?:==|>|<)")
_MATCHER = re.compile(r'(\w+) *(=~|=) *"([^"]*)"')


def alert_rows() -> Iterable[tuple[str, ...]]:
    """Yield a row for each alerting rule."""
    rules = alerting_rules()
    for rule in rules:
        name, severity = rule["alert"], rule["labels"]["severity"]
        link = f"[`{name}`](../alerts/runbooks/{name}.md)"
        says = rule["annotations"]["summary"]
        muting = ", ".join(f"`{other}`" for other in muted_by(rule, rules))
        yield link, severity, says, _decided_by(rule["expr"]), _after(rule), muting


def alerting_rules() -> list[dict[str, Any]]:
    """Return the alerting rules of all files, in their order."""
    files = [yaml.safe_load(path.read_text()) for path in sorted((ALERTS / "rules").glob("*.yml"), reverse=True)]
    return [rule for file in files for group in file["groups"] for rule in group["rules"] if "alert" in rule]


def muted_by(rule: Mapping[str, Any], rules: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of the other alerts that mute this one while they fire."""
    inhibitions = yaml.safe_load((ALERTS / "alertmanager.yml").read_text())["inhibit_rules"]
    return list(
        dict.fromkeys(
            other["alert"]
            for inhibition in inhibitions
            if _matches(rule, inhibition["target_matchers"])
            for other in rules
            if other is not rule and _matches(other, inhibition["source_matchers"])
        )
    )


def _matches(rule: Mapping[str, Any], matchers: Iterable[str]) -> bool:
    """Tell whether an alert of this rule can match; which server and node it is about is not known here."""
    labels = {"alertname": rule["alert"], **rule["labels"]}
    for label, operator, value in (_MATCHER.fullmatch(text).groups() for text in matchers):  # type: ignore[union-attr]
        pattern = value if operator == "=~" else re.escape(value)
        if label in labels and not re.fullmatch(pattern, labels[label]):
            return False
    return True


def _decided_by(expression: str) -> str:
    named = re.findall(r'verdict=~?"([\w|]+)"', expression)
    verdicts = dict.fromkeys(verdict for text in named for verdict in text.split("|"))
    if verdicts:
        return ", ".join(f"verdict `{verdict}`" for verdict in verdicts)
    if "limit=" in expression:
        return "raw signals"
    return ", ".join(f"`{name}`" for name in dict.fromkeys(_COMPARED.findall(expression)))


def _after(rule: Mapping[str, Any]) -> str:
    defaults = Limits().named()
    limits = dict.fromkeys(re.findall(r'limit="(\w+)"', rule["expr"]))
    named = [f"`limits.{name}` ({format_duration(defaults[name])})" for name in limits]
    ages = [format_duration(float(age)) for age in re.findall(r"\}\) >= (\d+)", rule["expr"])]
    return " and ".join([*named, *ages, *([rule["for"]] if "for" in rule else [])]) or "at once"
