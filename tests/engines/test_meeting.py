"""Which servers on several nodes are one? Whatever way their nodes write where they meet."""

import pytest

from stallwatch.engines.meeting import group_of
from stallwatch.snapshot import Launch


def group(address, nodes=2):
    """Return the group of a node that was given this address."""
    return group_of(Launch(nnodes=nodes, dist_init_addr=address))


@pytest.mark.parametrize(
    ("spellings", "name"),
    [
        (("10.0.0.1:5000", "tcp://10.0.0.1:5000", " 10.0.0.1:5000/", "TCP://10.0.0.1:5000"), "10.0.0.1:5000"),
        (("node-0:5000", "Node-0:5000", "node-0.:5000", "tcp://NODE-0:5000"), "node-0:5000"),
        (("[fd00::1]:5000", "[FD00:0:0::1]:5000", "tcp://[fd00::0001]:5000"), "[fd00::1]:5000"),
        (("fd00::1", "FD00::0:1", "[fd00::1]"), "fd00::1"),
        (("10.0.0.1",), "10.0.0.1"),
        (("lws-0.lws.serving.svc.cluster.local:20000",), "lws-0.lws.serving.svc.cluster.local:20000"),
    ],
)
def test_one_address_has_one_spelling(spellings, name):
    """All nodes of a server get the same group, whatever way each was told where they meet."""
    assert {group(spelling) for spelling in spellings} == {name}


@pytest.mark.parametrize(
    "address",
    [
        "",
        "127.0.0.1:5000",
        "localhost:5000",
        "localhost.:5000",
        "0.0.0.0:5000",
        "[::1]:5000",
        "::",
        "tcp://:5000",
        ":5000",
    ],
)
def test_an_address_that_is_another_machine_on_each_node_makes_no_group(address):
    """Else all servers of a fleet that were started with the same default would be one."""
    assert group(address) == ""


def test_a_server_of_one_node_is_in_no_group():
    """Whatever address it was given."""
    assert group("10.0.0.1:5000", nodes=1) == ""


@pytest.mark.parametrize("address", ["x" * 300, 'a"b\\c:1', "[::1", "]:5", "[]", "10.0.0.1:5000:6000", "://", "é:5000"])
def test_an_address_that_is_none_is_taken_as_it_stands(address):
    """It is a name like any other, and never an error."""
    assert isinstance(group(address), str)
