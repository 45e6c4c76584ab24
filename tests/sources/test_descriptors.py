"""What is told of what processes hold open, with this process as the one that is looked at."""

import contextlib
import json
import os
import select
import socket
import tempfile

import pytest

from dead_mount import DeadMount
from stallwatch.child import fields_of
from stallwatch.lanes import decoder
from stallwatch.sources.descriptors import DescriptorsReading, kind_of, reader, target
from wedged import process, read_as_nobody, server_of

NOTHING = frozenset()


def look(*servers, skip=NOTHING, **options):
    """Look at the descriptors of these servers."""
    reading, failures = reader(options, lambda _: None)([target(server) for server in servers], skip)
    sent = json.dumps({"reading": reading, "failures": failures}, default=fields_of).encode()
    return decoder("descriptors", DescriptorsReading)(sent)


def ours():
    """Look at this process."""
    reading, failures = look(server_of(os.getpid()))
    assert failures == ()
    return reading.processes[0]


@pytest.mark.parametrize(
    ("link", "kind", "device"),
    [
        ("/secret/model.safetensors", "file", ""),
        ("/secret/log (deleted)", "deleted", ""),
        ("/dev/shm/sem.x", "shared_memory", ""),
        ("/dev/shm/psm_1 (deleted)", "shared_memory", ""),
        ("/memfd:secret (deleted)", "shared_memory", ""),
        ("/dev/nvidia0", "device", "/dev/nvidia0"),
        ("/dev/nvidia-uvm", "device", "/dev/nvidia-uvm"),
        ("/dev/nvidia-caps/nvidia-cap1", "device", "/dev/nvidia-caps/nvidia-cap1"),
        ("/dev/infiniband/uverbs0", "device", "/dev/infiniband/uverbs0"),
        ("/dev/nvidia0/secret", "device", ""),
        ("/dev/secret", "device", ""),
        ("pipe:[1]", "pipe", ""),
        ("socket:[1]", "socket", ""),
        ("anon_inode:[eventfd]", "eventfd", ""),
        ("anon_inode:[eventpoll]", "epoll", ""),
        ("anon_inode:inotify", "inotify", ""),
        ("anon_inode:secret", "anonymous", ""),
        ("net:[4026531840]", "other", ""),
        ("", "other", ""),
    ],
)
def test_kinds(link, kind, device):
    """A descriptor has a kind, and a name only where it is a device that everybody knows."""
    assert kind_of(link) == (kind, device)


def test_each_kind_is_counted():
    """What is opened is counted under its kind."""
    before = ours().kinds
    with contextlib.ExitStack() as stack:
        stack.enter_context(tempfile.TemporaryFile())
        stack.enter_context(select.epoll())
        for descriptor in (*os.pipe(), os.eventfd(0), os.memfd_create("x")):
            stack.callback(os.close, descriptor)
        for one in socket.socketpair():
            stack.enter_context(one)
        after = ours()
    more = {kind: count - before.get(kind, 0) for kind, count in after.kinds.items()}
    expected = {"deleted": 1, "epoll": 1, "pipe": 2, "eventfd": 1, "shared_memory": 1, "socket": 2}
    assert {kind: more[kind] for kind in expected} == expected
    assert after.unix_sockets >= 2


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_what_waits_in_tcp_sockets_is_told(host):
    """Of a listener those that wait and how many may, of a connection the bytes that nobody has read."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family))
        listener.bind((host, 0))
        listener.listen(7)
        port = listener.getsockname()[1]
        clients = [stack.enter_context(socket.create_connection((host, port))) for _ in range(3)]
        accepted = stack.enter_context(listener.accept()[0])
        clients[0].sendall(b"12345")
        select.select([accepted], [], [], 5)
        found = ours()
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    (listening,) = (one for one in found.tcp if one.state == "listen" and one.local == at)
    assert (listening.receive_queue, listening.backlog) == (2, 7)
    (unread,) = (one for one in found.tcp if one.local == at and one.state == "established" and one.receive_queue)
    assert (unread.receive_queue, unread.backlog) == (5, None)
    assert unread.remote.startswith(at.rpartition(":")[0])
    assert found.tcp_states["established"] >= 4
    assert found.tcp[0].state == "listen"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
def test_a_file_on_a_dead_mount_is_counted_at_once(tmp_path):
    """Nothing is asked of the file itself, and its path is not told."""
    with DeadMount(tmp_path) as mount, mount.path.open("rb") as _held:
        before = ours().kinds["file"]
        mount.die()
        try:
            found = ours()
        finally:
            mount.revive()
    assert found.kinds["file"] == before
    assert "server.log" not in json.dumps(found, default=fields_of)


def test_a_process_that_may_not_be_seen_is_one_failure():
    """Without the right nothing is told of it but which right is missing."""
    with process("nothing") as one, process("nothing") as other:
        told = json.loads(read_as_nobody("descriptors", target(server_of(one.pid, other.pid))))
    reading, (failure,) = told["reading"], told["failures"]
    assert reading["processes"] == []
    assert failure["reason"] == "permission_denied"
    assert "CAP_SYS_PTRACE" in failure["detail"]


def test_a_process_in_quarantine_is_not_touched():
    """What hung before is named and left alone."""
    reading, failures = look(server_of(os.getpid()), skip=frozenset({f"descriptors of pid {os.getpid()}"}))
    assert reading.processes == ()
    assert [failure.reason for failure in failures] == ["quarantined"]
