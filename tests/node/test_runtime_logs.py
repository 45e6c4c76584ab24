"""Where a container runtime keeps the log of a server, and whether it is the server's."""

import os

import pytest

from procfs_tree import Denied, ProcTree
from stallwatch.node.facts import Facts
from stallwatch.node.log_source import LogSource, absent
from stallwatch.node.procfs import Procfs
from stallwatch.node.runtime_logs import TRY_AGAIN_AFTER, RuntimeLogs
from stallwatch.node.table import ProcessTable

MINE, OTHER = "ab" * 32, "cd" * 32
POD = "var/log/pods/default_kimi-0_5a0d8c8e/sglang"
SHIM, FIRST, LAUNCHER, PEER = 50, 60, 70, 80


class NodeOfContainers:
    """A node whose root is a folder; one container runs a shell that has started a launcher."""

    def __init__(self, folder):
        self.folder, self.now = folder, 10_000.0
        self.tree, self.host = ProcTree(folder), folder / "host"
        self.host.mkdir()
        self.tree.add(1, "init", ppid=0, root=self.host)
        self.tree.add(SHIM, "containerd-shim-runc-v2", ppid=1)
        self.member(FIRST, SHIM, start=1000.0)
        self.member(LAUNCHER, FIRST, start=1001.0)
        self.procfs = Procfs(str(self.tree.root))
        self.table = ProcessTable(lambda: self.now)
        self.logs = RuntimeLogs(self.table, lambda: self.now, str(folder / "no-journalctl"))

    def member(self, pid, ppid, *, container=MINE, output="pipe:[5]", start=1000.0):
        """Add a process of a container."""
        fds = {1: (output, os.O_WRONLY), 2: (output, os.O_WRONLY)}
        self.tree.add(pid, "sh", ppid=ppid, cgroup=f"0::/system.slice/docker-{container}.scope\n", start=start, fds=fds)

    def file(self, name):
        """Write a file of the node."""
        path = self.host / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        return path

    def kubelet(self, container=MINE, target=f"{POD}/0.log"):
        """Link to a container's log as the kubelet does."""
        link = self.host / "var/log/containers" / f"kimi-0_default_sglang-{container}.log"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"/{target}")

    def find(self, log=None, pid=LAUNCHER, *, container=MINE, journal="", procfs=None):
        """Look for what stands in for a log that is absent."""
        self.table.look(self.procfs)
        facts = Facts(container_id=container, journal_stream=journal)
        return self.logs.instead_of(log or absent("pipe"), procfs or self.procfs, [(pid, 2), (pid, 1)], facts)

    def path(self, name):
        """Return a file of the node as it is named by us."""
        return f"{self.tree.root}/1/root/{name}"


@pytest.fixture
def node(tmp_path):
    """Return a node."""
    return NodeOfContainers(tmp_path)


@pytest.mark.parametrize(
    "place",
    [
        f"var/lib/docker/containers/{MINE}/{MINE}-json.log",
        f"var/lib/containers/storage/overlay-containers/{MINE}/userdata/ctr.log",
    ],
)
def test_docker_and_podman_keep_logs_under_the_id(node, place):
    """They are found in the tree of the node's first process, since ours may be that of a container."""
    node.file(place)
    node.file(place.replace(MINE, OTHER))
    found = node.find()
    assert (found.path, found.root) == (node.path(place), f"{node.tree.root}/1/root")


def test_kubelet_links_to_the_log_of_each_container(node):
    """The path that is followed has no link in it, and stays as it is over rotations."""
    node.file(f"{POD}/0.log")
    node.kubelet()
    node.kubelet(OTHER, target="elsewhere.log")
    assert node.find().path == node.path(f"{POD}/0.log")


def test_the_log_of_a_kubelet_may_itself_be_a_link_to_that_of_docker(node):
    """As with the Docker shim."""
    place = f"data/docker/containers/{MINE}/{MINE}-json.log"
    node.file(place)
    (node.host / POD).mkdir(parents=True)
    (node.host / POD / "0.log").symlink_to(f"/{place}")
    node.kubelet()
    assert node.find().path == node.path(place)


def test_what_a_daemon_has_open_tells_where_else_its_data_is(node):
    """Docker may be told to keep it on another disk, and has the files of all containers open."""
    data = {7: node.file(f"mnt/{OTHER}/{OTHER}-json.log"), 8: node.file(f"mnt/{MINE}/{MINE}-json.log")}
    node.tree.add(40, "dockerd", fds={number: (path, os.O_WRONLY) for number, path in data.items()})
    assert node.find().path == str(data[8])


def test_a_server_that_has_the_terminal_of_its_container_logs_there_too(node):
    """`docker run -t`."""
    node.file(f"var/lib/docker/containers/{MINE}/{MINE}-json.log")
    for pid, ppid in ((FIRST, SHIM), (LAUNCHER, FIRST)):
        node.member(pid, ppid, output="/dev/pts/0")
    assert node.find(absent("terminal")).path


@pytest.mark.parametrize("output", ["pipe:[6]", "/dev/pts/1"])
def test_what_was_started_within_a_container_later_logs_elsewhere(node, output):
    """`docker exec`, with a terminal and without."""
    node.file(f"var/lib/docker/containers/{MINE}/{MINE}-json.log")
    node.member(PEER, SHIM, output=output, start=2000.0)
    word = "pipe" if output.startswith("pipe") else "terminal"
    assert node.find(absent(word), PEER) == absent(word)


def test_another_container_of_the_same_pod_is_another(node):
    """One shim serves all containers of a pod, and its first one is not the server's."""
    node.file(f"var/lib/docker/containers/{OTHER}/{OTHER}-json.log")
    node.member(PEER, SHIM, container=OTHER, output="pipe:[9]", start=3000.0)
    assert node.find(pid=PEER, container=OTHER).path


@pytest.mark.parametrize("word", ["dev_null", "closed", "permission_denied", "quarantined", "socket"])
def test_what_does_not_go_to_the_runtime_is_not_in_its_log(node, word):
    """Other lines of the container would be taken for the server's."""
    node.file(f"var/lib/docker/containers/{MINE}/{MINE}-json.log")
    assert node.find(absent(word)) == absent(word)


def test_a_server_without_a_container_has_no_such_log(node):
    """Nothing is looked for."""
    assert node.find(container="") == absent("pipe")


def test_a_runtime_that_keeps_no_file_is_told_and_looked_at_again(node):
    """In a sentence that says what to do; later, since the container may be young."""
    assert node.find().absence.startswith("runtime: ")
    assert "/var/lib/docker" in node.find().absence
    node.file(f"var/lib/docker/containers/{MINE}/{MINE}-json.log")
    assert node.find().path is None
    node.now += TRY_AGAIN_AFTER
    assert node.find().path


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "dangling", "loop"])
def test_what_is_no_regular_file_is_no_log(node, kind):
    """Whatever lies in its place is not opened."""
    path = node.host / f"var/lib/docker/containers/{MINE}/{MINE}-json.log"
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"device": "/dev/null", "dangling": "nowhere", "loop": path.name}[kind])
    assert node.find().absence.startswith("runtime: ")


def test_no_link_leads_out_of_the_node(node):
    """An absolute link is one of the node's own tree."""
    outside = node.folder / "outside.log"
    outside.write_text("x")
    node.kubelet(target=f"../../../../../..{outside}")
    assert node.find().absence.startswith("runtime: ")


def test_a_place_that_hung_is_left_alone(node):
    """The node's disk may be dead; the note tells, and the same note among those to skip keeps the place closed."""
    notes = []
    noting = Procfs(str(node.tree.root), notes.append)
    node.find(procfs=noting)
    assert "log /var/log/containers" in notes
    node.now += TRY_AGAIN_AFTER
    skipping = Procfs(str(node.tree.root), skip=frozenset({"log /var/log/containers"}))
    assert node.find(procfs=skipping).absence.startswith("quarantined: ")


def test_not_being_allowed_to_look_is_told(node):
    """It is another thing than a runtime without a file."""
    assert node.find(procfs=Denied(str(node.tree.root))).absence.startswith("permission_denied: ")


@pytest.fixture
def journalctl(tmp_path):
    """Return a journalctl that knows one container's lines."""
    program = tmp_path / "bin" / "journalctl"
    program.parent.mkdir()
    program.write_text(f"""#!/bin/sh\ncase "$*" in *CONTAINER_ID_FULL={MINE}*) echo '{{"MESSAGE":"hello"}}';; esac\n""")
    program.chmod(0o755)
    return str(program)


def test_a_socket_that_systemd_gave_is_that_of_the_journal(node, journalctl):
    """It says so in the environment, and the control group says of which unit; another socket is not the journal's."""
    node.logs = RuntimeLogs(node.table, lambda: node.now, journalctl)
    cgroup = "0::/system.slice/sglang@kimi.service\n"
    node.tree.add(LAUNCHER, "sh", ppid=1, cgroup=cgroup, fds=dict.fromkeys((1, 2), ("socket:[4711]", os.O_RDWR)))
    assert (
        node.find(absent("socket"), journal="8:4711").path
        == "journal:_SYSTEMD_UNIT=sglang@kimi.service,_TRANSPORT=stdout"
    )
    for other in ("8:4712", "", "x"):
        assert node.find(absent("socket"), journal=other) == absent("socket")


def test_a_journal_that_cannot_be_asked_is_named(node, journalctl, tmp_path):
    """Without the program, as in most containers, and without a unit that its lines are marked with."""
    node.member(LAUNCHER, FIRST, output="socket:[4711]")
    for program in (journalctl, str(tmp_path / "nowhere")):
        node.logs = RuntimeLogs(node.table, lambda: node.now, program)
        found = node.find(absent("socket"), journal="8:4711")
        assert found.path is None
        assert found.absence.startswith("journal: ")
        assert "StandardError=append:FILE" in found.absence


def test_a_container_without_a_file_may_be_in_the_journal(node, journalctl):
    """As Podman's usually are; one of which the journal shows nothing has no log."""
    node.logs = RuntimeLogs(node.table, lambda: node.now, journalctl)
    assert node.find().path == f"journal:CONTAINER_ID_FULL={MINE},_UID=0"
    node.member(LAUNCHER, FIRST, container=OTHER)
    node.member(FIRST, SHIM, container=OTHER)
    node.logs = RuntimeLogs(node.table, lambda: node.now, journalctl)
    assert node.find(container=OTHER).absence.startswith("runtime: ")


def test_what_belongs_to_containers_that_went_is_forgotten(node):
    """A watcher runs for months."""
    node.file(f"var/lib/docker/containers/{MINE}/{MINE}-json.log")
    assert isinstance(node.find(), LogSource)
    node.logs.forget_others(set(), set())
    assert (node.logs._found, node.logs._firsts) == ({}, {})
