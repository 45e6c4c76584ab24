"""The committed dashboards are what the code builds, hold to one set of conventions, and ask for what there is."""

import json
import re
import subprocess
import sys

import pytest

from dashboards import GRAFANA, NAMES, annotations, choices, dashboard, filled, panels, queries
from documents import ROOT, families, rules_of
from stallwatch.past import COLD, LOW_POWER
from stallwatch.sections import Limits

SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)(?:=~|!~|!=|=)"')
LISTED = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right) \(([^)]*)\)")
TIMES = {"s", "dthms", "dateTimeFromNow"}
UNITS = {"none", "bytes", "binBps", "percentunit", "watt", "cps", "hertz", "celsius", *TIMES}
TARGET = {"job", "instance"}
NAME = re.compile(r"\b(?:stallwatch|process|scrape)_[a-z_]+|\bALERTS\w*|\bup\b")
ALERT = {"alertname", "severity", "server", "gpu", "group", *TARGET}
OF_PROMETHEUS = {
    **dict.fromkeys(("up", "scrape_duration_seconds", "scrape_samples_scraped"), TARGET),
    "ALERTS": {"alertstate", *ALERT},
    "ALERTS_FOR_STATE": ALERT,
}
RULES = sorted((ROOT / "alerts" / "rules").glob("*.yml"))


def every_query():
    """Return all queries of all dashboards."""
    return [query for name in NAMES for query in (*queries(name), *annotations(name))]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the builder of dashboards needs Python 3.11")
def test_the_committed_files_are_what_the_code_builds(tmp_path):
    """`make dashboards` changes nothing."""
    subprocess.run([sys.executable, str(GRAFANA / "build.py"), str(tmp_path)], check=True)
    built = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert built == {path.name: path.read_text() for path in (GRAFANA / "dashboards").iterdir()}


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_is_one_of_ours(name):
    """Its uid is fixed, nobody edits it in Grafana, and it depends on no Grafana that it was exported from."""
    page = dashboard(name)
    assert (page["uid"], page["title"]) == (f"stallwatch-{name}", f"Stallwatch / {name.capitalize()}")
    assert (page["id"], page["editable"], page["tags"], page["timezone"]) == (None, False, ["stallwatch"], "browser")
    assert page["schemaVersion"] == 42
    assert "Grafana 11" in page["description"]
    assert page["graphTooltip"] == 1, "one crosshair over all panels"
    assert page["refresh"] in page["timepicker"]["refresh_intervals"]
    assert "__inputs" not in page


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_leads_to_the_others(name):
    """Time and choices go along."""
    (others,) = [link for link in dashboard(name)["links"] if link["type"] == "dashboards"]
    assert (others["tags"], others["keepTime"], others["includeVars"]) == (["stallwatch"], True, True)
    assert not [link for link in dashboard(name)["links"] if "placement" in link], "a link that has to be looked for"


@pytest.mark.parametrize("name", NAMES)
def test_the_reader_chooses(name):
    """The Prometheus, the job and the node can be chosen everywhere, the server where servers are shown."""
    variables = {one["name"]: one for one in dashboard(name)["templating"]["list"]}
    assert list(variables) == ["datasource", "job", "instance", *(["server"] if name != "exporter" else [])]
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    assert variables["instance"]["label"] == "Node"
    several = {one["multi"] for key, one in variables.items() if key != "datasource"}
    assert several == {name != "server"}, "one server at a time, and as many as wanted elsewhere"


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_says_what_it_shows(name):
    """Each has a title, a sentence, a unit that Grafana knows, and says what it means when it is empty."""
    for title, panel in panels(name).items():
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["description"].endswith("."), title
        assert defaults["noValue"].startswith("No data because "), title
        assert units_of(panel) <= UNITS, title
        assert panel["type"] == "table" or defaults["unit"], title


def units_of(panel):
    """Return the units of a panel, those of single columns too."""
    settings = [entry for override in panel["fieldConfig"]["overrides"] for entry in override["properties"]]
    units = {entry["value"] for entry in settings if entry["id"] == "unit"}
    return units | {unit for unit in [panel["fieldConfig"]["defaults"].get("unit")] if unit}


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_has_its_place(name):
    """Ids differ, and no panel lies over another or beyond the edge."""
    every = [panel for row in dashboard(name)["panels"] for panel in (row, *row.get("panels", ()))]
    assert len({panel["id"] for panel in every}) == len(every)
    outside = {panel["id"]: cells(panel) for panel in dashboard(name)["panels"]}
    taken = [cell for found in outside.values() for cell in found]
    assert len(set(taken)) == len(taken)
    assert all(column < 24 for found in map(cells, every) for column, _ in found)
    for row in dashboard(name)["panels"]:
        inside = [cell for panel in row.get("panels", ()) for cell in cells(panel)]
        assert len(set(inside)) == len(inside), row["title"]


def cells(panel):
    """Return the cells of the grid that a panel covers."""
    place = panel["gridPos"]
    columns, lines = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
    return [(column, line) for column in columns for line in lines]


@pytest.mark.parametrize("name", NAMES)
def test_everything_asks_the_chosen_prometheus(name):
    """No panel, query, choice or annotation is tied to a data source of somebody's Grafana."""
    page = dashboard(name)
    parts = [*panels(name).values(), *(target for panel in panels(name).values() for target in panel["targets"])]
    parts += [*page["annotations"]["list"], *page["templating"]["list"][1:]]
    assert {json.dumps(part["datasource"], sort_keys=True) for part in parts} == {
        '{"type": "prometheus", "uid": "${datasource}"}'
    }


@pytest.fixture
async def known():
    """Return the families that can be published, by name."""
    return {family.name: family for family in families()}


async def test_every_query_asks_for_what_there_is(known):
    """Each metric can be published and has the labels that are asked for, and is asked of the chosen nodes alone."""
    labels = {name: {*family.labels, *TARGET} for name, family in known.items()} | OF_PROMETHEUS
    for query in every_query():
        selectors = SELECTOR.findall(query.expr)
        named = {metric for metric, _ in selectors}
        assert named <= set(labels), query
        assert set(NAME.findall(query.expr)) <= named, f"{query}: a metric without matchers"
        for metric, matchers in selectors:
            assert set(MATCHER.findall(matchers)) <= labels[metric], f"{query}: {metric}"
            assert len(re.findall(r'(job|instance)(?:=|=~)"\$\1"', matchers)) == 2, f"{query}: {metric}"
        listed = {label for words in LISTED.findall(query.expr) for label in words.split(", ") if label}
        assert listed | query.legend <= set().union(*(labels[metric] for metric in named)), query


async def test_counters_are_never_shown_as_they_are(known):
    """What only grows is shown as its growth; what does not is never taken for it."""
    counters = {name for name, family in known.items() if family.kind == "counter"}
    for query in every_query():
        rated = set(re.findall(r"(?:rate|increase)\((\w+)", query.expr))
        assert rated == {metric for metric, _ in SELECTOR.findall(query.expr)} & counters, query


def test_every_query_is_promql(tmp_path):
    """Prometheus takes each of them, as Grafana sends it."""
    values = {"job": "stallwatch", "instance": "node:19847", "server": "sglang:30000"}
    exprs = [filled(query.expr, **values) for query in every_query()]
    rules = [{"record": f"dashboards:query:{number}", "expr": expr} for number, expr in enumerate(exprs)]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboards", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


async def test_the_choices_exist(known):
    """Each choice is offered from a metric that has that label."""
    for variable, selector in (choice for name in NAMES for choice in choices(name)):
        assert variable in {*known[selector.partition("{")[0]].labels, *TARGET}


def addresses(name):
    """Return every address that a dashboard leads to."""
    return set(re.findall(r'"url": "([^"]+)"', json.dumps(dashboard(name))))


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name):
    """A runbook that is linked exists; a dashboard that is linked exists and knows the choices that are handed over."""
    for address in addresses(name):
        if address.startswith("/d/"):
            uid, _, query = address.removeprefix("/d/stallwatch-").partition("?")
            handed = set(re.findall(r"var-(\w+)=", query))
            assert handed == {one["name"] for one in dashboard(uid)["templating"]["list"]}
            assert re.search(r"=\$\{__data\.fields\.\w+:percentencode\}", query), "a name may hold & and #"
        else:
            path = address.partition("/blob/main/")[2].replace("${__data.fields.Alert:percentencode}", "StallwatchDown")
            assert (ROOT / path).exists(), address


def test_every_alert_can_be_reached():
    """The table of alerts leads to the runbook that has the name of the alert, and each alert has one."""
    links = addresses("fleet")
    (by_name,) = [address for address in links if "__data.fields.Alert" in address]
    for rule in (rule for path in RULES for rule in rules_of(path)):
        assert rule["annotations"]["runbook_url"] == by_name.replace(
            "${__data.fields.Alert:percentencode}", rule["alert"]
        )


def limits_in(text):
    """Return the limits that queries name."""
    return {name for names in re.findall(r'limit=~?"([a-z_|]+)"', text) for name in names.split("|")}


def test_dashboards_and_rules_speak_of_the_same_limits():
    """Every limit that a rule waits for is a line in a dashboard, and every such line is a limit."""
    rules = limits_in("".join(path.read_text() for path in RULES))
    shown = limits_in("".join(query.expr for query in every_query()))
    assert rules <= shown <= set(Limits().named())


def test_dashboards_and_rules_speak_of_the_same_verdicts():
    """What counts as not well is what the rules alert on."""
    rules = set(re.findall(r'verdict="(\w+)"', "".join(path.read_text() for path in RULES)))
    table = panels("fleet")["Servers that are not well"]["targets"]
    (shown,) = {re.findall(r'verdict=~"([a-z|]+)"', target["expr"])[0] for target in table}
    assert set(shown.split("|")) == rules


def steps(panel):
    """Return the values from which a panel changes its colour."""
    return [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1:]]


def test_dashboards_and_the_judge_use_the_same_numbers():
    """A GPU is busy, its power low and a snapshot old at the same value in dashboards, rules and judgement."""
    server = panels("server")
    assert steps(server["GPU utilization"]) == [COLD]
    rules = {path.stem: path.read_text() for path in RULES}
    assert f"no GPU reached {COLD * 100:.0f} %" in rules["servers"]
    assert server["GPU power"]["targets"][2]["expr"].startswith(f"{LOW_POWER} * ")
    (old,) = steps(panels("exporter")["Oldest snapshot"])
    assert set(re.findall(r"timestamp_seconds offset (\d+)s", "".join(rules.values()))) == {str(old)}
    assert f" < {old})" in panels("fleet")["Nodes not watched"]["targets"][0]["expr"]
