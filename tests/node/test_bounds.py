"""Whoever starts processes under any name cannot make the exporter watch all of them."""

from dataclasses import replace

import pytest

from discovery_node import Node
from readings import a_server
from stallwatch.node import bounds, table
from stallwatch.node.bounds import bounded
from stallwatch.snapshot import Process


@pytest.fixture
def node(tmp_path):
    """Return a node without processes."""
    return Node(tmp_path)


def a_process(pid, tree=(), compilers=()):
    """Return a process with descendants."""
    return Process(pid, 1, 0.0, "scheduler", f"scheduler_TP{pid}", f"TP{pid}", tuple(tree), tuple(compilers))


def servers_of(processes, *names):
    """Return servers that all have these processes."""
    return [replace(a_server(name=name), processes=processes) for name in names]


def test_few_are_left_as_they_are():
    """Nothing is dropped."""
    servers = [a_server(ranks=8)]
    assert bounded(servers) == (servers, 0)


def test_of_one_server_and_of_all_only_so_many_processes_are_watched():
    """A later server keeps one process, so that it is not taken to have gone."""
    many = tuple(a_process(pid) for pid in range(2000))
    servers, dropped = bounded(servers_of(many, "a", "b", "c"))
    assert [len(server.processes) for server in servers] == [512, 512, 1]
    assert servers[0].processes == many[:512]
    assert dropped == 6000 - 1025


def test_descendants_are_bounded_over_all_servers():
    """With the compilers among them."""
    fork_bomb = a_process(1, range(10, 10_010), range(9_000, 10_010))
    (first, second), dropped = bounded(
        [*servers_of((fork_bomb,), "a"), *servers_of((a_process(2, (7, 8), (8,)),), "b")]
    )
    assert (len(first.processes[0].tree), first.processes[0].compilers) == (8192, ())
    assert (second.processes[0].tree, second.processes[0].compilers) == ((), ())
    assert dropped == 10_000 - 8192 + 2


def test_the_oldest_servers_are_watched(node, monkeypatch):
    """A crowd that comes later does not push them out."""
    monkeypatch.setattr(bounds, "MOST_SERVERS", 3)
    for pid in (100, 200):
        node.server(pid, "--port", str(30000 + pid), start=2000.0)
    node.server(50, "--port", "30050", start=1000.0)
    for pid in range(300, 360, 10):
        node.server(pid, "--port", str(30000 + pid), start=3000.0)
    assert sorted(node.look()) == ["sglang:30050", "sglang:30100", "sglang:30200"]
    assert node.discovery._last.dropped == 6
    node.tree.remove(50)
    node.tree.remove(51)
    node.tree.remove(52)
    assert sorted(node.look()) == ["sglang:30100", "sglang:30200", "sglang:30300"]


def test_newcomers_are_nothing_while_there_is_no_room(node, monkeypatch):
    """They are looked at again when there is."""
    monkeypatch.setattr(table, "MOST_KNOWN", 4)
    node.server(100)
    node.look()
    node.server(200, "--port", "31000")
    assert sorted(node.look()) == ["sglang:30000", "sglang:31000"]
    assert node.discovery._last.dropped == 2
    for pid in (100, 101, 102):
        node.tree.remove(pid)
    node.look()
    (server,) = node.look().values()
    assert [process.name for process in server.processes] == ["launcher", "scheduler_TP0", "scheduler_TP1"]
    node.look()
    assert node.discovery._last.dropped == 0
