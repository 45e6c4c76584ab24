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
VLLM_SERVER = """
import multiprocessing, sys
import setproctitle

def front(number, go, titled, stop):
    go.wait()
    setproctitle.setproctitle(f"VLLM::APIServer_{number}")
    titled.release()
    stop.wait()

def worker(rank, titled, stop):
    setproctitle.setproctitle(f"VLLM::Worker_TP{rank}")
    titled.release()
    stop.wait()

def core(replica, go, titled, stop):
    go.wait()
    setproctitle.setproctitle(f"VLLM::EngineCore_DP{replica}")
    workers = [spawn.Process(target=worker, args=(rank, titled, stop)) for rank in (0, 1)]
    for one in workers:
        one.start()
    titled.release()
    for one in workers:
        one.join()

spawn = multiprocessing.get_context("spawn")
if __name__ == "__main__":
    go, titled, stop = spawn.Event(), spawn.Semaphore(0), spawn.Event()
    children = [spawn.Process(target=front, args=(number, go, titled, stop)) for number in (0, 1)]
    children += [spawn.Process(target=core, args=(replica, go, titled, stop)) for replica in (0, 1)]
    for child in children:
        child.start()
    print("spawned", flush=True)
    sys.stdin.readline()
    go.set()
    for _ in range(8):
        titled.acquire()
    print("titled", flush=True)
    sys.stdin.read()
    stop.set()
    for child in children:
        child.join()
"""


class RealServer:
    """A process with the command line of a launcher, its children, and a log."""

    def __init__(self, folder, output, source=SERVER, module="sglang.launch_server", flags=("--tp", "2")):
        stub = folder.joinpath(*module.split(".")).with_suffix(".py")
        stub.parent.mkdir(parents=True)
        stub.write_text(source)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", module, "--port", str(self.port), *flags]
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

    def go_on(self):
        """Let it go on to the next thing that it tells of."""
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        self.process.stdout.readline()

    def stop(self):
        """Let it end, and its children."""
        if self.process.returncode is None:
            self.process.communicate()


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a real server with its log at a file object."""
    started = []

    def begin(output, *what):
        started.append(RealServer(tmp_path, output, *what))
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


def test_a_real_vllm_server_is_found_before_and_after_its_processes_have_titles(start, tmp_path):
    """Spawned by multiprocessing; the workers of both replicas have the same titles, as with a dense model."""
    flags = ("-tp", "2", "-dp", "2", "--api-server-count", "2")
    with (tmp_path / "a.log").open("ab") as log:
        real = start(log, VLLM_SERVER, "vllm.entrypoints.openai.api_server", flags)
        server = real.found()
        assert (server.name, server.expected_schedulers) == (f"vllm:{real.port}", 4)
        assert [p.role for p in server.processes] == ["launcher", *["spawning"] * 4]
        real.go_on()
        server = real.found()
    assert server.ranks == ("DP0_TP0", "DP0_TP1", "DP1_TP0", "DP1_TP1")
    assert {p.name: p.role for p in server.processes if not p.rank} == {
        "launcher": "launcher",
        "APIServer_0": "other",
        "APIServer_1": "other",
        "EngineCore_DP0": "engine_core",
        "EngineCore_DP1": "engine_core",
    }
    assert server.log_path == str(tmp_path / "a.log")
    tree = {p.name: p.tree for p in server.processes}
    workers = {p.pid for p in server.processes if p.rank}
    assert workers <= set(tree["launcher"])
