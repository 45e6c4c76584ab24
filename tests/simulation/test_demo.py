"""The demo, run as a newcomer runs it: a process whose output is read, and that leaves nothing behind."""

import contextlib
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from stallwatch.simulation.pager import free_port, programs

SECONDS = "25"
BEFORE_THE_PAGE = "8 schedulers have started"
SHORT = "servers: [{segments: [{for: 2s, phase: loading_weights, log: progress, health: refused}]}]"


@pytest.fixture
def environ(tmp_path):
    """Have an environment of its own, whose temporary folder tells whose processes are left and what files are."""
    return {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "1000"}


def start(environ, port, *flags):
    """Start the demo; its workers and servers inherit the environment."""
    command = [sys.executable, "-m", "stallwatch", "demo", "--port", str(port), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ)


def left_behind(environ):
    """List the command lines of processes that were started with this environment, and the files they leave."""
    mark = f"TMPDIR={environ['TMPDIR']}".encode()
    pids = [pid for pid in os.listdir("/proc") if pid.isdigit() and mark in content(pid, "environ").split(b"\0")]
    return [content(pid, "cmdline") for pid in pids] + os.listdir(environ["TMPDIR"])


def content(pid, file):
    """Return a file of a process, nothing once it has gone."""
    try:
        with open(f"/proc/{pid}/{file}", "rb") as opened:
            return opened.read()
    except OSError:
        return b""


def assert_nothing_left(environ):
    """Allow what was told to end a moment to do so."""
    end = time.monotonic() + 10
    while left_behind(environ) and time.monotonic() < end:
        time.sleep(0.05)
    assert left_behind(environ) == []


def test_it_ends_with_the_page_that_alertmanager_sends(environ):
    """With Prometheus and Alertmanager installed, what is printed last is the page as it arrived at the webhook."""
    assert programs(), "Prometheus and Alertmanager are not installed"
    port = free_port()
    process = start(environ, port, "--seconds", SECONDS)
    output = process.communicate(timeout=55)[0]
    *before, page, description, runbook = output.splitlines()
    assert process.returncode == 0, output
    assert "Prometheus scrapes on" in output
    assert sum("loading_weights" in line for line in before) >= 2
    assert any(line.endswith("no error, no crash") for line in before)
    assert any(re.search(r"EVIDENCE of sglang:\d+ is kept", line) for line in before), output
    assert any(re.search(r"Odd one out: .*TP5", line) for line in before), output
    told = re.search(r"PAGE  (InferenceServer\w+) \(critical\)$", page)
    assert told, output
    assert f"127.0.0.1:{port}" in description
    assert runbook.endswith(f"/alerts/runbooks/{told[1]}.md")
    assert output.count("PAGE") == 1
    assert_nothing_left(environ)


def test_without_prometheus_it_tells_the_page_from_the_same_facts(environ, tmp_path):
    """With nothing but Python, the same alert is what it ends with."""
    process = start({**environ, "PATH": str(tmp_path)}, free_port(), "--seconds", SECONDS)
    output = process.communicate(timeout=55)[0]
    *before, page, description, runbook = output.splitlines()
    assert process.returncode == 0, output
    assert any("not installed here" in line for line in before)
    assert page.endswith("PAGE  InferenceServerStartupStuck (critical)")
    assert "is not ready and nothing has moved for" in description
    assert runbook.endswith("/InferenceServerStartupStuck.md")
    assert_nothing_left(environ)


HANGS = """
node: {gpus: 2, gpu_memory_gib: 96, power_limit_watts: 600}
servers:
  - args: [--tp-size, "2", --port, "30000"]
    segments:
      - for: 60s
        phase: loading_weights
        gpu: {utilization: 3, memory_gib: {from: 1, to: 76}, power_watts: 90}
        scheduler: {cpu: 1.0}
        log: progress
        health: refused
      - {for: 14m, gpu: {utilization: 0, power_watts: 60}, scheduler: {cpu: 0}, log: silent}
"""


def test_a_scenario_by_name_pages_too(environ, tmp_path_factory):
    """What Alertmanager sends of its servers is shown once each, and nothing is told of others on this machine."""
    scenario = tmp_path_factory.mktemp("plot") / "hangs.yml"
    scenario.write_text(HANGS)
    port = free_port()
    process = start(environ, port, str(scenario), "--seconds", SECONDS)
    seen = set()
    while process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            seen |= set(re.findall(r'stallwatch_server_info\{.*?server="([^"]+)"', answer.read().decode()))
        time.sleep(0.5)
    output = process.communicate()[0]
    assert process.returncode == 0, output
    pages = re.findall(r"PAGE  (InferenceServer\w+) \(critical\)", output)
    assert "InferenceServerStartupStuck" in pages or "InferenceServerStalled" in pages, output
    assert len(pages) == len(set(pages))
    assert "/alerts/runbooks/InferenceServer" in output
    assert len(seen) == 1
    assert_nothing_left(environ)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_ends_in_order_when_it_is_told_to(environ, number):
    """Ctrl-C, a stop and a closed terminal end everything that was started, without a traceback."""
    process = start(environ, free_port())
    lines = []
    while not lines or BEFORE_THE_PAGE not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], lines
    process.send_signal(number)
    rest = process.communicate(timeout=20)[0]
    assert process.returncode == 0
    assert rest.splitlines()[-1].endswith("ended")
    assert "Traceback" not in rest
    assert_nothing_left(environ)


def test_forever_means_again_from_the_start_until_it_is_told_to_end(environ, tmp_path_factory):
    """Round follows round, each with an exporter that knows nothing of the one before, until SIGTERM."""
    scenario = tmp_path_factory.mktemp("plot") / "short.yml"
    scenario.write_text(SHORT)
    process = start(environ, free_port(), str(scenario), "--seconds", "2", "--forever")
    lines = []
    while sum("here is the next" in line for line in lines) < 2:
        lines.append(process.stdout.readline())
        assert lines[-1], lines
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert sum("as fast as life" in line for line in lines) == 2
    assert not any("Traceback" in line for line in lines)
    assert_nothing_left(environ)


def test_a_port_that_is_taken_is_named(environ):
    """Who runs an exporter already is told so in one line, and which port would do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start(environ, port)
        output = process.communicate(timeout=20)[0]
    assert process.returncode == 1
    assert output.count("\n") == 1
    assert f"cannot listen on port {port}: Address already in use" in output
    assert "stallwatch demo --port" in output
    assert_nothing_left(environ)


@pytest.mark.long
def test_on_a_terminal_the_page_can_be_looked_at(environ, tmp_path):
    """After the alert the status page stays, where somebody can look at it, until Ctrl-C."""
    port, (ours, theirs) = free_port(), pty.openpty()
    command = [sys.executable, "-m", "stallwatch", "demo", "--port", str(port), "--seconds", SECONDS]
    environ = {**environ, "PATH": str(tmp_path)}
    with subprocess.Popen(command, stdout=theirs, env=environ) as process, os.fdopen(ours, "rb", buffering=0) as screen:
        os.close(theirs)
        shown = b""
        while b"its page is on" not in shown:
            shown += screen.read(4096)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
            assert b"stalled" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert_nothing_left(environ)
