"""Which servers are found, in fake trees and among real processes."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict

import msgspec
import pytest

from procfs_tree import OUR_NETWORK, ProcTree
from stallwatch.discovery import Discovery, DiscoveryReading, reader, target
from stallwatch.procfs import Procfs
from stallwatch.snapshot import Launch

MODULE = ("python3", "-m", "sglang.launch_server")
SPAWN = ("python3", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(5)", "--multiprocessing-fork")
CONTAINERS = ["a" * 64, "b" * 64]


class Node:
    """Discovery over a fake tree, with a clock that is set by hand."""

    def __init__(self, folder):
        self.folder, self.tree, self.now, self.notes = folder, ProcTree(folder), 10_000.0, []
        self.restart()

    def restart(self):
        """Begin with an empty memory, as a new worker does."""
        self.discovery = Discovery(Procfs(str(self.tree.root), self.notes.append), lambda: self.now)

    def look(self, targets=(), skip=()):
        """Look after five seconds; return servers by name."""
        self.now += 5
        reading, self.failures = self.discovery.read(list(targets), frozenset(skip))
        assert len({server.name for server in reading.servers}) == len(reading.servers)
        return {server.name: server for server in reading.servers}

    def server(self, pid, *flags, ranks=("TP0", "TP1"), **settings):
        """Add a launcher with the pid, and its ranks with the pids that follow."""
        self.tree.add(pid, *MODULE, *flags, session=pid, pgrp=pid, **settings)
        for number, rank in enumerate(ranks, 1):
            title = f"sglang::scheduler_{rank}" if rank else "sglang::scheduler"
            self.tree.titled(pid + number, title, ppid=pid, session=pid, pgrp=pid, **settings)


@pytest.fixture
def node(tmp_path):
    """Return discovery over a node without servers."""
    node = Node(tmp_path)
    node.tree.add(1, "init", ppid=0)
    return node


def roles(server):
    """Return the roles by process name."""
    return {process.name: process.role for process in server.processes}


def test_a_server_is_found_with_all_its_processes(node):
    """The launcher has the flags, the titles have the ranks."""
    node.server(100, "--tp", "2", "--model-path", "m", "--api-key", "sk-secret", cgroup=f"0::/docker/{CONTAINERS[0]}\n")
    node.tree.titled(110, "sglang::detokenizer", ppid=100)
    node.tree.add(111, "python3", "-c", "from multiprocessing.resource_tracker import main;main(5)", ppid=100)
    node.tree.add(112, "sleep", "1", ppid=101)
    [server] = node.look().values()
    assert server.name == "sglang:30000"
    assert server.launch == Launch(model="m", port=30000, tp_size=2)
    assert [(p.pid, p.name, p.role, p.rank) for p in server.processes] == [
        (100, "launcher", "launcher", ""),
        (101, "scheduler_TP0", "scheduler", "TP0"),
        (102, "scheduler_TP1", "scheduler", "TP1"),
        (110, "detokenizer", "detokenizer", ""),
    ]
    assert server.processes[0].tree == (101, 102, 110, 111, 112)
    assert server.processes[1].tree == (112,)
    assert (server.processes[0].started, server.processes[0].start_ticks) == (1000.0, 100_000)
    assert (server.expected_schedulers, server.container_id) == (2, CONTAINERS[0])
    assert "sk-secret" not in repr(server)


def test_a_reading_crosses_as_json(node):
    """As it was."""
    node.server(100)
    node.look()
    reading, failures = node.discovery.read([], frozenset())
    text = json.dumps([asdict(reading), [asdict(one) for one in failures]])
    assert msgspec.convert(json.loads(text)[0], DiscoveryReading) == reading


def test_compilers_below_a_rank_are_named(node):
    """They burn the time that the rank waits."""
    node.server(100)
    node.tree.add(120, "ninja", "-v", ppid=101)
    node.tree.add(121, "/usr/local/cuda/bin/nvcc", ppid=120)
    node.tree.add(122, "sh", "-c", "cicc", ppid=121)
    [server] = node.look().values()
    assert [process.compilers for process in server.processes] == [(120, 121), (120, 121), ()]


def test_a_launcher_alone_is_a_server_that_starts(node):
    """Its spawned children are ranks to come, until they have their titles or all ranks are there."""
    node.tree.add(100, *MODULE, "--tp", "2")
    [server] = node.look().values()
    assert roles(server) == {"launcher": "launcher"}
    for pid in (101, 102, 103):
        node.tree.add(pid, *SPAWN, ppid=100, start=node.now)
    [server] = node.look().values()
    assert roles(server) == {"launcher": "launcher", **{f"spawning#{pid}": "spawning" for pid in (101, 102, 103)}}
    node.tree.title(101, "sglang::scheduler_TP0")
    [server] = node.look().values()
    assert list(roles(server).values()) == ["launcher", "scheduler", "spawning", "spawning"]
    node.tree.title(102, "sglang::scheduler_TP1")
    [server] = node.look().values()
    assert roles(server)["spawning"] == "other"


def test_what_a_rank_spawns_is_no_rank(node):
    """Pools of workers look the same."""
    node.server(100, "--tp", "4")
    node.tree.add(120, *SPAWN, ppid=101)
    [server] = node.look().values()
    assert "spawning" not in roles(server)


def test_two_servers_on_one_node_stay_apart(node):
    """Each rank belongs to the launcher above it, also behind a data parallel controller."""
    node.server(100, "--port", "31000")
    node.tree.add(200, *MODULE, "--dp", "2", "--port", "32000")
    node.tree.titled(201, "sglang::data_parallel_controller", ppid=200)
    node.tree.titled(202, "sglang::scheduler_DP0", ppid=201)
    node.tree.titled(203, "sglang::scheduler_DP1", ppid=201)
    found = node.look()
    assert [p.pid for p in found["sglang:31000"].processes] == [100, 101, 102]
    assert sorted(p.pid for p in found["sglang:32000"].processes) == [200, 201, 202, 203]
    assert found["sglang:32000"].ranks == ("DP0", "DP1")


def test_names_that_clash_are_told_apart(node):
    """By container where that tells, else by launcher."""
    node.server(100, cgroup=f"0::/docker/{CONTAINERS[0]}\n", network="net:[1]")
    node.server(200, cgroup=f"0::/docker/{CONTAINERS[1]}\n", network="net:[2]")
    node.server(300)
    node.server(400, "--port", "31000")
    assert set(node.look()) == {
        "sglang:30000@" + "a" * 12,
        "sglang:30000@" + "b" * 12,
        "sglang:30000#300",
        "sglang:31000",
    }


def test_two_of_one_name_in_one_container_are_told_apart(node):
    """The container alone does not tell then."""
    for pid in (100, 200):
        node.server(pid, cgroup=f"0::/docker/{CONTAINERS[0]}\n")
    assert set(node.look()) == {"sglang:30000#100", "sglang:30000#200"}


def test_processes_of_one_name_are_told_apart(node):
    """SGLang 0.4.3 gives all its ranks one title."""
    node.server(100, "--tp", "2", ranks=("None", "None"))
    [server] = node.look().values()
    assert [p.name for p in server.processes] == ["launcher", "scheduler_None#101", "scheduler_None#102"]


def test_an_engine_inside_another_program_is_a_server_without_port(node):
    """Its ranks belong together by the program above them."""
    node.tree.add(100, "python3", "train.py")
    node.tree.titled(101, "sglang::scheduler_TP0", ppid=100)
    node.tree.titled(102, "sglang::scheduler_TP1", ppid=100)
    node.tree.titled(103, "sglang::detokenizer", ppid=100)
    [server] = node.look().values()
    assert server.name == "sglang:embedded"
    assert [p.pid for p in server.processes] == [101, 102, 103]
    assert (server.launch.port, server.expected_schedulers, server.address) == (None, None, None)
    assert server.address_absence.startswith("no_port: ")


def test_two_engines_inside_other_programs_are_two_servers(node):
    """Also the controllers between them and their ranks are seen through."""
    for pid in (100, 200):
        node.tree.add(pid, "python3", "train.py")
        node.tree.titled(pid + 1, "sglang::data_parallel_controller", ppid=pid)
        node.tree.titled(pid + 2, "sglang::scheduler_DP0", ppid=pid + 1)
    assert set(node.look()) == {"sglang:embedded#102", "sglang:embedded#202"}


def test_what_is_left_without_a_rank_is_no_server(node):
    """A detokenizer alone serves nobody, nor does a router."""
    node.tree.titled(101, "sglang::detokenizer")
    node.tree.titled(102, "sglang::router")
    assert node.look() == {}


def test_ranks_whose_launcher_is_gone_remain_one_server_under_its_name(node):
    """They have been given to init, each on its own."""
    node.server(100, "--tp", "2", "--port", "31000")
    node.look()
    node.tree.remove(100)
    for pid in (101, 102):
        node.tree.change(pid, ppid=1)
    [server] = node.look().values()
    assert (server.name, server.launch.tp_size, server.expected_schedulers) == ("sglang:31000", 2, 2)
    assert roles(server) == {"scheduler_TP0": "scheduler", "scheduler_TP1": "scheduler"}


def test_a_new_worker_that_is_told_of_them_sees_the_same_server(node):
    """What was found travels by the exporter."""
    node.server(100, "--tp", "2", "--port", "31000")
    told = [target(server) for server in node.look().values()]
    node.tree.remove(100)
    for pid in (101, 102):
        node.tree.change(pid, ppid=1)
    node.restart()
    [server] = node.look(targets=json.loads(json.dumps(told))).values()
    assert (server.name, server.expected_schedulers, server.ranks) == ("sglang:31000", 2, ("TP0", "TP1"))


def test_ranks_of_a_launcher_that_was_never_seen_belong_together_by_session(node):
    """Two servers lost their launchers before the first look."""
    for pid, session in ((101, 100), (102, 100), (201, 200)):
        node.tree.titled(pid, f"sglang::scheduler_TP{pid % 100}", ppid=1, session=session)
    found = node.look()
    assert {name: [p.pid for p in server.processes] for name, server in found.items()} == {
        "sglang:embedded#101": [101, 102],
        "sglang:embedded#201": [201],
    }


def test_a_zombie_rank_stays_in_its_server(node):
    """Its state is told by who reads processes."""
    node.server(100)
    node.look()
    node.tree.die(102)
    [server] = node.look().values()
    assert server.ranks == ("TP0", "TP1")


def test_a_server_of_which_nothing_runs_is_gone(node):
    """Zombies that nobody collects are no server."""
    node.server(100)
    node.look()
    for pid in (100, 101, 102):
        node.tree.die(pid)
    assert node.look() == {}


def test_a_pid_used_again_is_another_process(node):
    """The server lives another life then."""
    node.server(100)
    before = node.look()["sglang:30000"]
    node.server(100, start=5000.0)
    after = node.look()["sglang:30000"]
    assert before.incarnation != after.incarnation
    assert [p.start_ticks for p in after.processes] == [500_000] * 3


def test_a_fork_of_a_titled_process_is_not_counted_twice(node):
    """Until it runs another program it looks the same."""
    node.server(100)
    node.tree.add(130, *MODULE, ppid=100)
    node.tree.titled(131, "sglang::scheduler_TP0", ppid=101)
    [server] = node.look().values()
    assert [p.pid for p in server.processes] == [100, 101, 102]


def test_a_wrapper_that_stays_is_no_server_of_its_own(node):
    """A launcher above a launcher with other words only runs it."""
    node.tree.add(90, "numactl", "-N", "0", *MODULE)
    node.server(100)
    node.tree.change(100, ppid=90)
    [server] = node.look().values()
    assert server.processes[0].pid == 100


def test_a_starting_server_behind_a_wrapper_is_one_server(node):
    """Before there are ranks to tell who owns them."""
    node.tree.add(90, "numactl", "-N", "0", *MODULE)
    node.tree.add(100, *MODULE, ppid=90)
    [server] = node.look().values()
    assert [p.pid for p in server.processes] == [100]


def test_servers_below_a_router_have_its_flags_and_their_own_ports(node):
    """The ports are known once they listen."""
    node.tree.add(90, "python3", "-m", "sglang_router.launch_server", "--tp", "2", "--dp-size", "2", "--port", "30000")
    for pid in (100, 200):
        node.tree.titled(pid, "sglang::server", ppid=90, pgrp=pid)
        node.tree.titled(pid + 1, "sglang::scheduler_DP0_TP0", ppid=pid)
    assert set(node.look()) == {"sglang:embedded#100", "sglang:embedded#200"}
    node.tree.network(OUR_NETWORK, [("127.0.0.1", 31000, 11), ("127.0.0.1", 31001, 12)])
    node.tree.open(100, 3, "socket:[11]")
    node.tree.open(200, 3, "socket:[12]")
    found = node.look()
    assert set(found) == {"sglang:31000", "sglang:31001"}
    assert (found["sglang:31000"].launch.tp_size, found["sglang:31000"].expected_schedulers) == (2, 2)
    assert found["sglang:31000"].listening


def test_a_titled_main_process_is_a_server(node):
    """SGLang 0.5.2 that was started before us: its flags are lost, its port shows."""
    node.tree.titled(100, "sglang::http_server/tokenizer_manager")
    node.tree.titled(101, "sglang::scheduler", ppid=100)
    node.tree.open(100, 3, "socket:[11]")
    node.tree.network(OUR_NETWORK, [("127.0.0.1", 31000, 11)])
    server = node.look()["sglang:31000"]
    assert (server.expected_schedulers, server.ranks) == (None, ("TP0",))


def test_vllm_servers_are_found(node):
    """Workers are its schedulers; without any, the engine core is."""
    node.tree.add(100, "vllm", "serve", "m", "-tp", "2")
    node.tree.titled(101, "VLLM::EngineCore", ppid=100)
    node.tree.titled(102, "VLLM::Worker_TP0", ppid=101)
    node.tree.titled(103, "VLLM::Worker_TP1", ppid=101)
    node.tree.add(200, "vllm", "serve", "m", "--port", "8001")
    node.tree.titled(201, "VLLM::EngineCore", ppid=200)
    node.tree.titled(202, "VLLM::APIServer", ppid=200)
    found = node.look()
    assert roles(found["vllm:8000"]) == {
        "launcher": "launcher",
        "Worker_TP0": "scheduler",
        "Worker_TP1": "scheduler",
        "EngineCore": "engine_core",
    }
    assert roles(found["vllm:8001"]) == {"launcher": "launcher", "EngineCore": "scheduler", "http_server": "other"}


def test_a_wedged_rank_is_kept_and_told(node):
    """Its command line is not read, neither by the worker that knew it nor by a new one."""
    node.server(100, "--tp", "2")
    told = [target(server) for server in node.look().values()]
    for targets in ((), told):
        [server] = node.look(targets, skip=["pid 102"]).values()
        assert server.ranks == ("TP0", "TP1")
        assert [(f.reason, f.detail, f.server) for f in node.failures] == [("quarantined", "pid 102", "sglang:30000")]
        node.restart()


def test_a_wedged_launcher_keeps_its_flags(node):
    """A new worker is told of them."""
    node.server(100, "--tp", "2", "--port", "31000")
    told = [target(server) for server in node.look().values()]
    node.restart()
    [server] = node.look(told, skip=["pid 100"]).values()
    assert (server.name, server.processes[0].role, server.launch.tp_size) == ("sglang:31000", "launcher", 2)


def test_targets_that_say_nothing_do_no_harm(node):
    """An exporter may ask without."""
    node.server(100)
    assert set(node.look(targets=[{}])) == {"sglang:30000"}


def test_no_proc_is_a_failure_of_the_whole(tmp_path):
    """And no error."""
    reading, [failure] = reader({"procfs": str(tmp_path / "none")}, print)([], frozenset())
    assert (reading.servers, failure.reason, failure.server) == ((), "procfs_unreadable", "")


def test_what_goes_wrong_with_one_server_is_told_under_its_name(node):
    """Others are not touched by it."""
    node.server(100, "--config", "/none.yaml")
    node.server(200, "--port", "31000")
    assert set(node.look()) == {"sglang:30000", "sglang:31000"}
    assert [(f.reason, f.server) for f in node.failures] == [("config_unreadable", "sglang:30000")]


def test_log_and_address_are_those_of_the_server(node):
    """Both stand in the server, with what to say where there is none."""
    log = node.folder / "a.log"
    log.write_text("x")
    node.server(100)
    node.tree.open(100, 2, str(log))
    node.tree.open(100, 3, "socket:[11]")
    node.tree.network(OUR_NETWORK, [("0.0.0.0", 30000, 11)])
    [server] = node.look().values()
    assert (server.log_path, server.log_absence) == (str(log), "")
    assert (server.address, server.address_absence, server.listening) == ("127.0.0.1", "", True)


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
