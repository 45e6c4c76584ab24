"""The manifests: valid, the rules and dashboards of this version, and no right more than watching takes."""

import json
import os
import re
import runpy
import subprocess

import jsonschema
import kubernetes_validate
import pytest
import yaml

from documents import ROOT, blocks, families
from manifests import KUBERNETES, by_kind, documents, kustomized, resolved
from stallwatch.commandline import parser
from stallwatch.settings.sources import load

BUILD = runpy.run_path(str(KUBERNETES / "build.py"))
CRDS = ROOT / "tests" / "data" / "crds"
KUBERNETES_VERSIONS = ("1.31", "1.33", kubernetes_validate.latest_version())
RESOURCES = resolved(KUBERNETES)
TARGET_LABELS = {"namespace", "pod", "container", "endpoint", "service", "node", "instance", "job", "cluster", "rack"}


def one(kind):
    """Return the only resource of a kind."""
    (found,) = [resource for resource in RESOURCES if resource["kind"] == kind]
    return found


def pod():
    """Return what the DaemonSet runs on each node, and its container."""
    spec = one("DaemonSet")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("resource", RESOURCES, ids=lambda found: f"{found['kind']}-{found['metadata']['name']}")
def test_each_resource_is_valid(resource, version):
    """By the schema of Kubernetes or of the Prometheus Operator, which refuse fields that there are not."""
    if resource["apiVersion"].startswith("monitoring.coreos.com/"):
        schema = json.loads((CRDS / f"{resource['kind']}.json").read_text())
        jsonschema.validate(resource, schema)
    else:
        kubernetes_validate.validate(resource, version, strict=True)


@pytest.mark.parametrize("kind", ["PodMonitor", "PrometheusRule"])
def test_a_misspelt_field_is_refused(kind):
    """The schemas that stand here are strict."""
    schema = json.loads((CRDS / f"{kind}.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**one(kind), "spec": {**one(kind)["spec"], "podMetricEndpoint": []}}, schema)


def test_kubectl_makes_the_same_of_it():
    """What is resolved here is what `kubectl apply -k` sends, but for the tag of the image."""
    made = kustomized(KUBERNETES)
    if made is None:
        assert [found["kind"] for found in RESOURCES].count("ConfigMap") == 4
        return
    for found in made:
        if found["kind"] == "DaemonSet":
            assert found["spec"]["template"]["spec"]["containers"][0].pop("image") == "stallwatch:0.1.0"
    ours = [{**found} for found in RESOURCES]
    for found in ours:
        if found["kind"] == "DaemonSet":
            found["spec"]["template"]["spec"]["containers"][0].pop("image", None)
    assert by_kind(made) == by_kind(ours)


OVERLAYS = [text for text in blocks(ROOT / "docs" / "deploy.md", "yaml") if "kind: Kustomization" in text]


@pytest.mark.parametrize("text", OVERLAYS, ids=range(len(OVERLAYS)))
def test_the_overlays_of_the_docs_can_be_applied(text, tmp_path):
    """Each changes what there is, and what comes of it is valid."""
    page = yaml.safe_load(text)
    known = {(found["kind"], found["metadata"]["name"]) for found in RESOURCES}
    assert {tuple(patch["target"].values()) for patch in page.get("patches", ())} <= known
    page["resources"] = [os.path.relpath(KUBERNETES, tmp_path)]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(page))
    made = kustomized(tmp_path)
    if made is not None:
        assert by_kind(made) != by_kind(RESOURCES)
        for found in made:
            if not found["apiVersion"].startswith("monitoring.coreos.com/"):
                kubernetes_validate.validate(found, KUBERNETES_VERSIONS[-1], strict=True)


def test_the_probe_of_the_docs_is_valid():
    """A pod whose probe is the command."""
    (text,) = [text for text in blocks(ROOT / "docs" / "deploy.md", "yaml") if "livenessProbe" in text]
    kubernetes_validate.validate(yaml.safe_load(text), KUBERNETES_VERSIONS[-1], strict=True)


def test_no_gpu_is_taken_from_the_servers():
    """Nothing is requested but CPU and memory; the driver's library comes by the runtime."""
    spec, container = pod()
    asked = {name for part in container["resources"].values() for name in part}
    assert asked == {"cpu", "memory"}
    assert spec["runtimeClassName"] == "nvidia"
    environ = {entry["name"]: entry["value"] for entry in container["env"]}
    assert environ["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert environ["NVIDIA_DRIVER_CAPABILITIES"] == "utility"


def test_it_runs_wherever_a_server_does():
    """On tainted and on drained nodes too, before others are evicted, beside their processes."""
    spec, _ = pod()
    assert {"operator": "Exists"} in spec["tolerations"]
    assert spec["priorityClassName"] == "system-node-critical"
    assert spec["hostPID"]
    assert "hostNetwork" not in spec, "no NetworkPolicy would hold"


def test_it_has_the_rights_that_watching_takes_and_no_more():
    """Three capabilities, no privilege, nothing of the node that it can write but its own folder, no token."""
    spec, container = pod()
    rights = container["securityContext"]
    assert rights["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH", "SYS_ADMIN"]}
    assert rights["readOnlyRootFilesystem"]
    assert not rights.get("privileged")
    assert spec["automountServiceAccountToken"] is False
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    assert hosts == {"state": "/var/lib/stallwatch", "pod-logs": "/var/log/pods"}
    writable = {mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"state", "tmp"}


def test_what_it_runs_can_be_typed_and_its_configuration_is_good(tmp_path):
    """The flags exist, and the file that stands here is read without complaint."""
    _, container = pod()
    parser().parse_args(container["args"])
    (tmp_path / "stallwatch.yml").write_text((KUBERNETES / "stallwatch.yml").read_text())
    environ = {entry["name"]: entry["value"] for entry in container["env"]}
    assert environ["STALLWATCH_CONFIG__FILE"].endswith("/stallwatch.yml")
    assert load({"config.file": str(tmp_path / "stallwatch.yml")}, {}).limits.stalled == 240


def test_the_probes_ask_the_exporter_about_itself_only():
    """A GPU driver that hangs must not end its watcher: liveness is not readiness."""
    _, container = pod()
    assert container["livenessProbe"]["httpGet"]["path"] == "/-/healthy"
    assert container["readinessProbe"]["httpGet"]["path"] == container["startupProbe"]["httpGet"]["path"] == "/-/ready"


def test_prometheus_finds_it_and_nobody_else_reaches_it():
    """Monitor and policy select the DaemonSet's pods and name its port."""
    labels = one("DaemonSet")["spec"]["template"]["metadata"]["labels"]
    monitor, policy = one("PodMonitor")["spec"], one("NetworkPolicy")["spec"]
    assert monitor["selector"]["matchLabels"] == policy["podSelector"]["matchLabels"] == labels
    (endpoint,) = monitor["podMetricsEndpoints"]
    (port,) = pod()[1]["ports"]
    assert endpoint["port"] == policy["ingress"][0]["ports"][0]["port"] == port["name"]
    assert labels[monitor["jobLabel"]] == "stallwatch", "the rules call the job so"


def relabelled(target):
    """Return the labels of a target after the rules of the monitor, which come after those of the operator."""
    for rule in one("PodMonitor")["spec"]["podMetricsEndpoints"][0]["relabelings"]:
        if rule.get("action") == "labeldrop":
            target = {key: value for key, value in target.items() if not re.fullmatch(rule["regex"], key)}
        else:
            (source,) = rule["sourceLabels"]
            target = {**target, rule["targetLabel"]: target[source]}
    return {key: value for key, value in target.items() if not key.startswith("__")}


def test_a_restart_of_the_exporter_changes_no_label_of_its_series():
    """The operator names pod and address; what is left is the node and the job, so an incident goes on."""
    operator = {"namespace": "stallwatch", "pod": "stallwatch-x7k2p", "container": "stallwatch", "endpoint": "metrics"}
    target = {**operator, "job": "stallwatch", "instance": "10.1.2.3:19847", "__meta_kubernetes_pod_node_name": "gpu-7"}
    assert relabelled(target) == {"job": "stallwatch", "instance": "gpu-7"}


async def test_no_series_has_a_label_that_a_target_has():
    """Else Prometheus would call ours exported_pod, and so on."""
    assert {(one.name, label) for one in families() for label in one.labels if label in TARGET_LABELS} == set()


def test_the_dashboards_are_those_of_this_version():
    """Each as a ConfigMap with the label that Grafana's sidecar looks for, small enough for one."""
    maps = {found["metadata"]["name"]: found for found in RESOURCES if found["kind"] == "ConfigMap"}
    for path in (ROOT / "grafana" / "dashboards").glob("*.json"):
        found = maps[f"stallwatch-{path.stem}"]
        assert found["metadata"]["labels"] == {"grafana_dashboard": "1"}
        assert found["data"] == {f"stallwatch-{path.name}": path.read_text()}
        assert len(path.read_bytes()) < 2**20


def test_the_committed_rules_are_what_the_build_writes(tmp_path):
    """`python deploy/kubernetes/build.py` changes nothing."""
    assert BUILD["built"]() == (KUBERNETES / "prometheusrule.yaml").read_text()


def test_the_rules_are_those_of_this_version():
    """The same groups, records, alerts, times, severities and texts; what is added is the pod, and nothing else."""
    ours = [
        group for path in sorted((ROOT / "alerts" / "rules").glob("*.yml")) for group in documents(path)[0]["groups"]
    ]
    theirs = one("PrometheusRule")["spec"]["groups"]
    assert [(group["name"], group["interval"]) for group in theirs] == [(g["name"], g["interval"]) for g in ours]
    for mine, other in zip(ours, theirs, strict=True):
        plain = [rule for rule in map(without_pods, other["rules"]) if rule]
        assert plain == mine["rules"]


def without_pods(rule):
    """Return a rule without what the build adds, None for one that is there for that alone."""
    if rule.get("record", "").endswith("_pod"):
        return None
    expr = rule["expr"].replace(", namespace, pod)", ")")
    if rule.get("record", "").endswith("_group"):
        inside = expr.partition("(\n")[2].partition("\n) + ignoring (namespace, pod)")[0]
        expr = "".join(f"{line[2:]}\n" for line in inside.splitlines())
    notes = rule.get("annotations")
    if notes is None:
        return {**rule, "expr": expr}
    text = notes["description"]
    for added in (BUILD["SERVER_POD"], BUILD["GROUP_POD"]):
        text = text.replace(added, " First ")
    return {**rule, "expr": expr, "annotations": {**notes, "description": text}}


def test_alerts_carry_the_pod_of_the_server(tmp_path):
    """Prometheus joins the uid with what kube-state-metrics says, also of a pod that is gone, and pages without it."""
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(one("PrometheusRule")["spec"]))
    cases = (ROOT / "tests" / "data" / "pods_test.yml").read_text()
    (tmp_path / "pods_test.yml").write_text(cases)
    done = subprocess.run(
        ["promtool", "test", "rules", "pods_test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
