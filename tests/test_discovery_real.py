"""Which servers are found among real processes."""

import os
import socket
import subprocess
import sys

import pytest

from stallwatch.discovery import reader

SERVER = """
import os, socket, subprocess, sys
title = "import setproctitle, sys; setproctitle.setproctitle('sglang::scheduler_TP%s')"
rank = title + "; print(1, flush=True); sys.stdin.read()"
port = int(sys.argv[sys.argv.index("--port") + 1])
listener = socket.create_server(("127.0.0.1", port))
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
ranks = [subprocess.Popen([sys.executable, "-c", rank % number], **pipes) for number in (0, 1)]
for one in ranks:
    one.stdout.readline()
print("ready", flush=True)
sys.stdin.read()
for one in ranks:
    one.communicate()
"""


class RealServer:
    """A process with the command line of a launcher, two titled children, a port and a log."""

    def __init__(self, folder, output):
        (folder / "sglang").mkdir()
        (folder / "sglang" / "launch_server.py").write_text(SERVER)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "sglang.launch_server", "--port", str(self.port), "--tp", "2"]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            cwd=folder,
            env={"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "1,0"},
        )
        self.process.stdout.readline()

    def found(self):
        """Look once and return the server that has this launcher; others may run on this machine."""
        reading, _ = reader({}, lambda _note: None)([], frozenset())
        return next(server for server in reading.servers if server.processes[0].pid == self.process.pid)

    def stop(self):
        """Let it end, and its children."""
        if self.process.returncode is None:
            self.process.communicate()


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a real server with its log at a file object."""
    started = []

    def begin(output):
        started.append(RealServer(tmp_path, output))
        return started[-1]

    yield begin
    for server in started:
        server.stop()


def test_a_real_server_is_found(start, tmp_path):
    """With its titles, its port, its log and its environment."""
    with (tmp_path / "a.log").open("ab") as log:
        real = start(log)
        server = real.found()
        assert [p.name for p in server.processes] == ["launcher", "scheduler_TP0", "scheduler_TP1"]
        assert (server.address, server.listening, server.launch.port) == ("127.0.0.1", True, real.port)
        assert server.log_path == str(tmp_path / "a.log")
        assert server.cuda_visible_devices == "1,0"
        (tmp_path / "a.log").unlink()
        assert real.found().log_path == f"/proc/{real.process.pid}/fd/2"


def test_a_real_pipe_leads_to_the_file_of_tee(start, tmp_path):
    """`2>&1 | tee FILE`."""
    tee = subprocess.Popen(["tee", str(tmp_path / "tee.log")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    tee.stdin.write(b"x\n")
    tee.stdin.flush()
    tee.stdout.readline()
    server = start(tee.stdin)
    assert server.found().log_path == str(tmp_path / "tee.log")
    server.stop()
    tee.communicate()


def test_a_real_null_device_is_told(start):
    """Nothing can be read there."""
    assert start(subprocess.DEVNULL).found().log_absence.startswith("dev_null: ")
