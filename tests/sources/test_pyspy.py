"""py-spy as a child: what it is given, and what becomes of one that misbehaves."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import msgspec
import pytest

from frozen_disk import FrozenDisk, sleeps_in_kernel
from stallwatch.sources import pyspy, stacks
from stallwatch.sources.pyspy import Deadlines
from stuck_programs import STUCK, names, one, refused, server


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


def test_the_json_of_py_spy_is_bounded_in_its_numbers():
    """A number that no JSON reader can hold is garbage."""
    thread = {"thread_name": "x", "os_thread_id": 1 << 70, "active": False, "owns_gil": False, "frames": []}
    with pytest.raises(msgspec.ValidationError):
        pyspy.decode(json.dumps([thread]))
