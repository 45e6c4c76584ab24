"""Which servers are found, and what is told of them, in fake trees."""

import json
from dataclasses import asdict

import msgspec
import pytest

from discovery_node import MODULE, Node
from procfs_tree import OUR_NETWORK
from stallwatch.discovery import DiscoveryReading, reader, target
from stallwatch.snapshot import Launch

CONTAINERS = ["a" * 64, "b" * 64]


@pytest.fixture
def node(tmp_path):
    """Return discovery over a node without servers."""
    node = Node(tmp_path)
    node.tree.add(1, "init", ppid=0)
    return node


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


def test_a_player_sees_only_what_it_has_started(node):
    """Servers that descend from it, however far, and those whose launcher has gone since; no other of the machine."""
    node.restart(below=50)
    node.tree.add(50, "python3", "-m", "stallwatch", "demo")
    node.tree.add(51, "sh", ppid=50)
    node.server(100)
    node.tree.add(100, *MODULE, "--port", "40000", ppid=51, session=100, pgrp=100)
    node.server(200, "--port", "41000")
    assert list(node.look()) == ["sglang:40000"]
    node.tree.remove(100)
    for pid in (101, 102):
        node.tree.titled(pid, f"sglang::scheduler_TP{pid - 101}", ppid=1, session=100, pgrp=100)
    [server] = node.look().values()
    assert {process.pid for process in server.processes} == {101, 102}


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
    assert (reading, failure.reason, failure.server) == (None, "procfs_unreadable", "")


def test_servers_do_not_vanish_with_proc(node):
    """What was seen last stays while nothing can be seen."""
    node.server(100)
    node.look()
    node.tree.root.rename(node.folder / "away")
    assert set(node.look()) == {"sglang:30000"}
    assert [failure.reason for failure in node.failures] == ["procfs_unreadable"]


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
