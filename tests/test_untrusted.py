"""What a watched process names leads into its own tree only, whatever it puts there."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from stallwatch.collectors import log
from stallwatch.discovery import reader

CONTAINER = """
import ctypes, os, subprocess, sys
root = os.environ["ROOT"]
libc = ctypes.CDLL(None, use_errno=True)
bind_all, detach = 4096 | 16384, 2
assert libc.mount(b"tmpfs", root.encode(), b"tmpfs", 0, None) == 0
for folder in ("etc", "old", "var/log", "proc"):
    os.makedirs(f"{root}/{folder}")
assert libc.mount(b"/proc", f"{root}/proc".encode(), None, bind_all, None) == 0
subprocess.run(["/usr/sbin/pivot_root", root, f"{root}/old"], check=True)
os.chdir("/")
assert libc.umount2(b"/old", detach) == 0
log = os.open("/var/log/server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
os.dup2(log, 2)
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""
PROGRESS = "[2026-01-01 00:00:00 TP0] Load weight end.\n"
MERGES = "a0: &a0\n  k: canary\n" + "".join(f"a{n}: &a{n}\n  <<: [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))


class Container:
    """A launcher in a mount namespace and a root of its own, which nothing but /proc leads into."""

    def __init__(self, folder, *flags):
        (folder / "sglang").mkdir()
        (folder / "sglang" / "launch_server.py").write_text(CONTAINER)
        (folder / "root").mkdir()
        namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
        self.process = subprocess.Popen(
            [*namespace, sys.executable, "-m", "sglang.launch_server", *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PATH": os.environ["PATH"], "ROOT": str(folder / "root"), "VIRTUAL_ENV": str(folder / "venv")},
            text=True,
        )
        self._answer()
        assert os.readlink(f"/proc/{self.process.pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
        self.look = reader({}, lambda _note: None)

    def does(self, statement):
        """Run a statement inside."""
        self.process.stdin.write(f"{statement}\n")
        self.process.stdin.flush()
        self._answer()

    def _answer(self):
        assert self.process.stdout.readline() in {"ready\n", "done\n"}

    def found(self):
        """Look once; return the server and why something of it cannot be read."""
        reading, failures = self.look([], frozenset())
        server = next(one for one in reading.servers if one.processes[0].pid == self.process.pid)
        return server, [failure for failure in failures if failure.server == server.name]

    def stop(self):
        """End it."""
        self.process.communicate()


@pytest.fixture
def container(tmp_path):
    """Start a server in a tree of its own, with a configuration file there."""
    started = Container(tmp_path, "--config", "/etc/engine.yaml")
    yield started
    started.stop()


@pytest.fixture
def secret(tmp_path):
    """Return the path of a file of the host, which says what must not be shown."""
    path = tmp_path / "secret.yaml"
    path.write_text("model-path: canary\nport: 1234\n")
    return path


def test_its_configuration_is_read_where_it_is(container):
    """Also over links, which begin at its root."""
    container.does("open('/var/real.yaml', 'w').write('model-path: inside\\nport: 4321\\n')")
    container.does("os.symlink('/var/real.yaml', '/etc/engine.yaml')")
    server, failures = container.found()
    assert (server.launch.model, server.launch.port, failures) == ("inside", 4321, [])


def test_its_environment_names_a_place_in_its_tree(container, tmp_path):
    """What lies at the same path of the host is not what it runs."""
    packages = "venv/lib/python3.11/site-packages/sglang-{}.dist-info"
    (tmp_path / packages.format("6.6.6")).mkdir(parents=True)
    assert container.found()[0].version == ""
    container.does(f"os.makedirs({str(tmp_path / packages.format('0.5.9'))!r})")
    container.look = reader({}, lambda _note: None)
    assert container.found()[0].version == "0.5.9"


@pytest.mark.parametrize(
    "way", ["{secret}", "../../../../../../{secret}", "/proc/1/root{secret}", "/proc/self/root{secret}"]
)
def test_a_link_out_of_the_tree_does_not_show_a_file_of_the_host(container, secret, way):
    """Neither what it says, nor in words of the error."""
    container.does(f"os.symlink({way.format(secret=secret)!r}, '/etc/engine.yaml')")
    server, failures = container.found()
    assert (server.launch.model, server.launch.port) == ("", 30000)
    assert [failure.reason for failure in failures] == ["config_unreadable"]
    assert "canary" not in repr((server, failures))


@pytest.mark.parametrize(
    "statement",
    [
        "os.mkfifo('/etc/engine.yaml')",
        "os.mkdir('/etc/engine.yaml')",
        "open('/etc/engine.yaml', 'w').truncate(1 << 40)",
        "open('/etc/engine.yaml', 'w').write('canary: [')",
        "open('/etc/engine.yaml', 'wb').write(b'canary \\xff')",
        f"open('/etc/engine.yaml', 'w').write({MERGES!r})",
        "open('/etc/engine.yaml', 'w').write('port: ' + '1:' * 30000 + '1')",
        "open('/etc/engine.yaml', 'w').write('[' * 60000)",
    ],
)
def test_a_bad_configuration_costs_nothing_but_itself(container, statement):
    """It is bounded, never waited for, and its words are not repeated."""
    container.does(statement)
    server, failures = container.found()
    assert (server.launch.model, server.launch.port) == ("", 30000)
    assert "canary" not in repr((server, failures))


def test_a_log_is_followed_in_its_tree_and_never_out_of_it(container, secret):
    """A link in the place of the log is not followed, be it to the host's file or to one that is inside."""
    secret.write_text(PROGRESS * 1000)
    server, _ = container.found()
    assert server.log_path == f"/proc/{container.process.pid}/root/var/log/server.log"
    server = replace(server, incarnation="1.1")
    container.does(f"os.write(2, {PROGRESS.encode()!r})")
    read = log.reader({}, lambda _note: None)
    seen = read([log.target(server)], frozenset())[0].logs[0]
    assert (seen.size_bytes, seen.lines["progress"]) == (len(PROGRESS), 1)
    container.does("os.rename('/var/log/server.log', '/var/log/server.log.1')")
    container.does("open('/var/log/other', 'w').write('x')")
    for way in (secret, "other", f"/proc/1/root{secret}"):
        container.does(f"os.symlink({str(way)!r}, '/var/log/server.log')")
        container.does(f"os.write(2, {PROGRESS.encode()!r})")
        seen = read([log.target(server)], frozenset())[0].logs[0]
        container.does("os.unlink('/var/log/server.log')")
        assert seen.rotations == 0
    assert (seen.size_bytes, seen.lines["progress"]) == (4 * len(PROGRESS), 4)
    container.does("open('/var/log/server.log', 'w').write('new\\n')")
    seen = read([log.target(server)], frozenset())[0].logs[0]
    assert (seen.size_bytes, seen.rotations) == (4, 1)


def test_a_link_that_is_there_at_first_sight_is_named(container, secret):
    """There is nothing to go on with then."""
    server, _ = container.found()
    container.does(f"os.rename('/var/log/server.log', '/x'), os.symlink({str(secret)!r}, '/var/log/server.log')")
    reading, failures = log.reader({}, lambda _note: None)([log.target(server)], frozenset())
    assert (reading.logs, [failure.reason for failure in failures]) == ((), ["symbolic_link"])
