"""Where a server's log goes, told by its open files."""

import os

import pytest

from procfs_tree import Denied, ProcTree
from stallwatch.node.log_source import LogSources
from stallwatch.node.procfs import Procfs
from stallwatch.node.table import ProcessTable

SGLANG = (2, 1)


class Sources:
    """Log sources over a fake tree, with a clock that is set by hand."""

    def __init__(self, folder):
        self.folder, self.tree, self.now = folder, ProcTree(folder), 10_000.0
        self.procfs = Procfs(str(self.tree.root))
        self.table = ProcessTable(lambda: self.now)
        self.sources = LogSources(self.table, lambda: self.now)

    def file(self, name):
        """Return the path of a file that is there."""
        path = self.folder / name
        path.write_text("x")
        return str(path)

    def find(self, *pids, procfs=None, descriptors=SGLANG):
        """Look for the log of these processes."""
        self.table.look(self.procfs)
        return self.sources.find(procfs or self.procfs, pids, descriptors)


@pytest.fixture
def sources(tmp_path):
    """Return log sources over an empty tree."""
    return Sources(tmp_path)


def test_standard_error_is_the_log_where_both_are_files(sources):
    """SGLang writes only access lines to standard output; vLLM is the other way round."""
    out, err = sources.file("out.log"), sources.file("err.log")
    sources.tree.add(7, "x", fds={1: out, 2: err})
    assert sources.find(7).path == err
    assert sources.find(7, descriptors=(1, 2)).path == out


def test_the_other_one_is_better_than_nothing(sources):
    """Standard error may be a terminal."""
    out = sources.file("out.log")
    sources.tree.add(7, "x", fds={1: out, 2: "/dev/pts/1"})
    assert sources.find(7).path == out


def test_a_scheduler_stands_in_for_its_launcher(sources):
    """The launcher may have closed its output."""
    err = sources.file("err.log")
    sources.tree.add(7, "x")
    sources.tree.add(8, "x", fds={2: err})
    assert sources.find(7, 8).path == err


@pytest.mark.parametrize(
    ("link", "reason"),
    [
        ("/dev/pts/3", "terminal"),
        ("/dev/tty1", "terminal"),
        ("/dev/console", "terminal"),
        ("/dev/null", "dev_null"),
        ("socket:[77]", "socket"),
        ("pipe:[77]", "pipe"),
        ("/dev/full", "terminal"),
        ("/gone/away", "closed"),
    ],
)
def test_where_there_is_no_file_the_reason_and_a_hint_are_given(sources, link, reason):
    """One word for a metric, a sentence for a person."""
    sources.tree.add(7, "x", fds={1: link, 2: link})
    found = sources.find(7)
    assert found.path is None
    assert found.absence.startswith(f"{reason}: ")
    assert "tee -a FILE" in found.absence


def test_closed_output_is_told(sources):
    """There is no link at all."""
    sources.tree.add(7, "x")
    assert sources.find(7).absence.startswith("closed: ")


def test_not_being_allowed_to_look_is_told(sources):
    """It is another thing than closed output."""
    sources.tree.add(7, "x", fds={2: "/a"})
    assert sources.find(7, procfs=Denied(str(sources.tree.root))).absence.startswith("permission_denied: ")


def test_a_file_of_another_mount_namespace_is_reached_through_its_root(sources):
    """A path means something else in a container."""
    container = sources.folder / "container"
    (container / "data").mkdir(parents=True)
    (container / "data" / "a.log").write_text("x")
    sources.tree.add(7, "x", root=str(container))
    link = sources.tree.root / "7" / "fd" / "2"
    link.symlink_to(container / "data" / "a.log")

    class InContainer(Procfs):
        """The kernel names the file as the container sees it."""

        __slots__ = ()

        def link(self, pid, name):
            return "/data/a.log" if name == "fd/2" else Procfs.link(self, pid, name)

    found = sources.find(7, procfs=InContainer(str(sources.tree.root)))
    assert found.path == f"{sources.tree.root}/7/root/data/a.log"


def test_a_file_without_a_name_is_reached_through_its_descriptor(sources):
    """A deleted log can still be read."""
    sources.tree.add(7, "x", fds={2: sources.file("a.log")})

    class Deleted(Procfs):
        """The kernel appends a word to the name of a deleted file."""

        __slots__ = ()

        def link(self, pid, name):
            return "/x/a.log (deleted)" if name == "fd/2" else Procfs.link(self, pid, name)

    found = sources.find(7, procfs=Deleted(str(sources.tree.root)))
    assert found.path == f"{sources.tree.root}/7/fd/2"


def test_a_pipe_leads_to_the_file_of_its_reader(sources):
    """`2>&1 | tee FILE`, found by the reader's standard input."""
    log = sources.file("tee.log")
    sources.tree.add(7, "x", fds={1: ("pipe:[5]", os.O_WRONLY), 2: ("pipe:[5]", os.O_WRONLY)}, session=7, pgrp=7)
    tee = {0: ("pipe:[5]", os.O_RDONLY), 1: "/dev/pts/1", 2: "/dev/pts/1", 3: (log, os.O_WRONLY)}
    sources.tree.add(8, "tee", "FILE", fds=tee, session=7, pgrp=7)
    assert sources.find(7).path == log


def test_a_chain_of_pipes_is_followed(sources):
    """`2>&1 | ts | cronolog FILE`."""
    log = sources.file("chain.log")
    sources.tree.add(7, "x", fds={2: ("pipe:[5]", os.O_WRONLY)})
    sources.tree.add(8, "ts", fds={0: ("pipe:[5]", os.O_RDONLY), 1: ("pipe:[6]", os.O_WRONLY)})
    sources.tree.add(9, "cronolog", fds={0: ("pipe:[6]", os.O_RDONLY), 4: (log, os.O_WRONLY)})
    assert sources.find(7).path == log


def test_pipes_in_a_circle_end(sources):
    """Two processes may talk to each other."""
    sources.tree.add(7, "x", fds={0: ("pipe:[6]", os.O_RDONLY), 2: ("pipe:[5]", os.O_WRONLY)})
    sources.tree.add(8, "y", fds={0: ("pipe:[5]", os.O_RDONLY), 1: ("pipe:[6]", os.O_WRONLY)})
    assert sources.find(7).absence.startswith("pipe: ")


def test_who_only_writes_to_the_pipe_is_no_reader(sources):
    """All ranks have the same pipe."""
    sources.tree.add(7, "x", fds={2: ("pipe:[5]", os.O_WRONLY)})
    other = sources.file("other.log")
    sources.tree.add(8, "x", fds={0: ("pipe:[5]", os.O_WRONLY), 3: (other, os.O_WRONLY)})
    assert sources.find(7).path is None


def test_what_a_reader_only_reads_is_no_log(sources):
    """Its own programs and configuration are open too."""
    other = sources.file("other.conf")
    sources.tree.add(7, "x", fds={2: ("pipe:[5]", os.O_WRONLY)})
    sources.tree.add(8, "cat", fds={0: ("pipe:[5]", os.O_RDONLY), 3: (other, os.O_RDONLY)})
    assert sources.find(7).path is None


def test_a_parent_that_reads_the_pipe_and_writes_one_file_has_the_log(sources):
    """One that writes several, as a supervisor does, may write another's."""
    log = sources.file("log")
    sources.tree.add(7, "x", ppid=8, fds={2: ("pipe:[5]", os.O_WRONLY)})
    sources.tree.add(8, "runner", fds={0: "/dev/null", 5: ("pipe:[5]", os.O_RDONLY), 6: (log, os.O_WRONLY)})
    assert sources.find(7).path == log
    sources.tree.open(8, 7, sources.file("log2"), os.O_WRONLY)
    fresh = LogSources(sources.table, lambda: sources.now)
    assert fresh.find(sources.procfs, [7], SGLANG).absence.startswith("pipe: ")


def test_what_a_pipe_leads_to_is_not_searched_again(sources):
    """Only when the reader is gone, and then at growing intervals."""
    log = sources.file("tee.log")
    sources.tree.add(7, "x", fds={2: ("pipe:[5]", os.O_WRONLY)})
    sources.tree.add(8, "tee", fds={0: ("pipe:[5]", os.O_RDONLY), 3: (log, os.O_WRONLY)})
    assert sources.find(7).path == log
    (sources.tree.root / "8" / "fd" / "0").unlink()
    assert sources.find(7).path == log
    sources.tree.remove(8)
    assert sources.find(7).path is None
    sources.tree.add(9, "tee", fds={0: ("pipe:[5]", os.O_RDONLY), 3: (log, os.O_WRONLY)})
    assert sources.find(7).path is None
    sources.now += 60
    assert sources.find(7).path == log


def test_a_file_is_looked_at_once_while_its_link_stays(sources):
    """Touching a dead file system again and again would cost a worker each time."""
    log, notes = sources.file("a.log"), []
    sources.tree.add(7, "x", fds={2: log})
    noting = Procfs(str(sources.tree.root), notes.append)
    assert sources.find(7, procfs=noting).path == log
    assert sources.find(7, procfs=noting).path == log
    assert notes == [f"log {log}"]
    moved = sources.file("b.log")
    sources.tree.open(7, 2, moved)
    assert sources.find(7, procfs=noting).path == moved


def test_a_file_that_hung_is_left_alone(sources):
    """And told so."""
    log = sources.file("a.log")
    sources.tree.add(7, "x", fds={2: log})
    skipping = Procfs(str(sources.tree.root), skip=frozenset({f"log {log}"}))
    assert sources.find(7, procfs=skipping).absence.startswith("quarantined: ")


def test_what_belongs_to_processes_that_went_is_forgotten(sources):
    """A watcher runs for months."""
    sources.tree.add(7, "x", fds={2: sources.file("a.log"), 1: "pipe:[5]"})
    sources.find(7)
    sources.find(7, descriptors=(1,))
    sources.now += 10_000
    sources.sources.forget_others(frozenset())
    assert (sources.sources._files, sources.sources._pipes) == ({}, {})
