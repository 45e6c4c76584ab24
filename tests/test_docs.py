"""The documentation says what the code does: its tables, its numbers, its examples, its links."""

import io
import re
import shlex
from contextlib import redirect_stderr

import pytest
import yaml

from documents import FENCE, PACKAGE, PAGES, REFERENCE, ROOT, blocks, families, name_of, rules_of, sessions
from stallwatch.commandline import parser
from stallwatch.config import Config
from stallwatch.exposition import Exposition
from stallwatch.monitor import Monitor
from stallwatch.sections import Limits
from stallwatch.settings.sources import load
from stallwatch.signals import start_workers
from stallwatch.simulation.replay import replay
from stallwatch.values import parse_duration
from stallwatch.verdict import RULES, SIGNATURES, VERDICTS

DOCS = sorted((ROOT / "docs").glob("*.md"))
LIMIT = re.compile(r"(?P<number>[0-9]+) (?P<unit>s|min|h) \(`limits\.(?P<name>\w+)`")
LIMIT_FIRST = re.compile(r"`limits\.(?P<name>\w+)`, (?P<number>[0-9]+) (?P<unit>s|min|h)\b")
FOREIGN_YAML = {"services", "scrape_configs", "rule_files", "alerting", "route", "groups", "apiVersion", "global"}
"""What the YAML of others begins with: compose, Prometheus, Alertmanager, Kubernetes."""

pages = pytest.mark.parametrize("page", PAGES, ids=name_of)


@pytest.mark.parametrize("page", DOCS, ids=name_of)
def test_the_tables_are_those_of_the_code(page):
    """What `make reference` would write is what stands there."""
    assert REFERENCE["rewritten"](page.read_text()) == page.read_text(), "run: make reference"


def test_every_table_of_the_code_is_on_one_page():
    """Each is written somewhere, once; a group of metrics that is new is told of too."""
    begun = [name for page in DOCS for name in re.findall(r"<!-- begin ([a-z ]+) -->", page.read_text())]
    assert sorted(begun) == sorted(REFERENCE["TABLES"])


async def test_every_name_on_a_page_is_told_of():
    """What a running exporter publishes stands in the reference: no family comes with a reading only."""
    monitor = Monitor(Config(), start_workers(Config()))
    try:
        while not monitor.view.lanes:
            await monitor.tick()
    finally:
        await monitor.close()
    page = Exposition(monitor.view).page("text/plain").plain.decode()
    told = {family.name for family in families()}
    assert set(re.findall(r"^([a-z_]+)[{ ]", page, re.MULTILINE)) <= told


def rows(page, first):
    """Return the first words of the rows of a table, found by the heading of its first column."""
    table = re.search(rf"^\| {first} \|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE)
    return [name for line in table[1].splitlines() for name in re.findall(r"`(\w+)`", line.split(" | ")[0])]


def test_every_verdict_and_signature_is_explained():
    """What can be said of a server stands on the page that tells how it is decided, and in the README."""
    decides = ROOT / "docs" / "decides.md"
    assert sorted(rows(decides, "verdict")) == sorted(VERDICTS)
    assert rows(decides, "signature") == list(SIGNATURES)
    assert sorted(rows(ROOT / "README.md", "verdict")) == sorted(VERDICTS)


def test_the_order_of_decision_has_as_many_steps_as_rules():
    """And one more for what no rule decides."""
    steps = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "decides.md").read_text(), re.MULTILINE)
    assert steps == [str(number) for number in range(1, len(RULES) + 2)]


@pages
def test_limits_are_stated_as_they_are(page):
    """Where a page gives the time of a limit beside its name, it is the default."""
    stated = [*LIMIT.finditer(page.read_text()), *LIMIT_FIRST.finditer(page.read_text())]
    units = {"s": 1, "min": 60, "h": 3600}
    wrong = {m["name"]: m[0] for m in stated if int(m["number"]) * units[m["unit"]] != getattr(Limits(), m["name"])}
    assert wrong == {}


def test_how_long_it_waits_is_told_of_every_limit_that_a_verdict_waits_for():
    """Those that are no budget of a phase, each with its number and its reason."""
    text = (ROOT / "docs" / "decides.md").read_text()
    told = {match["name"] for match in LIMIT.finditer(text)} | set(re.findall(r"\| `limits\.(\w+)` \|", text))
    assert told >= set(Limits.__struct_fields__) - {"evidence", "stopping"}


def test_intervals_are_stated_as_they_are():
    """The promise of how soon a hang is called names the intervals that hold."""
    config, text = Config(), " ".join((ROOT / "docs" / "decides.md").read_text().split())
    said = f"one sampling interval ({config.interval:g} s)"
    assert said in text
    assert f"one probe interval ({config.health.interval:g} s) and its timeout ({config.health.timeout:g} s)" in text


@pages
def test_settings_in_examples_can_be_used(page, tmp_path):
    """Whoever copies a configuration gets one that is read without complaint."""
    path = tmp_path / "stallwatch.yml"
    for block in blocks(page, "yaml"):
        if not yaml.safe_load(block).keys() & FOREIGN_YAML:
            path.write_text(block)
            assert load({"config.file": str(path)}, {}).file == path


def test_the_example_of_a_server_overrides_a_limit():
    """A limit of one server wins over that for all."""
    example = yaml.safe_load(blocks(ROOT / "docs" / "configuration.md", "yaml")[-1])
    own = {server["name"]: server.get("limits", {}) for server in example["servers"]}["kimi"]
    assert parse_duration(own["start_without_movement"]) != Limits().start_without_movement


@pages
def test_what_replay_prints_is_what_stands_there(page):
    """Its output in a page is its output, lines wrapped for the page or not."""
    for line, printed in sessions(page):
        words = shlex.split(line, comments=True)
        if words[:2] == ["stallwatch", "replay"] and printed:
            options = vars(parser().parse_args(words[1:]))
            out, err = io.StringIO(), io.StringIO()
            with redirect_stderr(err):
                replay(**{key: value for key, value in options.items() if key not in {"command", "list"}}, out=out)
            assert printed.split() == f"{out.getvalue()}{err.getvalue()}".split()


@pages
def test_links_lead_somewhere(page):
    """Every relative link of a page leads to a file of the repository, and every `#` to a heading."""
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", FENCE.sub("", page.read_text())):
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or anchor in headings(file), anchor


def headings(file):
    """Return the anchors of the headings of a page, as they are made of their text."""
    lines = re.findall(r"^#+ (.*)$", FENCE.sub("", file.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("page", DOCS, ids=name_of)
def test_every_page_can_be_reached_and_leads_on(page):
    """Another page links to it, and it links to another."""
    others = [other for other in PAGES if other != page and "runbooks" not in other.parts]
    assert any(f"{page.name}" in other.read_text() for other in others)
    assert re.search(r"\]\([\w./]+\.md", page.read_text())


def test_every_part_of_the_package_has_its_place_in_the_architecture():
    """The table says of every module and folder what it is there for."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    parts = [path for path in PACKAGE.iterdir() if not path.name.startswith("_") and path.name != "py.typed"]
    assert [
        path.name
        for path in parts
        if f"`{path.name}{'/' * path.is_dir()}`" not in text.replace("exporter/stallwatch/", "")
    ] == []


def test_every_alert_is_in_the_readme_with_its_severity():
    """The table of alerts holds each alert of the rules once, at the severity it pages with, and its runbook."""
    rules = [rule for path in (ROOT / "alerts" / "rules").glob("*.yml") for rule in rules_of(path)]
    critical = {rule["alert"] for rule in rules if rule["labels"]["severity"] == "critical"}
    alerts = {rule["alert"]: "critical" if rule["alert"] in critical else "warning" for rule in rules}
    text = (ROOT / "README.md").read_text()
    stated = {}
    for names, severity in re.findall(r"^\| (\[`.*?) \| (critical|warning) \|", text, re.MULTILINE):
        for name, target in re.findall(r"\[`(\w+)`\]\(([^)]+)\)", names):
            stated[name] = severity
            assert target == f"alerts/runbooks/{name}.md"
    assert stated == alerts


def test_every_promise_is_shown_by_a_test_that_there_is():
    """The table of faults names, for each promise, tests by file and name."""
    rows = re.findall(r"^\| (?!---)(?!what\b).*\|$", (ROOT / "docs" / "reliability.md").read_text(), re.MULTILINE)
    named = [re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row) for row in rows]
    promises = [row for row in rows if row.count("|") == 4]
    assert len(promises) > 30
    assert all(re.search(r"`tests/", row) for row in promises)
    gone = [
        f"{file}::{name}"
        for tests in named
        for file, name in tests
        if not (ROOT / file).is_file() or not re.search(rf"def {name}\(", (ROOT / file).read_text())
    ]
    assert gone == []
