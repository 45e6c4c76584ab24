"""The examples for Prometheus: does it accept them, find the nodes by them, and keep what rules and dashboards need?"""

import json
import re
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from documents import ROOT, families

FOLDER = ROOT / "deploy" / "prometheus"
CONFIGURATIONS = sorted(path.stem for path in FOLDER.glob("*.yml") if path.stem != "fleet_rules")
RULES = sorted((ROOT / "alerts" / "rules").glob("*.yml"))
FLEET = yaml.safe_load((FOLDER / "fleet.yml").read_text())
RECORDS = {rule["record"] for rule in yaml.safe_load((FOLDER / "fleet_rules.yml").read_text())["groups"][0]["rules"]}


@pytest.fixture
def folder(tmp_path):
    """Return the examples as their comments say: beside the rules of this version and the targets."""
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    shutil.copytree(ROOT / "alerts" / "rules", tmp_path / "rules")
    return tmp_path


def promtool(folder, *words):
    """Run promtool there and return what it says, failing with it when it is not content."""
    done = subprocess.run(["promtool", *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_prometheus_accepts_it_with_all_rules(folder, name):
    """Each example is a whole configuration, and the job has the name that the rules ask for."""
    if name == "kubernetes_sd":
        in_file(folder)
    assert f"SUCCESS: {len(RULES)} rule files found" in promtool(folder, "check", "config", f"{name}.yml")
    jobs = [job["job_name"] for job in yaml.safe_load((folder / f"{name}.yml").read_text())["scrape_configs"]]
    assert "stallwatch" in jobs


def found(folder, name):
    """Return the labels of the targets that Prometheus discovers by an example."""
    said = promtool(folder, "check", "service-discovery", f"{name}.yml", "stallwatch", "--timeout=3s")
    return [one["labels"] for one in json.loads(said)]


@pytest.mark.parametrize("name", ["file_sd", "fleet"])
def test_nodes_are_found_in_a_file(folder, name):
    """With the rack that they stand in."""
    targets = {(one["instance"], one["rack"], one["job"]) for one in found(folder, name)}
    assert ("gpu-node-1:19847", "r1", "stallwatch") in targets
    assert len(targets) == 4


class Inventory(BaseHTTPRequestHandler):
    """Answers as an inventory of nodes does."""

    def do_GET(self):
        """List two nodes at the one path that there is."""
        self.send_response(200 if self.path == "/gpu-nodes" else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps([{"targets": ["gpu-1:19847", "gpu-2:19847"], "labels": {"rack": "r7"}}]).encode())

    def log_message(self, *_):
        """Stay quiet."""


def test_nodes_are_found_over_http(folder):
    """By a real inventory, in the place of the one that is named."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Inventory)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    path = folder / "http_sd.yml"
    path.write_text(path.read_text().replace("localhost:8080", f"127.0.0.1:{server.server_port}"))
    try:
        targets = {(one["instance"], one["rack"]) for one in found(folder, "http_sd")}
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert targets == {("gpu-1:19847", "r7"), ("gpu-2:19847", "r7")}


def pods():
    """Return targets as the Kubernetes discovery of Prometheus tells of them: ours, its neighbour, and another port."""
    (daemonset,) = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "daemonset.yaml").read_text())
    template = daemonset["spec"]["template"]
    name, (port,) = template["metadata"]["labels"]["app.kubernetes.io/name"], template["spec"]["containers"][0]["ports"]
    told = [
        (name, port["name"], "gpu-7"),
        (name, port["name"], "gpu-8"),
        (name, "other", "gpu-7"),
        ("x", "metrics", "n"),
    ]
    return [
        {
            "targets": [f"10.0.0.{number}:19847"],
            "labels": {
                "__meta_kubernetes_pod_label_app_kubernetes_io_name": label,
                "__meta_kubernetes_pod_container_port_name": where,
                "__meta_kubernetes_pod_node_name": node,
                "__meta_kubernetes_namespace": "stallwatch",
                "__meta_kubernetes_pod_name": f"stallwatch-{number}",
            },
        }
        for number, (label, where, node) in enumerate(told)
    ]


def test_pods_are_found_by_what_the_daemonset_calls_them(folder):
    """Of what Kubernetes tells of, the pods of deploy/kubernetes and their port are kept, and called by their node."""
    in_file(folder)
    targets = [one for one in found(folder, "kubernetes_sd") if one]
    assert sorted((one["instance"], one["job"]) for one in targets) == [
        ("gpu-7", "stallwatch"),
        ("gpu-8", "stallwatch"),
    ]
    assert not any({"pod", "namespace"} & one.keys() for one in targets)


def in_file(folder):
    """Put a file in the place of Kubernetes: Debian builds Prometheus without it."""
    (folder / "pods.json").write_text(json.dumps(pods()))
    path = folder / "kubernetes_sd.yml"
    page = yaml.safe_load(path.read_text())
    (discovery,) = page["scrape_configs"][0].pop("kubernetes_sd_configs")
    assert discovery == {"role": "pod", "namespaces": {"names": ["stallwatch"]}}
    page["scrape_configs"][0]["file_sd_configs"] = [{"files": ["pods.json"]}]
    path.write_text(yaml.safe_dump(page))


async def test_what_a_fleet_drops_is_asked_for_by_nobody():
    """Each name that is dropped can be published, and stands in no rule and in no dashboard."""
    names = {family.name for family in families()}
    (drop,) = FLEET["scrape_configs"][0]["metric_relabel_configs"]
    dropped = {name for name in names if re.fullmatch(drop["regex"], name)}
    assert len(dropped) == 10
    texts = [*RULES, *(ROOT / "grafana" / "dashboards").glob("*.json"), FOLDER / "fleet_rules.yml"]
    asked = {name for path in texts for name in re.findall(r"stallwatch_\w+", path.read_text())}
    assert dropped & asked == set()


async def test_what_a_fleet_sends_is_there():
    """Every part of what is kept for long picks something that is published or recorded."""
    names = {family.name for family in families()} | RECORDS | {"ALERTS"}
    for remote in FLEET["remote_write"]:
        (keep,) = remote["write_relabel_configs"]
        kept = {name for name in names if re.fullmatch(keep["regex"], name)}
        assert len(kept) == 6 + 5 + 1 + len(RECORDS) + 1
        assert remote["url"].startswith("http://")
    assert [remote["name"] for remote in FLEET["remote_write"]] == ["mimir", "victoriametrics", "thanos"]


def test_what_is_recorded_over_a_fleet_is_right(tmp_path):
    """Prometheus accepts the records, and they count what they say."""
    promtool(FOLDER, "check", "rules", "--lint=all", "--lint-fatal", "fleet_rules.yml")
    promtool(ROOT / "tests" / "data", "test", "rules", "fleet_rules_test.yml")
