"""What a look at the process table reads, and what it makes of what changed."""

import pytest

from procfs_tree import CountingRead, ProcTree
from stallwatch.engines.engine import Identity
from stallwatch.node.procfs import Procfs
from stallwatch.node.table import LEAST_LOOKS, ProcessTable, kind_of

LAUNCHER = ("python3", "-m", "sglang.launch_server", "--port", "31000")
SPAWN = (
    "/usr/bin/python3",
    "-c",
    "from multiprocessing.spawn import spawn_main; spawn_main(5)",
    "--multiprocessing-fork",
)


class Watch:
    """A table over a fake tree, with a clock that is set by hand."""

    def __init__(self, folder):
        self.tree, self.read, self.now = ProcTree(folder), CountingRead(), 10_000.0
        self.table = ProcessTable(lambda: self.now)

    def look(self, after=5.0, skip=()):
        """Let time pass, look, and return how many files of each name were read."""
        self.now += after
        self.table.look(Procfs(str(self.tree.root), skip=frozenset(skip), read=self.read))
        return self.read.take()

    def role(self, pid):
        """Return what a process is held to be."""
        identity = self.table.entries[pid].kind.identity
        return identity.role if identity else None


@pytest.fixture
def watch(tmp_path):
    """Return a table over an empty tree."""
    return Watch(tmp_path)


def test_ten_thousand_others_cost_the_listing_and_their_share(watch):
    """Each is read when it is new and once a minute after that, evenly spread, and none of them by its stat again."""
    watch.tree.add_others(range(10_000, 20_000))
    watch.tree.add(2, *LAUNCHER)
    watch.tree.titled(3, "sglang::scheduler_TP0", ppid=2)
    assert watch.look() == {"stat": 10_002, "cmdline": 10_002}
    looks = [watch.look() for _ in range(24)]
    assert all(look["stat"] == 2 for look in looks)
    assert all(look["cmdline"] <= 10_000 * 5 / 60 + 60 for look in looks)
    assert all(19_000 <= sum(look["cmdline"] for look in looks[at : at + 12]) * 2 <= 21_000 for at in (0, 12))


def test_many_young_others_wait_for_their_turn(watch):
    """A storm of new processes does not make every look read all of them."""
    watch.tree.add_others(range(11, 10 + 5 * LEAST_LOOKS), start=watch.now)
    watch.tree.add(10, "sleep", "1", start=watch.now)
    watch.look()
    assert watch.look() == {"cmdline": LEAST_LOOKS}
    for _ in range(4):
        watch.look()
    watch.tree.title(10, "sglang::scheduler_TP0")
    for _ in range(5):
        watch.look()
    assert watch.role(10) == "scheduler"


def test_a_young_process_is_looked_at_until_it_has_its_title(watch):
    """A rank looks like any Python process before its imports are done."""
    watch.look()
    watch.tree.add(7, *SPAWN, start=watch.now)
    watch.look()
    assert watch.table.entries[7].kind.spawned
    watch.tree.title(7, "sglang::scheduler_TP0")
    watch.look()
    assert watch.role(7) == "scheduler"


def test_an_old_shell_that_becomes_a_launcher_is_seen_within_a_minute(watch):
    """Exec keeps pid and start time."""
    watch.tree.add(7, "bash", "start.sh")
    watch.look()
    watch.tree.add(7, *LAUNCHER)
    for _ in range(13):
        watch.look()
    assert watch.role(7) == "launcher"


def test_children_of_a_launcher_are_looked_at_however_old(watch):
    """On a cold disk imports take many minutes."""
    watch.tree.add(1, *LAUNCHER, ppid=0)
    watch.tree.add(7, *SPAWN, ppid=1)
    watch.look()
    watch.tree.title(7, "sglang::scheduler_TP0")
    watch.look(after=1.0)
    assert watch.role(7) == "scheduler"


def test_titles_are_not_read_twice(watch):
    """Reading a command line can block, and a title stays; so does what old children run, while their name does."""
    watch.tree.add(1, *LAUNCHER, ppid=0)
    watch.tree.titled(7, "sglang::scheduler_TP0", ppid=1)
    watch.look()
    for pid in range(20, 50):
        watch.tree.add(pid, "python3", "pool.py", ppid=7)
    watch.look()
    assert watch.look() == {"stat": 32}


def test_a_pid_used_again_is_another_process(watch):
    """The start time tells."""
    watch.tree.titled(7, "sglang::scheduler_TP0", start=100.0)
    watch.look()
    before = watch.table.entries[7].stat.identity
    watch.tree.titled(7, "sglang::scheduler_TP0", start=9000.0)
    watch.look()
    assert watch.table.entries[7].stat.identity != before
    watch.tree.add(7, "sleep", "1", start=9001.0)
    watch.look()
    assert watch.role(7) is None


def test_a_process_that_vanishes_is_gone(watch):
    """Between the listing and the reads, or between two looks."""
    watch.tree.titled(7, "sglang::scheduler_TP0")
    watch.tree.add(8, "sleep", "1")
    (watch.tree.root / "8" / "stat").unlink()
    (watch.tree.root / "9").mkdir()
    watch.look()
    assert set(watch.table.entries) == {7}
    (watch.tree.root / "7" / "stat").unlink()
    watch.look()
    assert not watch.table.entries


def test_a_zombie_keeps_what_it_was(watch):
    """Its command line is empty, its name is cut."""
    watch.tree.titled(7, "sglang::scheduler_DP0_TP3")
    watch.look()
    watch.tree.die(7)
    watch.look()
    entry = watch.table.entries[7]
    assert (entry.is_zombie, entry.kind.identity.rank) == (True, "DP0_TP3")


def test_a_zombie_that_was_never_seen_alive_is_told_by_its_cut_name(watch):
    """That it is a scheduler is known, its rank is not."""
    watch.tree.titled(7, "sglang::scheduler_TP3")
    watch.tree.die(7)
    watch.look()
    assert watch.table.entries[7].kind.identity == Identity("sglang", "scheduler", "scheduler")


def test_a_command_line_that_is_skipped_is_told_by_the_cut_name_or_what_is_remembered(watch):
    """A wedged rank must not vanish when the worker that knew it is replaced."""
    watch.tree.titled(7, "sglang::scheduler_TP3")
    watch.tree.titled(8, "sglang::scheduler_TP4")
    known = Identity("sglang", "scheduler", "scheduler_TP4", "TP4")
    watch.table.remembered[8, 100_000] = known
    assert watch.look(skip=("pid 7", "pid 8"))["cmdline"] == 0
    assert watch.table.entries[7].kind.identity.rank == ""
    assert watch.table.entries[8].kind.identity == known


def test_a_main_process_that_titles_itself_keeps_its_flags(watch):
    """SGLang 0.5.2 does so after its flags could be read."""
    watch.tree.add(7, *LAUNCHER, start=watch.now)
    watch.look()
    watch.tree.title(7, "sglang::http_server/tokenizer_manager")
    watch.look()
    assert watch.table.entries[7].kind.argv == LAUNCHER


def test_command_lines_of_others_are_not_kept(watch):
    """Only flags of servers are of use, and only there may anything be looked up."""
    watch.tree.add(7, "curl", "-H", "Authorization: secret")
    watch.look()
    assert "secret" not in repr(watch.table.entries)


def test_walks_end_even_in_a_circle(watch):
    """Parents are read one after another, so that they may contradict each other."""
    watch.tree.add(7, "a", ppid=8)
    watch.tree.add(8, "b", ppid=7)
    watch.look()
    assert {entry.stat.pid for entry in watch.table.ancestors(7)} == {7, 8}
    assert [entry.stat.pid for entry in watch.table.descendants(7)] == [8]


@pytest.mark.parametrize(
    ("argv", "comm"),
    [
        (("/usr/local/cuda/bin/nvcc", "-c"), "nvcc"),
        (("cicc",), "cicc"),
        (("ptxas",), "ptxas"),
        (("ninja", "-v"), "ninja"),
        (("/usr/lib/gcc/x86_64-linux-gnu/13/cc1plus",), "cc1plus"),
        (("x86_64-linux-gnu-g++-13",), "x86_64-linux-gn"),
        (("c++", "x.cc"), "c++"),
        (("cudafe++",), "cudafe++"),
        (("fatbinary",), "fatbinary"),
        (("/usr/bin/clang-18",), "clang-18"),
        (("python3", "/v/torch/_inductor/compile_worker/__main__.py", "--pickler"), "python3"),
    ],
)
def test_compilers_are_known(argv, comm):
    """By the kernel's name, the command, or what it runs."""
    assert kind_of(argv, comm).compiler


@pytest.mark.parametrize("argv", [("python3", "nvcc"), ("ninja-monitor",), ("gccx",), ()])
def test_others_are_no_compilers(argv):
    """The name must be whole."""
    assert not kind_of(argv, "x").compiler
