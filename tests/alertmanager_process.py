"""A real Alertmanager on a free port, for tests, and the labels of alerts to send it."""

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

CONFIG = Path(__file__).parents[1] / "alerts" / "alertmanager.yml"


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


@contextmanager
def running(config, folder):
    """Run Alertmanager with a configuration on a free port until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["prometheus-alertmanager", f"--config.file={config}", f"--storage.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        manager = Alertmanager(port)
        try:
            for _ in range(400):
                try:
                    manager.ask("/-/ready")
                    break
                except urllib.error.URLError:
                    assert process.poll() is None, (folder / "log").read_text()
                    time.sleep(0.05)
            yield manager
        finally:
            process.kill()
