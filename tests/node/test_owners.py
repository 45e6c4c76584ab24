"""Whose a socket is."""

import pytest

from procfs_tree import ProcTree
from stallwatch.node.owners import Owners
from stallwatch.node.procfs import Procfs


class Counted(Procfs):
    """A /proc that says whose descriptors were listed."""

    __slots__ = ("listed",)

    def fds(self, pid):
        """List and count."""
        self.listed.append(pid)
        return Procfs.fds(self, pid)


@pytest.fixture
def tree(tmp_path):
    """Return a tree with a launcher 7, its rank 8 and a stranger 9."""
    tree = ProcTree(tmp_path)
    for pid in (7, 8, 9):
        tree.add(pid, "x", fds={3: f"socket:[{pid}00]", 4: "/a"})
    return tree


def test_a_socket_is_found_among_the_files_of_any_of_them(tree):
    """And of nobody else."""
    procfs = Procfs(str(tree.root))
    assert Owners().owns(procfs, (7, 8), 800)
    assert not Owners().owns(procfs, (7, 8), 900)


def test_descriptors_are_listed_once_per_socket(tree):
    """Eight ranks have thousands of them; other processes may have it."""
    procfs, owners = Counted(str(tree.root)), Owners()
    object.__setattr__(procfs, "listed", [])
    for _ in range(3):
        assert owners.owns(procfs, (7, 8), 800)
        assert not owners.owns(procfs, (9,), 800)
    assert procfs.listed == [7, 8, 9]
    assert owners.owns(procfs, (9, 8), 800)


def test_a_socket_that_was_closed_is_not_taken_for_open(tree):
    """The number of a socket may come again, in another process."""
    procfs, owners = Procfs(str(tree.root)), Owners()
    assert owners.owns(procfs, (7, 8), 700)
    tree.open(7, 3, "/b")
    assert not owners.owns(procfs, (7, 8), 700)
