"""What is read once in the life of a server."""

import os

import pytest

from procfs_tree import ProcTree
from stallwatch.engines import engine_named, identify
from stallwatch.node.facts import FactsKeeper
from stallwatch.node.grouping import Group
from stallwatch.node.procfs import Procfs, Stat
from stallwatch.node.table import Entry, Kind
from stallwatch.snapshot import Launch

MODULE = ("/opt/venv/bin/python", "-m", "sglang.launch_server")


def entry(argv, pid=7):
    """Return a launcher as the table holds it."""
    return Entry(Stat(pid, "python", "S", 1, 1, 1, 100), Kind(identify(argv), argv=argv), 0, 0.0)


class Keeper:
    """A keeper of facts over a fake tree with one launcher, whose root is a folder."""

    def __init__(self, folder):
        self.tree, self.root = ProcTree(folder), folder / "container"
        (self.root / "srv").mkdir(parents=True)
        self.notes = []
        self.keeper = FactsKeeper(lambda _procfs, _pid: None)

    def of(self, *flags, skip=(), environ=(), cgroup="0::/\n"):
        """Read the facts of a launcher with these flags."""
        argv = (*MODULE, *flags)
        self.tree.add(7, *argv, environ=environ, cgroup=cgroup, root=self.root, cwd=self.root / "srv")
        launcher = entry(argv)
        group = Group(("launcher", 7, 100), "sglang", launcher, launcher, {7: (launcher, launcher.kind.identity)})
        procfs = Procfs(str(self.tree.root), self.notes.append, frozenset(skip))
        return self.keeper.of(procfs, engine_named("sglang"), group)


@pytest.fixture
def keeper(tmp_path):
    """Return a keeper over an empty tree."""
    return Keeper(tmp_path)


@pytest.mark.parametrize("path", ["c.yaml", "/srv/c.yaml", "../srv/c.yaml", "link.yaml"])
def test_a_configuration_file_is_found_where_the_process_sees_it(keeper, path):
    """From its working directory, inside its root."""
    (keeper.root / "srv" / "c.yaml").write_text("tp-size: 4\nport: 31000\n")
    (keeper.root / "srv" / "link.yaml").symlink_to("/srv/c.yaml")
    facts, failures = keeper.of("--config", path)
    assert (facts.launch, facts.expected, failures) == (Launch(port=31000, tp_size=4), 4, [])


def test_a_configuration_file_is_read_once(keeper):
    """It says how the server was started."""
    (keeper.root / "srv" / "c.yaml").write_text("tp-size: 4\n")
    keeper.of("--config", "c.yaml")
    (keeper.root / "srv" / "c.yaml").unlink()
    assert keeper.of("--config", "c.yaml")[0].launch.tp_size == 4


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path, outside: None, "No such file"),
        (lambda path, outside: os.mkfifo(path), "not a regular file"),
        (lambda path, outside: path.mkdir(), "not a regular file"),
        (lambda path, outside: path.symlink_to(outside), "No such file"),
        (lambda path, outside: path.symlink_to("../../outside.yaml"), "No such file"),
        (lambda path, outside: path.write_text("port: 1\n" + "#" * (1 << 20)), "too large"),
        (lambda path, outside: path.write_text("api-key: [sk-secret"), "Error"),
        (lambda path, outside: path.write_bytes(b"\xff"), "UnicodeDecodeError"),
        (lambda path, outside: path.write_text("just words"), "no mapping"),
    ],
)
def test_a_configuration_file_that_cannot_be_read_leaves_the_flags_and_is_told(keeper, make, words):
    """Links that lead out, pipes, what is too large or no YAML; nothing of its text or path is quoted."""
    outside = keeper.root.parent / "outside.yaml"
    outside.write_text("port: 1\n")
    make(keeper.root / "srv" / "sk-path.yaml", outside)
    facts, [failure] = keeper.of("--config", "sk-path.yaml", "--tp", "2")
    assert facts.launch == Launch(port=30000, tp_size=2)
    assert (failure.collector, failure.reason) == ("discovery", "config_unreadable")
    assert words in failure.detail
    assert "sk-" not in failure.detail


def test_a_configuration_file_that_could_not_be_read_is_tried_again(keeper):
    """It may only be late."""
    keeper.of("--config", "c.yaml")
    (keeper.root / "srv" / "c.yaml").write_text("tp-size: 4\n")
    facts, failures = keeper.of("--config", "c.yaml")
    assert (facts.launch.tp_size, failures) == (4, [])


def test_a_configuration_file_that_hung_is_left_alone(keeper):
    """The note before it names it."""
    (keeper.root / "srv" / "c.yaml").write_text("tp-size: 4\n")
    keeper.of("--config", "/srv/c.yaml")
    note = next(note for note in keeper.notes if note.endswith("c.yaml"))
    fresh = FactsKeeper(lambda _procfs, _pid: None)
    keeper.keeper = fresh
    facts, [failure] = keeper.of("--config", "/srv/c.yaml", skip=[note])
    assert (facts.launch.tp_size, failure.reason) == (1, "quarantined")


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_the_version_stands_beside_the_interpreter(keeper, folder):
    """In the name of a folder, among others that look alike."""
    packages = keeper.root / "opt" / "venv" / "lib" / "python3.11" / folder
    for name in (
        "sglang_router-0.3.2.dist-info",
        "sglang-evil name.dist-info",
        "sglang-0.5.9.post1.dist-info",
        "vllm-1.0.dist-info",
    ):
        (packages / name).mkdir(parents=True)
    assert keeper.of()[0].version == "0.5.9.post1"


def test_the_version_is_found_by_environment_or_program(keeper):
    """`python` alone says nothing of where it lies."""
    (keeper.root / "v" / "lib" / "python3.12" / "site-packages" / "sglang-0.5.8.dist-info").mkdir(parents=True)
    assert keeper.of(environ=("VIRTUAL_ENV=/v",))[0].version == "0.5.8"


def test_no_version_is_empty(keeper):
    """It is a label, and no more."""
    assert keeper.of()[0].version == ""


def test_the_visible_devices_of_the_main_process_are_kept(keeper):
    """An empty value is another thing than none."""
    assert keeper.of(environ=("CUDA_VISIBLE_DEVICES=2,3", "KEY=secret"))[0].visible_devices == "2,3"
    keeper.keeper = FactsKeeper(lambda _procfs, _pid: None)
    assert keeper.of()[0].visible_devices is None


@pytest.mark.parametrize(
    ("setting", "given"),
    [
        ("GPU-4,GPU-5", "GPU-4,GPU-5"),
        ("4,5", "4,5"),
        ("all", None),
        ("none", None),
        ("void", None),
        ("", None),
        ("/var/run/nvidia-container-devices", None),
    ],
)
def test_the_gpus_that_a_container_was_given_are_kept(keeper, setting, given):
    """A list that is told elsewhere is not known; outside of a container the variable means nothing."""
    environ = (f"NVIDIA_VISIBLE_DEVICES={setting}",)
    assert keeper.of(environ=environ)[0].container_devices is None
    keeper.keeper = FactsKeeper(lambda _procfs, _pid: None)
    facts, _ = keeper.of(environ=environ, cgroup=f"0::/system.slice/docker-{'ab' * 32}.scope\n")
    assert facts.container_devices == given


def test_what_is_skipped_is_not_remembered_as_missing(keeper):
    """The environment is read when it can be again."""
    assert keeper.of(environ=("CUDA_VISIBLE_DEVICES=2",), skip=["pid 7"])[0].visible_devices is None
    assert keeper.of(environ=("CUDA_VISIBLE_DEVICES=2",))[0].visible_devices == "2"
