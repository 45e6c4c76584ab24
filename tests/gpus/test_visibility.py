"""Processes that hold GPU memory and are not seen here."""

import os
import subprocess
import sys

import pytest

from contained import as_root
from procfs_tree import ProcTree
from stallwatch.gpus.visibility import MOST_NAMED, Visibility
from stallwatch.node.procfs import Procfs

LOOK = """
from stallwatch.gpus.visibility import Visibility
seen = Visibility()
seen.hidden({1, 4000000})
found = seen.hidden({1, 4000000})
print(sorted(found), seen.told(found))
"""


@pytest.fixture
def tree(tmp_path):
    """Return a tree of a namespace of its own, with its first process and one more."""
    tree = ProcTree(tmp_path)
    tree.add(1, "pause", ppid=0)
    tree.add(7, "x")
    tree._link("self/stat", tree.root / "7" / "stat")
    tree._link("self/ns/pid", tree.folder)  # any file has another number than the node's namespace
    return tree


def test_a_process_that_is_not_there_twice_is_kept_from_us(tree):
    """One that is missing once may have ended between the driver's answer and the look."""
    seen = Visibility(Procfs(str(tree.root)))
    assert seen.hidden({7, 4711}) == set()
    assert seen.hidden({7, 4711}) == {4711}
    assert seen.told({4711}).startswith("pids 4711 hold GPU memory and are not seen here: ")
    assert "hostPID" in seen.told({4711})
    assert seen.hidden({7, 4712}) == set()


def test_only_some_are_named(tree):
    """A node may have hundreds."""
    text = Visibility(Procfs(str(tree.root))).told(range(100, 200))
    assert text.count(", ") >= MOST_NAMED
    assert "107, ..." in text
    assert "108" not in text


def test_hidden_processes_of_others_have_their_own_reason(tree):
    """The mount option hidepid."""
    tree.remove(1)
    seen = Visibility(Procfs(str(tree.root)))
    seen.hidden({4711})
    assert seen.hidden({4711}) == {4711}
    assert "hidepid" in seen.told({4711})


def test_where_nothing_is_hidden_a_process_that_is_not_there_has_ended(tree):
    """The driver may list it for a while: it is nobody's memory, and no right is missing."""
    seen = Visibility(Procfs(str(tree.root)), os.stat(tree.root / "self" / "ns" / "pid").st_ino)
    assert [seen.hidden({7, 2**22 + 5}) for _ in range(2)] == [set(), set()]


@as_root
def test_in_a_real_pid_namespace_the_processes_of_the_node_are_hidden():
    """As in a container without hostPID."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", LOOK]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout
    assert said.startswith("[4000000] pids 4000000 hold GPU memory")
    assert "hostPID" in said
