"""Does what compose starts work? The same commands and files by hand, with other ports and folders and nothing else.

No container engine is needed; what an engine adds (images, mounts, rights) is followed in test_compose.py.
"""

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager

import pytest

from bundle import PROMETHEUS, ROOT, RULES, SERVICES, mounts, probed
from stallwatch.simulation.pager import free_port, programs

PORTS = {name: probed(name) for name in SERVICES if name != "demo"}


class Bundle:
    """Where the services run here: each port and path of compose in the words of this machine."""

    def __init__(self, folder):
        self.ports = {name: free_port() for name in PORTS}
        self._folder = folder
        shutil.copytree(ROOT / "alerts", folder / "alerts")
        for path in (folder / "alerts").rglob("*.yml"):
            path.write_text(self.here(path.read_text()))
        # A test has no quarter of a minute to wait for the first scrape.
        prometheus = folder / "alerts" / "prometheus.yml"
        prometheus.write_text(prometheus.read_text().replace(": 15s", ": 1s").replace(": 10s", ": 1s"))

    def here(self, text):
        """Return a text with the ports of this test."""
        for name, port in PORTS.items():
            text = text.replace(f":{port}", f":{self.ports[name]}").replace(f"', {port},", f"', {self.ports[name]},")
        return text

    def command(self, name):
        """Return the flags that compose starts a service with, its paths where they are here."""
        words = []
        for word in SERVICES[name]["command"]:
            for target, source in mounts(name).items():
                word = word.replace(f"={target}", f"={self._folder / source.removeprefix('./')}")  # noqa: PLW2901
            words.append(self.here(word))
        return words

    @contextmanager
    def running(self, name, *program):
        """Run a service until the block ends, and say what it logged if it ends before."""
        with (self._folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen([*program, *self.command(name)], stdout=log, stderr=log, cwd=self._folder)
        try:
            yield process
        finally:
            ended = process.poll()
            process.terminate()
            process.wait(20)
        assert ended is None, (self._folder / f"{name}.log").read_text()

    def healthy(self, name):
        """Run the health check of a service as its engine would, and tell whether it is content."""
        kind, program, *words = SERVICES[name]["healthcheck"]["test"]
        assert kind == "CMD"
        command = [sys.executable if program == "python" else program, *map(self.here, words)]
        return subprocess.run(command, capture_output=True, check=False, timeout=20).returncode == 0

    def ask(self, name, path):
        """Return what a service answers to a GET, decoded."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[name]}{path}", timeout=5) as answer:
            return json.load(answer)

    def until(self, told):
        """Return what is told once it is something; a service that does not listen yet tells nothing."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                if found := told():
                    return found
            except urllib.error.URLError:
                pass  # it does not listen yet
            time.sleep(0.1)
        pytest.fail("nothing within 30 s")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Run the exporter, Prometheus and Alertmanager, as compose does."""
    found = programs()
    assert found, "Prometheus and Alertmanager are not installed"
    bundle = Bundle(tmp_path_factory.mktemp("bundle"))
    with ExitStack() as stack:
        stack.enter_context(bundle.running("exporter", sys.executable, "-m", "stallwatch"))
        for name, program in found.items():
            stack.enter_context(bundle.running(name, program))
        yield bundle


@pytest.mark.parametrize("name", ["exporter", "prometheus", "alertmanager"])
def test_a_health_check_is_content_with_what_runs_and_only_with_that(bundle, name):
    """The command that the engine asks a service with succeeds, and fails where nobody listens."""
    assert bundle.until(lambda: bundle.healthy(name))
    port = bundle.ports[name]
    bundle.ports[name] = free_port()
    try:
        assert not bundle.healthy(name)
    finally:
        bundle.ports[name] = port


def test_prometheus_scrapes_the_exporter(bundle):
    """The one target is up, under the name of the job that the rules look for."""

    def up():
        targets = bundle.ask("prometheus", "/api/v1/targets")["data"]["activeTargets"]
        return [target for target in targets if target["health"] == "up"]

    (target,) = bundle.until(up)
    (job,) = PROMETHEUS["scrape_configs"]
    assert target["labels"] == {"job": job["job_name"], "instance": f"localhost:{bundle.ports['exporter']}"}


def test_prometheus_evaluates_every_rule(bundle):
    """All rules of all files are loaded, and none of them fails."""
    shipped = {
        rule.get("alert") or rule["record"] for file in RULES.values() for g in file["groups"] for rule in g["rules"]
    }
    groups = bundle.until(lambda: bundle.ask("prometheus", "/api/v1/rules")["data"]["groups"])
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == shipped
    assert not [rule["name"] for rule in rules if rule.get("lastError")]


def test_prometheus_finds_alertmanager(bundle):
    """The one that runs is active, and none was dropped."""

    def found():
        return bundle.ask("prometheus", "/api/v1/alertmanagers")["data"]["activeAlertmanagers"]

    (manager,) = bundle.until(found)
    assert f":{bundle.ports['alertmanager']}/" in manager["url"]


def test_alertmanager_runs_with_the_shipped_receivers(bundle):
    """Its configuration is loaded although no secret is there yet."""
    receivers = bundle.until(lambda: bundle.ask("alertmanager", "/api/v2/receivers"))
    assert {"pager", "channel", "webhook"} <= {receiver["name"] for receiver in receivers}
