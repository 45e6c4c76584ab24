"""Stacks: the real py-spy at real processes."""

import asyncio
import signal
import subprocess

import msgspec
import pytest

from frozen_disk import FrozenDisk, sleeps_in_kernel
from stallwatch.node.procfs import Procfs
from stallwatch.snapshot import Launch, Process, Server
from stallwatch.sources import pyspy, stacks
from stallwatch.sources.pyspy import Deadlines
from stallwatch.sources.stacks import StacksReading
from stuck_programs import MANY, RECEIVING, SPINNING, STUCK, WRITING, ZOMBIE, names, one, refused, server


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


async def test_without_py_spy_that_is_said_once(start):
    """Not once for each process."""
    pids = [start(STUCK).pid for _ in range(2)]
    failure = await refused(*pids, find=lambda: None)
    assert (failure.reason, failure.server) == ("not_installed", "here")


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


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/opt/venv/lib/python3.12/site-packages/torch/cuda/graphs.py", "torch/cuda/graphs.py"),
        ("/usr/lib/python3/dist-packages/zmq/sugar/poll.py", "zmq/sugar/poll.py"),
        ("/usr/lib/python3.12/threading.py", "threading.py"),
        ("/home/someone/src/sglang/srt/managers/scheduler.py", "managers/scheduler.py"),
        ("<frozen runpy>", "<frozen runpy>"),
        ("", ""),
        ("/a/\x1b[2Jb\n.py", "a/?[2Jb?.py"),
    ],
)
def test_of_a_file_only_its_tail_is_shown(path, shown):
    """Where somebody has put a library is not told, and a name cannot speak to a terminal."""
    assert stacks._tail(path) == shown
