"""What stands in the committed dashboards? Their panels, and every query in them as Grafana sends it."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

GRAFANA = Path(__file__).parents[1] / "grafana"
NAMES = ("fleet", "server", "exporter")


@dataclass(frozen=True)
class Query:
    """One query of a panel or an annotation; `instant` asks for one moment, `legend` has the labels that it shows."""

    dashboard: str
    title: str
    ref: str
    expr: str
    instant: bool
    legend: frozenset[str] = frozenset()

    def __str__(self):
        return f"{self.dashboard}: {self.title} {self.ref}"


def dashboard(name):
    """Return a committed dashboard."""
    return json.loads((GRAFANA / "dashboards" / f"{name}.json").read_text())


def panels(name):
    """Return the panels of a dashboard by title, those in closed rows too."""
    every = [inner for panel in dashboard(name)["panels"] for inner in (panel, *panel.get("panels", ()))]
    shown = [panel for panel in every if panel["type"] != "row"]
    by_title = {panel["title"]: panel for panel in shown}
    assert len(by_title) == len(shown), "two panels share a title"
    return by_title


def queries(name):
    """Return the queries of the panels of a dashboard."""
    return [_query(name, title, target) for title, panel in panels(name).items() for target in panel["targets"]]


def _query(name, title, target):
    legend = frozenset(re.findall(r"{{(\w+)}}", target.get("legendFormat", "")))
    return Query(name, title, target["refId"], target["expr"], target["instant"], legend)


def columns(panel):
    """Return the labels that are columns of a table."""
    fields = panel["transformations"][-1]["options"]["renameByName"]
    return {field for field in fields if not field.startswith("Value")}


def annotations(name):
    """Return the queries of the annotations of a dashboard."""
    return [
        Query(name, mark["name"], "", mark["expr"], instant=False) for mark in dashboard(name)["annotations"]["list"]
    ]


def choices(name):
    """Return (variable, selector) of the choices for which a dashboard asks Prometheus."""
    asked = [one for one in dashboard(name)["templating"]["list"] if one["type"] == "query"]
    return [(one["name"], re.fullmatch(rf"label_values\((.+), {one['name']}\)", one["query"])[1]) for one in asked]


def filled(expr, **values):
    """Return a query with its variables filled in, as Grafana does before it sends it."""
    for name, value in {"__rate_interval": "4s", "__interval": "1s", **values}.items():
        expr = expr.replace(f"${name}", value)
    assert "$" not in expr, expr
    return expr


def words(panel, ref="A"):
    """Return the word that a panel shows for each code of a query."""
    mappings = panel["fieldConfig"]["defaults"]["mappings"]
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"] == {"id": "byFrameRefID", "options": ref}:
            (mappings,) = [entry["value"] for entry in override["properties"] if entry["id"] == "mappings"]
    return {float(code): shown["text"] for code, shown in mappings[0]["options"].items()}
