"""A server in a container as the kernel sees one: processes, network, mounts and control group of its own."""

import contextlib
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stallwatch.discovery import reader
from stallwatch.simulation.pager import free_port

CONTAINER = "c0ffee" * 10 + "feed"
SETUP = """
set -e
[ -z "$GROUP" ] || echo 0 > "$GROUP/cgroup.procs"
ip link set lo up
mount --make-rprivate /
mount -t tmpfs tmpfs "$HIDDEN"
[ -z "$SHM" ] || mount -t tmpfs tmpfs /dev/shm
cd "$HIDDEN"
[ -z "$CONFIG" ] || echo "$CONFIG" > server.yaml
[ -z "$LOG" ] || exec 2>> "$LOG"
exec "$@"
"""
SERVER = """
import http.server, os, subprocess, sys
title = "import setproctitle, sys; setproctitle.setproctitle('sglang::scheduler_TP%s'); "
rank = title + os.environ.get("RANK", "pass") + "; print(1, flush=True); sys.stdin.read()"
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"sglang:num_running_reqs{tp_rank=\\"0\\"} 3\\n"
        wrong = self.headers["Authorization"] != os.environ.get("KEY")
        self.send_response(401 if wrong and "KEY" in os.environ else int(os.environ["STATUS"]))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
print(os.environ.get("SAYS", ""), file=sys.stderr, flush=True)
port = int(sys.argv[sys.argv.index("--port") + 1])
server = http.server.ThreadingHTTPServer((os.environ["BOUND"], port), Handler)
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
ranks = [subprocess.Popen([sys.executable, "-c", rank % number], **pipes) for number in (0, 1)]
for one in ranks:
    assert one.stdout.readline()
os.write(int(os.environ["READY"]), b"x")
server.serve_forever()
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces of the init user namespace")


class Contained:
    """The server, and where things are."""

    def __init__(self, process, port, hidden, isolated):
        self.process, self.port, self.hidden, self.isolated = process, port, hidden, isolated

    @property
    def pid(self):
        """Return the launcher's pid as we see it; for itself it is 1."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]) if self.isolated else pid

    def found(self, targets=()):
        """Look once and return the server as discovery sees it; others may run on this machine."""
        reading, _ = reader({}, lambda _note: None)(list(targets), frozenset())
        return next(server for server in reading.servers if server.processes[0].pid == self.pid)


@contextlib.contextmanager
def contained(folder, *flags, output=None, isolate=True, bound="127.0.0.1", port=None, under=(), **environ):
    """Run one with these flags; `isolate` false leaves it among us, and `under` starts it behind another command.

    Of its environment, `GROUP` is the folder of a control group, `SHM` hides our shared memory, `LOG` and `CONFIG` are
    a file and the text of one that only it can see by its path. It answers with `STATUS`, and says what `SAYS` says.
    """
    package, hidden = folder / "modules" / "sglang", folder / "hidden"
    package.mkdir(parents=True, exist_ok=True)
    hidden.mkdir(parents=True, exist_ok=True)
    (package / "launch_server.py").write_text(SERVER)
    port = port or free_port()
    alone = ("unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "sh", "-c", SETUP, "sh")
    command = [sys.executable, "-m", "sglang.launch_server", "--port", str(port), "--tp", "2", *flags]
    wanted, ready = os.pipe()
    nothing = dict.fromkeys(("GROUP", "SHM", "LOG", "CONFIG"), "")
    settings = {**nothing, "STATUS": "200", **environ, "BOUND": bound, "READY": str(ready)}
    process = subprocess.Popen(
        [*under, *(alone if isolate else ()), *command],
        stdin=subprocess.PIPE,
        stdout=output or subprocess.DEVNULL,
        stderr=output or subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(package.parent), "HIDDEN": str(hidden), **settings},
        pass_fds=(ready,),
    )
    os.close(ready)
    try:
        with open(wanted, "rb") as answer:
            assert answer.read(1) == b"x", "it did not come up"
        yield Contained(process, port, hidden, isolate)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()


@contextlib.contextmanager
def control_group(name):
    """Make a control group of this name in the second hierarchy, and return its folder; all in it ends with it."""
    mounts = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    root = next(Path(fields[4]) for fields in mounts if fields[fields.index("-") + 1] == "cgroup2")
    top = root / f"stallwatch-test-{os.urandom(4).hex()}.slice"
    group = top / name
    group.mkdir(parents=True)
    try:
        yield str(group)
    finally:
        (group / "cgroup.kill").write_text("1")
        wait_until_empty(group / "cgroup.events")
        while group != root:
            group.rmdir()
            group = group.parent


def wait_until_empty(events):
    """Wait until nothing runs in a control group: the kernel tells when that changes."""
    with events.open() as file:
        changes = select.poll()
        changes.register(file, select.POLLPRI)
        while "populated 0" not in file.read():
            assert changes.poll(10_000), "something in it does not end"
            file.seek(0)


def nobody_listens(port):
    """Say whether a port of ours refuses."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) != 0
