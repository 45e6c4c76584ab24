"""Which processes of a server are looked at: those that are still the same."""

from dataclasses import replace

import pytest

from readings import a_server
from stallwatch.node.procfs import Procfs
from stallwatch.sources.asked import MOST_PROCESSES, Asking, Member, members_of, processes_of, word_of


def a_tree(root, **parents):
    """Make a /proc with these processes, each with the pid of its parent."""
    for name, parent in parents.items():
        (root / name[1:]).mkdir()
        text = f"{name[1:]} (x) S {parent} {' '.join(['0'] * 17)} 5 {' '.join(['0'] * 20)}"
        (root / name[1:] / "stat").write_text(text)
    return Procfs(str(root))


def entry(pid, *tree, ticks=5, rank=""):
    """Return a process as a worker is asked about it."""
    return {"pid": pid, "start_ticks": ticks, "name": f"p{pid}", "role": "", "rank": rank, "tree": list(tree)}


def members(procfs, *entries, **keywords):
    """Return who is looked at, how many are left out, and what failed."""
    asking = Asking("threads", "threads of pid ")
    found, left_out = members_of(asking, procfs, {"server": "s", "processes": entries}, **keywords)
    return found, left_out, asking.failures


def test_a_server_without_processes_is_not_asked_about():
    """Of others what a worker needs is told."""
    assert processes_of(replace(a_server(), processes=())) is None
    told = processes_of(a_server())
    assert set(told["processes"][0]) == {"pid", "start_ticks", "name", "role", "rank", "tree"}


def test_a_pid_that_is_a_strangers_by_now_is_left_out(tmp_path):
    """By when it was started; so is one that has gone."""
    procfs = a_tree(tmp_path, p7=1, p8=1)
    found, _, _ = members(procfs, entry(7, rank="TP0"), entry(8, ticks=6), entry(9))
    assert found == [Member(7, "p7", "TP0")]


def test_descendants_stand_under_the_nearest_and_strangers_under_none(tmp_path):
    """A pid of a tree whose parent is another one now was given to somebody else."""
    procfs = a_tree(tmp_path, p7=1, p8=7, p9=8, p10=1)
    found, _, _ = members(procfs, entry(7, 8, 9, 10), entry(8, 9, rank="TP0"), descendants=True)
    assert found == [Member(7, "p7", ""), Member(8, "p8", "TP0"), Member(9, "p8", "TP0", descendant=True)]


def test_what_hung_us_before_is_named_and_left_alone(tmp_path):
    """Nobody else is."""
    procfs = replace(a_tree(tmp_path, p7=1, p8=1), skip=frozenset({"threads of pid 7"}))
    found, _, failures = members(procfs, entry(7), entry(8))
    assert [member.pid for member in found] == [8]
    assert [(one.reason, one.detail) for one in failures] == [("quarantined", "threads of pid 7")]


def test_too_many_are_counted(tmp_path):
    """Nobody waits for a thousand."""
    procfs = a_tree(tmp_path, **{f"p{pid}": 1 for pid in range(1, MOST_PROCESSES + 4)})
    found, left_out, _ = members(procfs, *(entry(pid) for pid in range(1, MOST_PROCESSES + 4)))
    assert (len(found), left_out) == (MOST_PROCESSES, 3)


@pytest.mark.parametrize(("data", "word"), [(b"nccl\n", "nccl"), (b"\x1b[31m<b>", "?[31m<b>"), (b"\xff", "\ufffd")])
def test_a_name_fits_one_line(data, word):
    """Whatever a process calls itself."""
    assert word_of(data) == word
