"""Stacks: the real py-spy at real processes, and what becomes of a py-spy that misbehaves."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from frozen_disk import FrozenDisk, sleeps_in_kernel
from stallwatch.node.procfs import Procfs
from stallwatch.snapshot import Launch, Process, Server
from stallwatch.sources import pyspy, stacks
from stallwatch.sources.pyspy import Deadlines
from stallwatch.sources.stacks import StacksReading

LOCK = "import threading; lock = threading.Lock(); lock.acquire()"
STUCK = f"""
{LOCK}
def stuck_in_a_lock():
    print("here", flush=True); lock.acquire()
stuck_in_a_lock()
"""
RECEIVING = """
import socket, sys
ours, theirs = socket.socketpair()
def stuck_in_a_read():
    print("here", flush=True); ours.recv(1)
stuck_in_a_read()
"""
SPINNING = """
def spin():
    while print("here", flush=True) or True:
        while True: pass
spin()
"""
MANY = f"""
{LOCK}
def wait():
    lock.acquire()
def deep(left):
    deep(left - 1) if left else wait()
for number in range(80):
    threading.Thread(target=deep, args=(100,), name=f"sk-{{'a' * 30}}", daemon=True).start()
print("here", flush=True)
wait()
"""
ZOMBIE = "import os, time; pid = os.fork(); pid or os._exit(0); print(pid, flush=True); time.sleep(600)"
WRITING = """
import os, sys, threading
def write():
    os.write(os.open(sys.argv[1], os.O_RDWR), b"x")
print("here", flush=True)
sys.stdin.readline()
threading.Thread(target=write).start()
"""


@pytest.fixture
def start():
    """Start Python programs that are killed after the test; each has said a word by then."""
    begun = []

    def run(code, *arguments):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        begun.append(subprocess.Popen([sys.executable, "-c", code, *arguments], **pipes))
        begun[-1].word = begun[-1].stdout.readline().strip()
        return begun[-1]

    yield run
    for process in begun:
        process.kill()
        process.communicate(timeout=10)


@pytest.fixture
def spy(tmp_path):
    """Write a program in the place of py-spy and return what finds it."""

    def write(code):
        path = tmp_path / "py-spy"
        path.write_text(f"#!{sys.executable}\nimport json, os, signal, sys, time\n{code}\n")
        path.chmod(0o755)
        return lambda: str(path)

    return write


def server(*pids):
    """Return a server of these processes, the ranks TP0, TP1, ..."""
    ranks = []
    for number, pid in enumerate(pids):
        stat = Procfs().stat(pid)
        ranks.append(Process(pid, stat.start_ticks, stat.started, "scheduler", f"scheduler_TP{number}", f"TP{number}"))
    return Server("here", "sglang", Launch(), tuple(ranks))


def names(stack):
    """Return the functions of a thread, the innermost first."""
    return [frame.name for frame in stack.frames]


async def one(process, **keywords):
    """Return the stacks of one process."""
    reading, failures = await stacks.read(server(process.pid), **keywords)
    assert failures == ()
    return reading.processes[0]


async def refused(*pids, **keywords):
    """Return the only failure of a read that gives nothing."""
    reading, (failure,) = await stacks.read(server(*pids), **keywords)
    assert reading is None
    return failure


@pytest.mark.parametrize(
    ("code", "function"), [(STUCK, "stuck_in_a_lock"), (RECEIVING, "stuck_in_a_read"), (SPINNING, "spin")]
)
async def test_a_process_is_seen_where_it_stands(start, code, function):
    """A lock, a socket and a loop: each is named with its function, file and line, and a loop is active."""
    process = start(code)
    found = await one(process)
    thread = found.threads[0]
    assert (found.process, found.rank, found.pid, thread.tid) == ("scheduler_TP0", "TP0", process.pid, process.pid)
    assert names(thread) == [function, "<module>"]
    assert thread.frames[0].file == "<string>"
    assert thread.frames[0].line == code.splitlines().index(f"def {function}():") + 2 + (function == "spin")
    assert (thread.name, thread.active, thread.owns_gil) == ("MainThread", function == "spin", function == "spin")


async def test_a_stopped_process_is_read_and_stays_stopped(start):
    """It is neither waited for nor woken."""
    process = start(STUCK)
    process.send_signal(signal.SIGSTOP)
    while Procfs().stat(process.pid).state != "T":
        await asyncio.sleep(0.01)
    found = await one(process)
    assert names(found.threads[0])[0] == "stuck_in_a_lock"
    assert Procfs().stat(process.pid).state == "T"


async def test_what_is_too_much_is_left_out_and_counted(start):
    """The main thread and the innermost frames are kept; a name that looks like a key is not shown."""
    reading, _ = await stacks.read(server(start(MANY).pid))
    threads = reading.processes[0].threads
    assert (len(threads), reading.dropped) == (stacks.MOST_THREADS, 81 - stacks.MOST_THREADS)
    assert names(threads[0]) == ["wait", "<module>"]
    assert len(threads[1].frames) == stacks.MOST_FRAMES
    assert names(threads[1])[:2] == ["wait", "deep"]
    assert {thread.name for thread in threads[1:]} == {"<hidden>"}


async def test_a_reading_survives_json(start):
    """What is written into a bundle can be read from it again."""
    reading, _ = await stacks.read(server(start(STUCK).pid))
    assert msgspec.json.decode(msgspec.json.encode(reading), type=StacksReading) == reading


async def test_a_zombie_has_no_stack(start):
    """It has ended, which is said."""
    pid = int(start(ZOMBIE).word)
    while Procfs().stat(pid).state != "Z":
        await asyncio.sleep(0.01)
    failure = await refused(pid)
    assert failure.reason == "vanished"
    assert failure.detail == (
        f"scheduler_TP0 (pid {pid}): it has ended and nobody has waited for it (zombie): it has no stack"
    )


async def test_a_pid_that_another_process_has_now_is_not_read(start):
    """Who a process is tells its start as well."""
    process = start(STUCK)
    (former,) = server(process.pid).processes
    other = Process(former.pid, former.start_ticks - 1, 0.0, "scheduler", "scheduler_TP0", "TP0")
    reading, (failure,) = await stacks.read(Server("here", "sglang", Launch(), (other,)))
    assert (reading, failure.reason, failure.server) == (None, "vanished", "here")


async def test_a_thread_in_uninterruptible_sleep_has_its_process_left_alone(start, spy, tmp_path):
    """Py-spy is not even started at it; the other ranks are read."""
    with FrozenDisk(tmp_path / "frozen") as disk:
        (disk.path / "file").write_bytes(b"x" * 4096)
        stuck, other = start(WRITING, str(disk.path / "file")), start(STUCK)
        disk.freeze()
        stuck.stdin.write("\n")
        stuck.stdin.flush()
        while not sleeps_in_kernel(stuck.pid):
            await asyncio.sleep(0.01)
        fake = spy(f"assert '{stuck.pid}' not in sys.argv\nos.execv('{pyspy.installed()}', sys.argv)")
        reading, (failure,) = await stacks.read(server(stuck.pid, other.pid), {stuck.pid}, fake)
        disk.thaw()
    assert (failure.reason, failure.detail.partition(":")[0]) == ("uninterruptible", f"scheduler_TP0 (pid {stuck.pid})")
    assert [found.rank for found in reading.processes] == ["TP1"]


async def test_a_process_that_is_no_python_is_said_to_be_none():
    """A launcher may be a shell."""
    process = subprocess.Popen(["sleep", "600"])
    try:
        while b"sleep" not in (Procfs().cmdline(process.pid) or b""):
            await asyncio.sleep(0.01)
        failure = await refused(process.pid)
    finally:
        process.kill()
        process.wait()
    assert failure.reason == "not_python"
    assert "py-spy says:" in failure.detail


async def test_a_missing_right_is_named(start, spy):
    """The real py-spy, without CAP_SYS_PTRACE and as nobody, says what is missing."""
    other = Path(spy("")()).with_name("real")
    other.write_bytes(Path(pyspy.installed()).read_bytes())
    other.chmod(0o755)
    drop = f"os.setgroups([]); os.setgid(65534); os.setuid(65534); os.execv({str(other)!r}, sys.argv)"
    for folder in other.parents:
        if not folder.stat().st_mode & 0o001 and folder.owner() == "root":
            folder.chmod(folder.stat().st_mode | 0o001)
    failure = await refused(start(STUCK).pid, find=spy(drop))
    assert failure.reason == "no_permission"
    assert "CAP_SYS_PTRACE" in failure.detail


async def test_without_py_spy_that_is_said_once(start):
    """Not once for each process."""
    pids = [start(STUCK).pid for _ in range(2)]
    failure = await refused(*pids, find=lambda: None)
    assert (failure.reason, failure.server) == ("not_installed", "here")


def test_the_py_spy_beside_this_interpreter_is_the_one(monkeypatch, spy):
    """One in the PATH is not taken; it is there, since the tests need it."""
    monkeypatch.setenv("PATH", os.path.dirname(spy("")()))
    assert pyspy.installed() == os.path.join(os.path.dirname(sys.executable), "py-spy")


async def test_it_is_given_no_environment_and_asks_without_a_pause(start, spy, monkeypatch):
    """Neither a key nor a preload of ours reaches it."""
    monkeypatch.setenv("SECRET", "canary")
    frame = {"name": "f", "filename": "/a/b/c.py", "line": 1}
    thread = {"thread_name": None, "os_thread_id": None, "active": False, "owns_gil": False}
    code = f"names = sorted(os.environ)\nprint(json.dumps([{{**{thread!r}, 'frames': [{{**{frame!r}, 'name': name}}"
    fake = spy(f"{code} for name in [*names, *sys.argv[1:], os.getcwd()]]}}]).replace('False', 'false'))")
    process = start(STUCK)
    found = await one(process, find=fake)
    told = set(names(found.threads[0])) - {"LC_CTYPE"}  # which an interpreter sets itself
    assert told == {"dump", "--nonblocking", "--json", "--pid", str(process.pid), "/"}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("os.execvp('sleep', ['sleep', '600'])", "timeout"),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)", "timeout"),
        ("os.close(1)\nos.close(2)\ntime.sleep(600)", "timeout"),
        ("while True: sys.stdout.write('x' * 65536)", "too_much"),
        ("while True: sys.stderr.write('x' * 65536)", "too_much"),
        ("print('not JSON')", "garbage"),
        ("print('[' * 100000)", "garbage"),
        ("print('[{\"frames\": 3}]')", "garbage"),
        ("sys.stdout.buffer.write(b'\\xff\\xfe')", "garbage"),
        ("sys.exit('Error: something else')", "failed"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "failed"),
    ],
)
async def test_a_py_spy_that_misbehaves_is_ended(start, spy, tmp_path, code, reason):
    """It hangs, floods or talks nonsense: a reason is given in time, and it is gone afterwards."""
    log = tmp_path / "pids"
    fake = spy(f"open({str(log)!r}, 'a').write(f'{{os.getpid()}}\\n')\n{code}")
    begun = time.monotonic()
    failure = await refused(start(STUCK).pid, find=fake, deadlines=Deadlines(process=2.0))
    assert failure.reason == reason
    assert time.monotonic() - begun < 8
    (pid,) = map(int, log.read_text().split())
    assert not os.path.exists(f"/proc/{pid}")


async def test_a_program_that_cannot_be_run_is_a_failure(start, tmp_path):
    """It is no exception that ends the other sources as well."""
    failure = await refused(start(STUCK).pid, find=lambda: str(tmp_path / "none"))
    assert (failure.reason, "could not be started" in failure.detail) == ("failed", True)


async def test_a_server_has_a_deadline_too(start, spy):
    """Ranks that are not reached in time are counted as left out."""
    pids = [start(STUCK).pid for _ in range(3)]
    fake = spy("time.sleep(0.3); print('[]')")
    reading, failures = await stacks.read(server(*pids), find=fake, deadlines=Deadlines(server=0.1))
    assert ([found.rank for found in reading.processes], reading.dropped, failures) == (["TP0"], 2, ())


async def test_ranks_come_first(start, spy):
    """Where time is short the launcher waits."""
    (rank,) = server(start(STUCK).pid).processes
    pid, ticks = rank.pid, rank.start_ticks
    launcher = Process(pid, ticks, 0.0, "launcher", "launcher")
    reading, _ = await stacks.read(Server("here", "sglang", Launch(), (launcher, rank)), find=spy("print('[]')"))
    assert [found.process for found in reading.processes] == ["scheduler_TP0", "launcher"]


async def test_after_two_that_nothing_ends_no_further_one_is_started(start, spy, tmp_path):
    """A py-spy in uninterruptible sleep outlives SIGKILL; it is not waited for, and there are never many of them."""
    pids, log = [start(STUCK).pid for _ in range(4)], tmp_path / "pids"
    noting = f"open({str(log)!r}, 'a').write(f'{{os.getpid()}}\\n')"
    with FrozenDisk(tmp_path / "frozen") as disk:
        (disk.path / "file").write_bytes(b"x" * 4096)
        disk.freeze()
        fake = spy(f"{noting}\nos.write(os.open({str(disk.path / 'file')!r}, os.O_RDWR), b'x')")
        begun = time.monotonic()
        reading, failures = await stacks.read(server(*pids), find=fake, deadlines=Deadlines(process=0.5, end=0.1))
        assert (reading, time.monotonic() - begun < 5) == (None, True)
        stuck = [int(pid) for pid in log.read_text().split()]
        assert [sleeps_in_kernel(pid) for pid in stuck] == [True, True]
        disk.thaw()
        while any(os.path.exists(f"/proc/{pid}") for pid in stuck):
            await asyncio.sleep(0.01)
    assert [failure.reason for failure in failures] == ["timeout", "timeout", "backed_off", "backed_off"]


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/opt/venv/lib/python3.12/site-packages/torch/cuda/graphs.py", "torch/cuda/graphs.py"),
        ("/usr/lib/python3/dist-packages/zmq/sugar/poll.py", "zmq/sugar/poll.py"),
        ("/usr/lib/python3.12/threading.py", "threading.py"),
        ("/home/someone/work/sglang/srt/managers/scheduler.py", "managers/scheduler.py"),
        ("<frozen runpy>", "<frozen runpy>"),
        ("", ""),
        ("/a/\x1b[2Jb\n.py", "a/?[2Jb?.py"),
    ],
)
def test_of_a_file_only_its_tail_is_shown(path, shown):
    """Where somebody has put a library is not told, and a name cannot speak to a terminal."""
    assert stacks._tail(path) == shown


def test_the_json_of_py_spy_is_bounded_in_its_numbers():
    """A number that no JSON reader can hold is garbage."""
    thread = {"thread_name": "x", "os_thread_id": 1 << 70, "active": False, "owns_gil": False, "frames": []}
    with pytest.raises(msgspec.ValidationError):
        pyspy.decode(json.dumps([thread]))
