"""Which rights does the exporter need? Those that the compose file and the systemd unit give, all of them and no more.

The servers run as another user and log to a file that only that user may read, as on a shared node.
"""

import configparser
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bundle import ROOT, SERVICES
from exporter_process import ExporterProcess
from stallwatch.simulation.pager import free_port

OTHER = 65534
SERVER = """
import ctypes, os, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
import setproctitle

class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

def become(user):
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: what a process has that was this user's from its start

port, user = int(sys.argv[sys.argv.index("--port") + 1]), int(os.environ["SERVER_USER"])
server = HTTPServer(("127.0.0.1", port), Health)
if os.fork() == 0:
    server.socket.close()
    os.close(1)
    setproctitle.setproctitle("sglang::scheduler")
    become(user)
    while True:
        time.sleep(60)
become(user)
print("ready", flush=True)
server.serve_forever()
"""
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can give rights away")


def unit():
    """Return the sections of the systemd unit; of a key that stands several times the last one counts."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read(ROOT / "deploy" / "systemd" / "stallwatch.service")
    return parser


def setpriv(capabilities, user=None):
    """Return what runs a command with these capabilities and no way to more: as root, or as another user has them."""
    some = ",".join(["-all", *(f"+{name.lower().removeprefix('cap_')}" for name in capabilities)])
    who = [f"--reuid={user}", f"--regid={user}", "--clear-groups", f"--ambient-caps={some}"] if user else []
    return ["setpriv", "--no-new-privs", f"--bounding-set={some}", f"--inh-caps={some if user else '-all'}", *who]


@pytest.fixture
def server(tmp_path):
    """Run a server of another user, whose log and folder nobody else may read, and return its name."""
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "launch_server.py").write_text(SERVER)
    logs = tmp_path / "logs"
    logs.mkdir(mode=0o700)
    port = free_port()
    command = [sys.executable, "-m", "sglang.launch_server", "--port", str(port)]
    environ = {**os.environ, "SERVER_USER": str(OTHER)}
    with (logs / "server.log").open("w") as log:
        for path, mode in ((logs / "server.log", 0o600), (logs, 0o700)):
            path.chmod(mode)
            os.chown(path, OTHER, OTHER)
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
    assert process.stdout.readline() == b"ready\n", (logs / "server.log").read_text()
    yield f"sglang:{port}"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def exporter(folder, prefix):
    """Return an exporter that is started with these words before its command."""
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nexec {" ".join(prefix)} {sys.executable} "$@"\n')
    program.chmod(0o755)
    return ExporterProcess(python=str(program), DISCOVERY__INTERVAL="1s", HEALTH__INTERVAL="1s", ENGINE__INTERVAL="1s")


def reads(scrape, name):
    """Return whether the signals of other users' processes are read: log, open files, health."""
    readings = (("log_size_bytes", {}), ("process_open_fds", {"process": "scheduler"}), ("health_success", {}))
    return [bool(scrape.all(reading, server=name, **labels)) for reading, labels in readings]


WAYS = {
    "compose": setpriv(SERVICES["exporter"]["cap_add"]),
    "systemd": setpriv(unit()["Service"]["AmbientCapabilities"].split(), user=OTHER - 1),
}


@pytest.mark.parametrize("way", WAYS)
async def test_the_rights_that_are_given_are_enough(server, tmp_path, way):
    """All of another user's server is read by root with these capabilities, and by a user who has them."""
    async with exporter(tmp_path, WAYS[way]) as running:
        await running.until(lambda scrape: all(reads(scrape, server)))


OF_OTHERS = [name for name in SERVICES["exporter"]["cap_add"] if name != "SYSLOG"]  # which is for the kernel log


@pytest.mark.parametrize("left", OF_OTHERS)
async def test_each_right_that_is_given_is_needed(server, tmp_path, left):
    """With either capability alone the log of another user's server cannot be read, which is said and not hidden."""
    async with exporter(tmp_path, setpriv([left])) as running:
        refused = f"collector=log server={server} reason=permission_denied"
        await running.until(lambda _: refused in running.log)
        scrape = await running.scrape()
        assert scrape.value("signal_success", server=server, signal="log") == 0
        assert not reads(scrape, server)[0]


def test_the_unit_is_valid(tmp_path):
    """Systemd knows every key and value; the program itself is not installed here."""
    text = (ROOT / "deploy" / "systemd" / "stallwatch.service").read_text()
    checked = tmp_path / "stallwatch.service"
    checked.write_text(text.replace(unit()["Service"]["ExecStart"].split()[0], sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(checked)], capture_output=True, text=True, check=False, timeout=50
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_unit_is_as_closed_as_the_docs_say():
    """Systemd's own score of the unit, 0 for closed and 10 for open, is the one that is told."""
    path = ROOT / "deploy" / "systemd" / "stallwatch.service"
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50)
    score = re.search(r"exposure level for stallwatch\.service: ([0-9.]+)", done.stdout)[1]
    told = re.search(r"gives the unit ([0-9.]+)", (ROOT / "docs" / "install.md").read_text())[1]
    assert float(score) <= float(told) + 0.2  # versions of systemd weigh a little differently


def test_the_unit_leaves_in_sight_what_is_to_be_watched():
    """Nothing is set that would hide processes, GPUs, logs or ports, and no worker in the GPU driver is killed."""
    service = unit()["Service"]
    hiding = {"PrivateTmp", "PrivateDevices", "PrivateNetwork", "PrivateUsers", "ProtectClock", "DeviceAllow"}
    assert not (hiding | {"DevicePolicy", "DynamicUser", "ProtectProc", "ProcSubset"}) & set(service)
    assert service["ProtectHome"] == "read-only"
    assert "AF_NETLINK" in service["RestrictAddressFamilies"].split()  # else all sockets of the node are read each time
    assert service["KillMode"] == "process"
    assert service["CapabilityBoundingSet"] == service["AmbientCapabilities"]


def test_compose_and_systemd_give_the_same_rights():
    """Both name the same capabilities, and the same limits."""
    service, contained = unit()["Service"], SERVICES["exporter"]
    assert service["AmbientCapabilities"].split() == [f"CAP_{name}" for name in contained["cap_add"]]
    assert (service["MemoryMax"].lower(), int(service["TasksMax"])) == ("256m", contained["pids_limit"])
    assert contained["mem_limit"] == service["MemoryMax"].lower()
    assert Path(service["ExecStart"].split()[0]).name == "stallwatch"
