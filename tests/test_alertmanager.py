"""Does the shipped alertmanager.yml page for what must page, once per incident, and for nothing else?"""

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

CONFIG = Path(__file__).parents[1] / "alerts" / "alertmanager.yml"


def amtool(*arguments):
    """Run amtool, failing with its output when it is not content."""
    done = subprocess.run(("amtool", *arguments), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments}:\n{done.stdout}\n{done.stderr}"


def route(receiver, *labels):
    """Assert where an alert with these labels goes."""
    amtool("config", "routes", "test", f"--config.file={CONFIG}", f"--verify.receivers={receiver}", *labels)


def alert(name, severity, server="sglang:30000", instance="gpu-node-1", **labels):
    """Build the labels of an alert; None leaves a label out."""
    every = {
        "alertname": name,
        "severity": severity,
        "server": server,
        "instance": instance,
        "job": "stallwatch",
        **labels,
    }
    return {key: value for key, value in every.items() if value is not None}


class Alertmanager:
    """A running Alertmanager with the shipped configuration."""

    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, path, body=None):
        """Return the decoded answer to a GET, or to a POST where there is a body; a plain text counts as empty."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=5) as answer:
            text = answer.read()
        return json.loads(text) if text.startswith((b"[", b"{")) else []

    def inhibited(self, *alerts):
        """Fire the alerts and return which of them are inhibited, by position."""
        # The pair that is known to be inhibited is sent last: once it is, so is all before it.
        guard = [alert(name, "critical", "guard") for name in ("InferenceServerStartupStuck", "InferenceServerSilent")]
        self.ask("/api/v2/alerts", [{"labels": labels} for labels in (*alerts, *guard)])
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            muted = [each["labels"] for each in self.ask("/api/v2/alerts") if each["status"]["inhibitedBy"]]
            if guard[1] in muted:
                return {position for position, labels in enumerate(alerts) if labels in muted}
            time.sleep(0.05)
        pytest.fail("Alertmanager inhibits nothing")


@pytest.fixture
def alertmanager(tmp_path):
    """Run Alertmanager on a free port; its receivers have no secrets here and wait longer than a test does."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["prometheus-alertmanager", f"--config.file={CONFIG}", f"--storage.path={tmp_path / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        running = Alertmanager(port)
        try:
            for _ in range(400):
                try:
                    running.ask("/-/ready")
                    break
                except urllib.error.URLError:
                    assert process.poll() is None, (tmp_path / "log").read_text()
                    time.sleep(0.05)
            yield running
        finally:
            process.kill()


def test_configuration_is_valid():
    """The file is accepted."""
    amtool("check-config", str(CONFIG))


def test_secrets_stay_in_files():
    """No receiver holds a secret, or an address that is one."""
    receivers = yaml.safe_load(CONFIG.read_text())["receivers"]
    kinds = [entries for receiver in receivers for entries in receiver.values() if isinstance(entries, list)]
    keys = {key for entries in kinds for entry in entries for key in entry}
    assert {"routing_key_file", "api_url_file"} <= keys
    assert not keys & {"routing_key", "service_key", "api_url", "url"}


def test_only_critical_alerts_page():
    """A critical alert goes to the pager, a warning to the channel, anything else to nobody."""
    route("pager", "alertname=InferenceServerSilent", "severity=critical", "instance=gpu-node-1", "server=a")
    route("pager", "alertname=StallwatchDown", "severity=critical")
    route("channel", "alertname=InferenceServerSilent", "severity=warning", "instance=gpu-node-1", "server=a")
    route("channel", "alertname=StallwatchWorkerStuck", "severity=warning", "instance=gpu-node-1")
    route("nobody", "alertname=Watchdog", "severity=info")
    route("nobody", "alertname=Watchdog")


def test_one_server_is_one_page(alertmanager):
    """A stuck start mutes the silence of the same server, and of no other server, node or cluster."""
    muted = alertmanager.inhibited(
        alert("InferenceServerStartupStuck", "critical"),
        alert("InferenceServerSilent", "critical"),
        alert("InferenceServerSilent", "critical", server="vllm:8000"),
        alert("InferenceServerSilent", "critical", instance="gpu-node-2"),
        alert("InferenceServerSilent", "critical", cluster="west"),
    )
    assert muted == {1}


def test_a_server_that_pages_needs_no_warning(alertmanager):
    """A page mutes the warnings about its own server only."""
    muted = alertmanager.inhibited(
        alert("InferenceServerSilent", "critical"),
        alert("InferenceServerSilent", "warning"),
        alert("InferenceServerSilent", "warning", server="vllm:8000"),
    )
    assert muted == {1}


@pytest.mark.parametrize("name", ["StallwatchDown", "StallwatchSnapshotStale"])
def test_a_blind_watcher_explains_the_warnings_of_its_node(alertmanager, name):
    """A watcher that is down or stale mutes the warnings of its own node, and no page and nothing of others."""
    muted = alertmanager.inhibited(
        alert(name, "critical", server=None),
        alert("StallwatchWorkerStuck", "warning", server=None, worker="gpu"),
        alert("InferenceServerSilent", "warning"),
        alert("InferenceServerSilent", "critical", server="vllm:8000"),
        alert("StallwatchWorkerStuck", "warning", server=None, instance="gpu-node-2"),
        alert("DiskFull", "warning", server=None),
    )
    assert muted == {1, 2}


def test_a_prometheus_without_targets_mutes_nothing(alertmanager):
    """A StallwatchDown without an instance does not mute what has no instance either."""
    muted = alertmanager.inhibited(
        alert("StallwatchDown", "critical", server=None, instance=None),
        alert("StallwatchCollectorFailing", "warning", server=None, instance=None),
        alert("InferenceServerSilent", "warning"),
    )
    assert muted == set()
