"""Are the rules, their runbooks and prometheus.yml complete, and do the rules do what their cases say?"""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from stallwatch.gpus.xids import ASKS_RECOVERY, CRITICAL

ROOT = Path(__file__).parents[1]
ALERTS = ROOT / "alerts"
RULES = sorted((ALERTS / "rules").glob("*.yml"))
RUNBOOKS = sorted((ALERTS / "runbooks").glob("*.md"))
CASES = sorted((ROOT / "tests" / "alerts").glob("*_test.yml"))
RUNBOOK_URL = "https://github.com/stallwatch/stallwatch/blob/main/alerts/runbooks/{}.md"

# What the exporter publishes and rules may rest on.
METRICS = {
    "stallwatch_collector_failures_total",
    "stallwatch_collector_success",
    "stallwatch_config_last_reload_successful",
    "stallwatch_evidence_info",
    "stallwatch_evidence_last_timestamp_seconds",
    "stallwatch_gpu_lost",
    "stallwatch_gpu_recovery_action",
    "stallwatch_gpu_utilization_ratio",
    "stallwatch_gpu_xid_last_timestamp_seconds",
    "stallwatch_health_result",
    "stallwatch_health_success",
    "stallwatch_log_last_progress_timestamp_seconds",
    "stallwatch_log_staleness_seconds",
    "stallwatch_process_state",
    "stallwatch_server_crash_looping",
    "stallwatch_server_demand_since_timestamp_seconds",
    "stallwatch_server_gpu_info",
    "stallwatch_server_gpu_last_busy_timestamp_seconds",
    "stallwatch_server_gpu_memory_used_max_bytes",
    "stallwatch_server_gpu_memory_used_min_bytes",
    "stallwatch_server_gpu_utilization_max_ratio",
    "stallwatch_server_gpu_utilization_min_ratio",
    "stallwatch_server_group_nodes",
    "stallwatch_server_idle",
    "stallwatch_server_info",
    "stallwatch_server_last_movement_timestamp_seconds",
    "stallwatch_server_limit_seconds",
    "stallwatch_server_memory_loaded",
    "stallwatch_server_pending_requests",
    "stallwatch_server_phase",
    "stallwatch_server_rank_phase",
    "stallwatch_server_restarts_total",
    "stallwatch_server_signature",
    "stallwatch_server_verdict",
    "stallwatch_server_verdict_start_timestamp_seconds",
    "stallwatch_signal_success",
    "stallwatch_snapshot_timestamp_seconds",
    "stallwatch_worker_abandoned",
    "stallwatch_worker_restarts_total",
    "stallwatch_worker_up",
}
SEVERITIES = {
    "InferenceGPUFault": {"critical"},
    "InferenceGroupIncomplete": {"critical", "warning"},
    "InferenceGroupLagging": {"warning"},
    "InferenceGroupStalled": {"critical"},
    "InferenceServerBlind": {"warning"},
    "InferenceServerCrashLooping": {"critical"},
    "InferenceServerDead": {"critical"},
    "InferenceServerSilent": {"critical", "warning"},
    "InferenceServerSlow": {"warning"},
    "InferenceServerStalled": {"critical"},
    "InferenceServerStartupStuck": {"critical"},
    "InferenceServerSuspect": {"warning"},
    "StallwatchCollectorFailing": {"warning"},
    "StallwatchConfigReloadFailed": {"warning"},
    "StallwatchDown": {"critical"},
    "StallwatchSnapshotStale": {"critical"},
    "StallwatchWorkerStuck": {"warning"},
}
# Their descriptions name the signature; no alert has it as a label, since it may change within one incident.
NAMES_SIGNATURE = {
    "InferenceGroupStalled",
    "InferenceServerCrashLooping",
    "InferenceServerDead",
    "InferenceServerSlow",
    "InferenceServerStalled",
}


def run(*command):
    """Run a tool in the alerts folder and return its output, failing with it when the tool is not content."""
    done = subprocess.run(command, cwd=ALERTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def rules():
    """List every rule of every file."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def alerts():
    """List the rules that are alerts."""
    return [rule for rule in rules() if "alert" in rule]


def cases():
    """List the (file, case) pairs of all promtool files."""
    return [(path, case) for path in CASES for case in yaml.safe_load(path.read_text())["tests"]]


def identity(rule):
    """Name an alert in a test report."""
    return f"{rule['alert']}-{rule['labels']['severity']}"


each_alert = pytest.mark.parametrize("rule", alerts(), ids=identity)


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_rules_are_valid(path):
    """Prometheus accepts each rule file, and no two rules of it collide."""
    run("promtool", "check", "rules", "--lint=all", "--lint-fatal", str(path))


def test_prometheus_configuration_is_valid_and_loads_every_rule():
    """The shipped prometheus.yml is accepted from its own folder and finds all rule files."""
    assert f"SUCCESS: {len(RULES)} rule files found" in run("promtool", "check", "config", "prometheus.yml")


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name)
def test_rules_behave(path):
    """Every case of the file holds."""
    run("promtool", "test", "rules", str(path))


@each_alert
def test_alert_has_a_known_severity(rule):
    """Each alert has the severity that was designed for it."""
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in SEVERITIES[rule["alert"]]


def test_every_designed_alert_is_there():
    """No designed alert is missing, none is there twice with one severity."""
    assert sorted(map(identity, alerts())) == sorted(
        f"{name}-{each}" for name in SEVERITIES for each in SEVERITIES[name]
    )


@each_alert
def test_alert_is_described(rule):
    """Each alert has a static summary sentence, a description that names the place, and the link to its runbook."""
    annotations = rule["annotations"]
    assert annotations.keys() == {"summary", "description", "runbook_url"}
    assert annotations["summary"].endswith(".")
    assert "{{" not in annotations["summary"]
    place = 'label "instance"' if "Group" in rule["alert"] else "$labels.instance"
    assert place in annotations["description"]
    assert (rule["alert"] in NAMES_SIGNATURE) == ('label "signature"' in annotations["description"])
    assert "First " in annotations["description"]
    assert annotations["runbook_url"] == RUNBOOK_URL.format(rule["alert"])


@each_alert
def test_alert_is_expected_by_a_case(rule):
    """For each alert and severity some promtool case expects it to fire, and some expects what is written in it."""
    name, severity = rule["alert"], rule["labels"]["severity"]
    tests = [case for _, case in cases()]
    samples = [
        sample["labels"]
        for case in tests
        for check in case.get("promql_expr_test", ())
        for sample in check["exp_samples"]
    ]
    wanted = (f'alertname="{name}"', 'alertstate="firing"', f'severity="{severity}"')
    assert any(all(part in labels for part in wanted) for labels in samples)
    assert any(
        check["alertname"] == name and alert["exp_labels"]["severity"] == severity
        for case in tests
        for check in case.get("alert_rule_test", ())
        for alert in check["exp_alerts"]
    )


def test_cases_are_named_by_sentences():
    """Each promtool case says in one sentence of its own what holds."""
    names = [case["name"] for _, case in cases()]
    assert [name for name in names if not name.endswith(".")] == []
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", RUNBOOKS, ids=lambda path: path.stem)
def test_runbook_has_its_headings_and_its_alert(path):
    """Each runbook is named and titled after an alert and has the four sections, none of them empty."""
    title, *sections = re.split(r"^## ", path.read_text(), flags=re.MULTILINE)
    assert path.stem in SEVERITIES
    assert title.strip() == f"# {path.stem}"
    assert [section.splitlines()[0] for section in sections] == ["Meaning", "Impact", "Diagnosis", "Mitigation"]
    assert all(len(section.split()) > 10 for section in sections)


def test_every_alert_has_a_runbook():
    """The runbooks are those of the alerts, no more and no fewer."""
    assert [path.stem for path in RUNBOOKS] == sorted({rule["alert"] for rule in alerts()})


def test_rules_use_only_published_metrics():
    """Expressions and descriptions ask only for metrics that the exporter publishes, or that the rules record."""
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    texts = [rule["expr"] + rule.get("annotations", {}).get("description", "") for rule in rules()]
    used = {name for text in texts for name in re.findall(r"[a-z_:]*stallwatch[_:][a-z_:]+", text)}
    assert used - METRICS - recorded == set()
    assert used & METRICS


def test_records_stand_in_the_group_that_uses_them():
    """No rule waits a round for a record of another group."""
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            recorded = {rule["record"] for rule in group["rules"] if "record" in rule}
            asked = {name for rule in group["rules"] for name in re.findall(r"[a-z_]+:[a-z_]+", rule["expr"])}
            assert asked <= recorded


def test_the_xids_that_page_are_those_that_are_judged():
    """The rule names the critical ones but that which the recovery action says better, its description all of them."""
    (rule,) = (rule for rule in alerts() if rule["alert"] == "InferenceGPUFault")
    for text, wanted in (
        (rule["expr"], CRITICAL.keys() - {ASKS_RECOVERY}),
        (rule["annotations"]["description"], CRITICAL.keys()),
    ):
        (named,) = re.findall(r"xid=~[\"']([0-9|]+)[\"']", text)
        assert {int(code) for code in named.split("|")} == set(wanted)
