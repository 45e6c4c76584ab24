"""Whatever a rule, runbook, dashboard, page or deployment file names is there: metrics, alerts, settings, files."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from documents import PACKAGE, PAGES, REFERENCE, ROOT, TEXTS, commands, families, name_of, spans, text_of
from stallwatch.cli import _COMMANDS
from stallwatch.collectors.health import RESULTS, SCOPES
from stallwatch.commandline import parser
from stallwatch.config import Config
from stallwatch.evidence.gathering import SOURCES
from stallwatch.gpus.nvml import RECOVERY_ACTIONS, THROTTLE_REASONS
from stallwatch.sections import Limits
from stallwatch.settings.flags import FLAGS
from stallwatch.settings.sources import FILE_VARIABLE, FOREIGN, PREFIX, _paths, _variable
from stallwatch.signals import COLLECTORS, WORKER_MODULES
from stallwatch.snapshot import PHASES
from stallwatch.tracks.limits import SIGNALS
from stallwatch.verdict import SIGNATURES, VERDICTS

METRICS = {family.name for family in families()}
RULES = [
    rule
    for path in (*(ROOT / "alerts" / "rules").glob("*.yml"), ROOT / "deploy" / "prometheus" / "fleet_rules.yml")
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = {rule["alert"] for rule in RULES if "alert" in rule}
RECORDS = {rule["record"] for rule in RULES if "record" in rule}
# Written by deploy/kubernetes/build.py beside those of alerts/rules.
RECORDS |= {"server:stallwatch_pod", "server:stallwatch_judged_pod", "server:stallwatch_member_pod"}
RECORDS |= {"group_member:stallwatch_pod"}
KEYS = set(re.findall(r"`([\w.\[\]]+)`", "".join(REFERENCE[name]() for name in ("keys", "limits", "servers"))))
SECTIONS = set(Config.__struct_fields__) - {"file"}
VALUES = {
    "verdict": VERDICTS,
    "signature": SIGNATURES,
    "phase": (*PHASES, "connect", "tls", "first_byte", "transfer"),
    "limit": Limits.__struct_fields__,
    "signal": (
        *SIGNALS[None],
        *(collector.name for collector in COLLECTORS),
        *(rule["labels"]["signal"] for rule in RULES if "record" in rule and "signal" in rule.get("labels", {})),
    ),
    "collector": tuple(collector.name for collector in COLLECTORS),
    "worker": tuple(WORKER_MODULES),
    "scope": SCOPES,
    "result": RESULTS,
    "action": (*RECOVERY_ACTIONS, "other"),
    "throttle": tuple(THROTTLE_REASONS),
}
FOREIGN_WORDS = {
    "nvidia_smi": "a program",
    "kube_pod_info": "a metric of kube-state-metrics",
    "grafana_dashboard": "a label that Grafana's sidecar looks for",
    "pagerduty_key": "a file that the reader makes",
    "spc_t": "a type of SELinux",
}
"""Words in code style that are of others, and why they are named."""
THEIR_FILES = {"node7.jsonl", "FILE.jsonl", "FILE.yml", "stallwatch.yml"}
"""Files that the reader makes."""

IN_BUNDLES = {f"{source.name}.json" for source in SOURCES} | {f"{name}.json" for name in ("stacks", "ras")}
IN_BUNDLES |= {"summary.md", "verdict.json", "snapshot.json", "manifest.json"}
"""Files of a bundle of evidence."""

METRIC = re.compile(
    r"(?P<stem>\b(?:[a-z_]+:)?stallwatch(?:_[a-z0-9_]*|:[a-z0-9]+_[a-z0-9_]*))(?:\((?P<parts>[a-z_|]+)\))?"
)
ALERT = re.compile(r"(?P<stem>\b(?:Inference|Stallwatch)[A-Z][A-Za-z]*)(?:\((?P<parts>[A-Za-z|]+)\))?(?P<open>\.[+*])?")
SELECTOR = re.compile(r"\b(\w+) ?(=|!=|=~|!~) ?(?:\\?[\"'])([^\"'\\]*)(?:\\?[\"'])")
COMPARED = re.compile(r"\beq \$(\w+) \"(\w+)\"")
OTHERS = re.compile(r"\b(?:prometheus|alertmanager|amtool|promtool|docker|curl|pip)\b")

texts = pytest.mark.parametrize("text", TEXTS, ids=name_of)
pages = pytest.mark.parametrize("page", PAGES, ids=name_of)


def expanded(match):
    """Return the names that a match stands for, with its alternatives spelled out."""
    return [match["stem"] + part for part in (match["parts"] or "").split("|")]


@texts
def test_metrics_exist(text):
    """Every metric or record by its whole name; where a name is cut short or has alternatives, something begins so."""
    wrong = [
        name
        for match in METRIC.finditer(text_of(text))
        for name in expanded(match)
        if name not in METRICS | RECORDS
        and not ((match["parts"] or name.endswith("_")) and any(metric.startswith(name) for metric in METRICS))
    ]
    assert wrong == []


@texts
def test_alerts_exist(text):
    """Every alert by its name; a pattern begins the name of one."""
    wrong = [
        name
        for match in ALERT.finditer(text_of(text))
        for name in expanded(match)
        if name not in ALERTS and not (match["open"] and any(alert.startswith(name) for alert in ALERTS))
    ]
    assert wrong == []


@texts
def test_label_values_exist(text):
    """A selector or a template asks for a verdict, signature, phase, limit and so on that there is."""
    compared = [(label, "=", value) for label, value in COMPARED.findall(text_of(text))]
    wrong = [
        f"{label}{operator}{value!r}"
        for label, operator, value in [*SELECTOR.findall(text_of(text)), *compared]
        if label in VALUES and "$" not in value
        for word in (value.split("|") if "~" in operator else [value])
        if not any(re.fullmatch(word if "~" in operator else re.escape(word), known) for known in ("", *VALUES[label]))
    ]
    assert wrong == []


@texts
def test_variables_exist(text):
    """A variable of the environment sets something, or is one that Kubernetes makes."""
    known = {FILE_VARIABLE, PREFIX, *map(_variable, _paths(Config))}
    named = set(re.findall(r"\bSTALLWATCH_[A-Z_0-9]*", text_of(text)))
    assert {name for name in named if name not in known and not FOREIGN.fullmatch(name)} == set()


@pages
def test_flags_exist(page):
    """A flag with a dot is one of ours, wherever no other program stands on the line."""
    known = {flag.name for flag in FLAGS} | {"--config.check", "--http.config.file"}
    lines = [line for line in page.read_text().splitlines() if not OTHERS.search(line)]
    lines += [line for line in page.read_text().splitlines() if re.search(r"`?stallwatch (serve|check)", line)]
    assert {flag for line in lines for flag in re.findall(r"--[a-z-]+(?:\.[a-z-]+)+", line)} - known == set()


@pages
def test_keys_exist(page):
    """What looks like a key of the configuration is one, or a part of the configuration."""
    named = {span.partition(":")[0] for span in spans(page) if re.fullmatch(r"[a-z]+(\[\])?(\.[a-z_]+)+(: .*)?", span)}
    ours = {name for name in named if re.split(r"[.\[]", name)[0] in SECTIONS and not name.endswith((".py", ".yml"))}
    assert ours - KEYS - {"servers[].tls", "servers[].health", "servers[].end_to_end_probe"} == set()


@pages
def test_words_exist(page):
    """A word with underscores that stands in code style is one that the code or the rules know."""
    named = {span for span in spans(page) if re.fullmatch(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)+", span)}
    assert named - known_words() - set(FOREIGN_WORDS) == set()


def known_words():
    """Return every word of the code, of the rules and of the names of their files."""
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "alerts" / "rules").glob("*.yml")]
    scenarios = {path.stem for path in (PACKAGE / "scenarios").glob("*.yml")}
    return scenarios | METRICS | {word for file in files for word in re.findall(r"\w+", file.read_text())}


@pages
def test_files_exist(page):
    """A path leads somewhere: in a command from the root of the repository, in the text from the package as well."""
    typed = {word for command in commands(page) for word in command}
    paths = dict.fromkeys(spans(page), (ROOT, PACKAGE)) | dict.fromkeys(typed, (ROOT,))
    gone = {name for name, folders in paths.items() if is_path(name) and not found(name, folders)}
    alone = {name for name in paths if re.fullmatch(r"[\w-]+\.(py|yml|yaml|md|json|service|jsonl)", name)}
    gone |= {name for name in alone - THEIR_FILES - IN_BUNDLES if not any(known.name == name for known in shipped())}
    assert gone == set()


def is_path(name):
    """Tell whether a word is the path of something that is ours."""
    roots = {path.name for path in (*ROOT.iterdir(), *PACKAGE.iterdir()) if path.is_dir()} | {"grafana", "deploy"}
    return re.fullmatch(r"[\w.-]+/[\w./*<>{}-]*", name) and name.split("/")[0] in roots


def found(name, folders):
    """Tell whether a path, in which `<x>` stands for anything, leads to something from one of these folders."""
    pattern = re.sub(r"<\w+>|\{\w+\}", "*", name).rstrip("/")
    return any(any(folder.glob(pattern)) for folder in folders)


def shipped():
    """Return the files of the repository that a page may call by their name."""
    folders = ("alerts", "deploy", "docs", "exporter", "tests", "grafana/dashboards", "grafana/provisioning")
    return [*ROOT.glob("*"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]


@pages
def test_commands_can_be_typed(page):
    """Our command takes what a page types, and every target of make is there."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for program, *words in commands(page):
        if Path(program).name == "stallwatch" and words:
            accepted(words)
        if program == "make":
            assert {word for word in words if "=" not in word} <= targets
        if (program, *words[:1]) == ("docker", "compose"):
            assert composed(words[1:])


def composed(words):
    """Tell whether compose can do this, with profiles and services that there are."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    profiles = {profile for service in services.values() for profile in service.get("profiles", ())}
    chosen = {word for flag, word in pairwise(words) if flag == "--profile"}
    command, *named = [word for word in words if not word.startswith("-") and word not in chosen]
    return chosen <= profiles and command in {"up", "ps", "down"} and set(named) <= services.keys()


def accepted(words):
    """Parse what is typed after `stallwatch`; a command by its name alone is only spoken of."""
    if len(words) == 1 and words[0] in _COMMANDS:
        return
    try:
        parser().parse_args(words)
    except SystemExit as end:
        if end.code:
            pytest.fail(f"stallwatch {' '.join(words)} cannot be typed")


def test_units_start_what_there_is():
    """What systemd runs is a command that there is, with flags that it takes."""
    for unit in (ROOT / "deploy").rglob("*.service"):
        for line in re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE):
            program, *words = line.split()
            assert Path(program).name == "stallwatch"
            accepted(words)
