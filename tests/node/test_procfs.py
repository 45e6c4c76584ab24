"""What /proc says, read from trees of plain files."""

import os

import pytest

from procfs_tree import ProcTree
from stallwatch.node.procfs import Listener, Procfs, parse_cmdline, parse_listener, parse_stat

UID = "0a1b2c3d_1111_2222_3333_444455556666"
CONTAINER = "0123456789abcdef" * 4


@pytest.fixture
def tree(tmp_path):
    """Return an empty tree."""
    return ProcTree(tmp_path)


def test_a_name_with_spaces_and_parentheses_does_not_shift_the_fields(tree):
    """Everything up to the last parenthesis is the name."""
    tree.add(7, "x", comm="a (b) c) S 1", ppid=3, start=50.0)
    stat = Procfs(str(tree.root)).stat(7)
    assert (stat.pid, stat.comm, stat.state, stat.ppid, stat.started) == (7, "a (b) c) S 1", "S", 3, 50.0)


def test_our_own_stat_is_parsed():
    """The format is the kernel's."""
    stat = Procfs().stat(os.getpid())
    assert (stat.pid, stat.ppid, stat.session) == (os.getpid(), os.getppid(), os.getsid(0))


def test_padding_of_a_title_is_no_word():
    """Setproctitle pads with NULs, and bytes that are no text do no harm."""
    assert parse_cmdline(b"sglang::scheduler_TP0\0\0\0\0") == ("sglang::scheduler_TP0",)
    assert parse_cmdline(b"") == ()
    assert parse_cmdline(b"a\xff\0b\0") == ("a\ufffd", "b")


def test_what_is_gone_is_nothing_and_no_error(tree):
    """A process may vanish before any of its files is read."""
    procfs = Procfs(str(tree.root))
    assert procfs.stat(9) is None
    assert procfs.cmdline(9) is None
    assert procfs.environ(9, ("A",)) == {}
    assert procfs.container(9) == ("", "")
    assert procfs.link(9, "fd/1") is None
    assert procfs.fds(9) == []
    assert procfs.access_mode(9, 1) is None
    assert procfs.listeners(9) == []
    assert procfs.namespaced_pids(9) == ()


def test_a_command_line_is_noted_before_it_is_read_and_left_out_when_told(tree):
    """The note names the pid, and the same note among those to skip keeps the file closed."""
    tree.add(7, "x", environ=("A=1",))
    notes, reads = [], []

    def read(path, limit):
        reads.append((list(notes), path))
        return b"x\0"

    procfs = Procfs(str(tree.root), notes.append, read=read)
    assert procfs.cmdline(7) == b"x\0"
    assert reads == [(["pid 7"], f"{tree.root}/7/cmdline")]
    skipping = Procfs(str(tree.root), notes.append, frozenset({"pid 7"}), read)
    assert skipping.cmdline(7) is None
    assert skipping.environ(7, ("A",)) == {}
    assert len(reads) == 1


def test_only_the_variables_that_are_asked_for_leave_an_environment(tree):
    """Keys stand in environments."""
    tree.add(7, "x", environ=("SECRET=1", "CUDA_VISIBLE_DEVICES=2,3", "broken", "CUDA_VISIBLE_DEVICES_X=4"))
    assert Procfs(str(tree.root)).environ(7, ("CUDA_VISIBLE_DEVICES",)) == {"CUDA_VISIBLE_DEVICES": "2,3"}


@pytest.mark.parametrize(
    ("cgroup", "container", "pod"),
    [
        (f"0::/system.slice/docker-{CONTAINER}.scope", CONTAINER, ""),
        (f"12:cpu:/docker/{CONTAINER}\n0::/", CONTAINER, ""),
        (f"0::/machine.slice/libpod-{CONTAINER}.scope/container", CONTAINER, ""),
        (f"0::/kubepods.slice/kubepods-pod{UID}.slice/cri-containerd-{CONTAINER}.scope", CONTAINER, UID),
        (f"0::/kubepods.slice/kubepods-pod{UID}.slice/crio-{CONTAINER}.scope", CONTAINER, UID),
        (f"1:x:/system.slice/containerd.service/kubepods-pod{UID}.slice:cri-containerd:{CONTAINER}", CONTAINER, UID),
        (f"0::/kubepods/besteffort/pod{UID.replace('_', '-')}/{CONTAINER}", CONTAINER, UID),
        (f"0::/../../kubepods/pod{'ab' * 16}/{CONTAINER}", CONTAINER, "ab" * 16),
        (f"0::/../cri-containerd-{CONTAINER}.scope", CONTAINER, ""),
        (f"11:pids:/kubepods/burstable/pod{UID.replace('_', '-')}/{CONTAINER}\n0::/", CONTAINER, UID),
        (f"0::/machine.slice/machine-libpod_pod_{'cd' * 32}.slice/libpod-{CONTAINER}.scope/container", CONTAINER, ""),
        (
            f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{CONTAINER}.scope/container",
            CONTAINER,
            "",
        ),
        (f"0::/machine.slice/libpod-conmon-{CONTAINER}.scope", "", ""),
        (f"0::/kubepods.slice/kubepods-pod{UID}.slice/crio-conmon-{CONTAINER}.scope", "", UID),
        ("0::/user.slice/user-1000.slice/session-3.scope", "", ""),
        ("0::/system.slice/sglang.service", "", ""),
        ("0::/", "", ""),
    ],
)
def test_container_and_pod_are_read_from_the_control_group(tree, cgroup, container, pod):
    """All runtimes write the ids their own way."""
    tree.add(7, "x", cgroup=f"{cgroup}\n")
    assert Procfs(str(tree.root)).container(7) == (container, pod.replace("_", "-"))


def test_listening_sockets_are_read_from_both_tables(tree):
    """IPv4, IPv6 and IPv4 in IPv6; connections are left out."""
    tree.network("net:[5]", [("127.0.0.1", 30000, 11), ("::", 8000, 12), ("::ffff:10.0.0.5", 8001, 13)])
    tree.add(7, "x", network="net:[5]")
    assert Procfs(str(tree.root)).listeners(7) == [
        Listener("127.0.0.1", 30000, 11),
        Listener("::", 8000, 12),
        Listener("10.0.0.5", 8001, 13),
    ]


def test_a_broken_line_is_no_listener():
    """A table that ends in the middle of a line does no harm."""
    assert parse_listener(b"") is None
    assert parse_listener(b"   0: 0100007F:75") is None


def test_how_a_descriptor_was_opened_is_read_from_its_flags(tree):
    """Other flags stand in the same number."""
    tree.add(7, "x", fds={0: ("pipe:[1]", os.O_RDONLY | os.O_CLOEXEC), 1: ("/a", os.O_WRONLY | os.O_APPEND)})
    procfs = Procfs(str(tree.root))
    assert procfs.fds(7) == [0, 1]
    assert (procfs.access_mode(7, 0), procfs.access_mode(7, 1)) == (os.O_RDONLY, os.O_WRONLY)
    assert procfs.link(7, "fd/1") == "/a"


def test_pids_of_other_namespaces_are_read(tree):
    """A container counts its own pids."""
    tree.add(4711, "x")
    assert Procfs(str(tree.root)).namespaced_pids(4711) == (4711, 7)


def test_the_addresses_of_this_node_are_listed(tree):
    """Routes and broadcasts are none of them."""
    assert Procfs(str(tree.root)).addresses() == {"10.0.0.5", "fd00::5"}


def test_pids_are_what_is_named_by_numbers(tree):
    """Other files of /proc are no processes."""
    tree.add(7, "x")
    assert Procfs(str(tree.root)).pids() == [7]


def test_stat_of_a_kernel_thread_is_parsed():
    """Its name may hold a slash and a colon."""
    assert parse_stat(b"15 (kworker/0:1-ev) I 2 0 0 " + b"0 " * 15 + b"77 0 0\n").comm == "kworker/0:1-ev"
