"""The documentation says what the code does: every metric, every setting, every file it names."""

import importlib
import pkgutil
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from stallwatch import collectors
from stallwatch.config import Config, Limits, ServerConfig
from stallwatch.expense import own_expense
from stallwatch.exposition import build_families
from stallwatch.monitor import Monitor, start_workers
from stallwatch.ownfamilies import own_families
from stallwatch.serverfamilies import server_families
from stallwatch.settings.flags import FLAGS
from stallwatch.settings.sources import _paths, load
from stallwatch.values import format_duration

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| `([^`]+)` \| (.*?) \| (.*) \|$", re.MULTILINE)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def families():
    """Return every family that the exporter can publish; what a family is does not depend on what was read."""
    config = Config()
    view = replace(Monitor(config, start_workers(config)).view, expense=own_expense())
    modules = (
        importlib.import_module(f"stallwatch.collectors.{m.name}") for m in pkgutil.iter_modules(collectors.__path__)
    )
    found = [family for module in modules for family in module.families([], view.snapshot.moment)]
    return [*found, *server_families(view), *own_families(view, reloaded=True), *build_families()]


def rows(page):
    """Return the rows of all tables of a page that begin with a name in code style."""
    return ROW.findall((ROOT / "docs" / page).read_text())


async def test_every_metric_is_described_with_its_type_and_labels():
    """docs/metrics.md lists exactly what can be published."""
    documented = [
        (name, kind, meaning)
        for name, kind, meaning in rows("metrics.md")
        if name.startswith(("stallwatch_", "process_"))
    ]
    stated = {name: (kind, tuple(re.findall(r"`(\w+)`", rest.partition("|")[0]))) for name, kind, rest in documented}
    assert len(stated) == len(documented)
    assert stated == {family.name: (family.kind, family.labels) for family in families()}


def test_every_setting_is_described_with_its_default():
    """docs/configuration.md lists exactly the keys that can be set, each with the default that it has."""
    stated = {key: default for key, default, _ in rows("configuration.md") if not key.startswith("servers[]")}
    defaults = {path: f"`{default_of(path)}`" for path in _paths(Config)}
    assert stated == {**defaults, "servers": "none", "limits": "below"}


def default_of(path):
    """Return the default of a key as it is written in a file."""
    found = Config()
    for key in path.split("."):
        found = getattr(found, key)
    if isinstance(found, float):
        return format_duration(found)
    return ",".join(found) if isinstance(found, tuple) else str(found).lower() if isinstance(found, bool) else found


def test_every_setting_of_a_server_is_described():
    """What can be said of one server stands there too."""
    stated = {key.removeprefix("servers[].") for key, *_ in rows("configuration.md") if key.startswith("servers[].")}
    assert {key.partition(".")[0] for key in stated} == set(ServerConfig.__struct_fields__)


def test_the_example_configuration_can_be_used(tmp_path):
    """Whoever copies it gets what it says."""
    text = (ROOT / "docs" / "configuration.md").read_text()
    example = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[-1]
    path = tmp_path / "stallwatch.yml"
    path.write_text(example)
    config = load({"config.file": str(path)}, {})
    assert [server.name for server in config.servers] == [
        server["name"] for server in yaml.safe_load(example)["servers"]
    ]
    assert config.limits_of("kimi").start_without_movement == 8 * 60 != Limits().start_without_movement


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    """Every relative link of a page leads to a file of the repository, and every `#` to a heading."""
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), target
        headings = [
            line.lstrip("# ").lower().replace(" ", "-") for line in file.read_text().splitlines() if line[:1] == "#"
        ]
        assert not anchor or anchor in headings, anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
async def test_names_in_the_text_exist(page):
    """A metric, limit or flag that a page mentions is one that there is."""
    text = page.read_text()
    metrics = {family.name for family in families()}
    mentioned = set(re.findall(r"`(stallwatch_[a-z_]+)[`{]", text))
    assert mentioned <= metrics
    flags = {flag.name for flag in FLAGS} | {"--config.check"}
    dotted = set(re.findall(r"`?(--[a-z-]+(?:\.[a-z-]+)+)", text))
    assert dotted <= flags


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


def rules_of(path):
    """Return the alerting rules of a file."""
    groups = yaml.safe_load(path.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]
