"""What is told of threads, of real processes that hang in one way each."""

import os
import signal
import time

import pytest

from frozen_disk import FrozenDisk, sleeps_in_kernel
from stallwatch.lanes import decoder
from stallwatch.sources.onetask import MOST_WAITS
from stallwatch.sources.threads import (
    MOST_OF_ONE_PROCESS,
    MOST_THREADS,
    NAME,
    ThreadsReading,
    reader,
    target,
    uninterruptible,
)
from wedged import process, read_as_nobody, server_of, state_of, until

NOTHING = frozenset()


def look(*servers, skip=NOTHING, **options):
    """Look at the threads of these servers."""
    return reader(options, lambda _: None)([target(server) for server in servers], skip)


def threads_of(reading, name=None):
    """Return the threads of the first process, or of one below it."""
    found = [one for one in reading.processes if one.descendant == bool(name)]
    return found[0].threads


def test_a_thread_in_a_lock_sleeps_there():
    """It was not once on a CPU, and waits in a futex."""
    with process("lock") as running:
        reading, _ = look(server_of(running.pid))
    main, locked = threads_of(reading)
    assert (locked.manner, locked.cpu_ratio, locked.voluntary_switches) == ("sleeps", 0.0, 0)
    assert locked.syscall_name == "futex"
    assert "futex" in locked.wchan
    assert (main.syscall_name, main.syscall_on) == ("read", "pipe")


def test_a_thread_in_a_socket_says_that_it_waits_for_one():
    """The system call and the kind of its descriptor tell it."""
    with process("socket") as running:
        reading, _ = look(server_of(running.pid))
    (waiting,) = (thread for thread in threads_of(reading) if thread.syscall_on == "socket")
    assert (waiting.manner, waiting.syscall_name) == ("sleeps", "recvfrom")


def test_a_thread_that_spins_hardly_waits():
    """It computes and hardly gives its CPU up, which is told from sleep by two looks."""
    with process("spin") as running:
        reading, _ = look(server_of(running.pid))
    manners = {thread.manner for thread in threads_of(reading)}
    assert "spins" in manners
    (spinning,) = (thread for thread in threads_of(reading) if thread.manner == "spins")
    assert spinning.cpu_ratio > 0.1
    assert spinning.voluntary_switches <= MOST_WAITS
    assert 0.6 < reading.seconds < 5


def test_a_stopped_process_and_a_zombie_are_named_so():
    """Neither has a system call, and both are there."""
    with process("zombie") as running:
        (zombie,) = children_of(running.pid)
        until(lambda: state_of(zombie) == "Z")
        os.kill(running.pid, signal.SIGSTOP)
        until(lambda: state_of(running.pid) == "T")
        reading, _ = look(server_of(running.pid, tree=[zombie]))
    assert {thread.manner for thread in threads_of(reading)} == {"stopped"}
    (dead,) = threads_of(reading, "below")
    assert (dead.manner, dead.syscall, dead.cpu_ratio) == ("zombie", None, 0.0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
def test_a_process_that_holds_its_map_in_the_kernel_is_read_at_once(tmp_path):
    """Its command line would block for ever; its threads are uninterruptible, and the looks take no longer."""
    with FrozenDisk(tmp_path / "frozen") as disk, disk.wedged() as wedged:
        until(lambda: sleeps_in_kernel(wedged.pid))
        begun = time.monotonic()
        reading, _ = look(server_of(wedged.pid))
        took = time.monotonic() - begun
    assert took < 5
    stuck = [thread for thread in threads_of(reading) if thread.manner == "uninterruptible"]
    assert stuck
    assert all(thread.wchan and thread.stack for thread in stuck)
    assert not [frame for thread in stuck for frame in thread.stack if "0x" in frame]


def test_descendants_stand_under_the_nearest_of_the_servers_own():
    """A child of a scheduler is told of under that one, with its rank."""
    with process("nothing") as launcher, process("child") as scheduler:
        (child,) = children_of(scheduler.pid)
        reading, _ = look(server_of(launcher.pid, scheduler.pid, tree=[child]))
    assert [(one.pid, one.process, one.rank, one.descendant) for one in reading.processes] == [
        (launcher.pid, "launcher", "", False),
        (scheduler.pid, "scheduler_TP0", "TP0", False),
        (child, "scheduler_TP0", "TP0", True),
    ]


def test_a_pid_that_is_another_process_by_now_is_left_out():
    """A process is known by its start as well, and who is no child of the server is none of its tree."""
    with process("nothing") as running:
        asked = target(server_of(running.pid, tree=[os.getpid()]))
        stranger = {**asked["processes"][0], "start_ticks": 1}
        read = reader({}, lambda _: None)
        assert len(read([asked], NOTHING)[0].processes) == 1
        assert read([{**asked, "processes": [stranger]}], NOTHING)[0].processes == ()


def test_a_hostile_name_is_made_fit_for_one_line():
    """A thread may call itself anything."""
    with process("hostile") as running:
        until(lambda: any("<b>" in name for name in names_of(running.pid)))
        reading, _ = look(server_of(running.pid))
    assert "?[31m<b>?x" in {thread.comm for thread in threads_of(reading)}


def test_without_rights_one_failure_says_which_are_missing():
    """What needs no right is there all the same, and the reading travels."""
    with process("lock") as running:
        told = read_as_nobody(NAME, target(server_of(running.pid)))
    reading, failures = decoder(NAME, ThreadsReading)(told)
    _, locked = threads_of(reading)
    assert (locked.syscall, locked.stack, locked.manner) == (None, None, "sleeps")
    (failure,) = failures
    assert (failure.reason, failure.server) == ("permission_denied", "sglang:30000")
    assert "CAP_SYS_PTRACE" in failure.detail
    assert "CAP_SYS_ADMIN" in failure.detail


def test_a_process_in_quarantine_is_not_touched():
    """What hung at its threads before is named and left alone; what hung at its command line is looked at."""
    with process("nothing") as hung, process("nothing") as other:
        skip = frozenset({f"threads of pid {hung.pid}", f"pid {other.pid}"})
        reading, failures = look(server_of(hung.pid, other.pid), skip=skip)
    assert [one.pid for one in reading.processes] == [other.pid]
    assert [(failure.reason, failure.detail) for failure in failures] == [("quarantined", f"threads of pid {hung.pid}")]


def a_tree(root, tids, **states):
    """Make a /proc with processes of so many threads; `states` of those that do not sleep, by thread."""
    for pid, count in tids.items():
        for tid in range(pid, pid + count):
            folder = root / str(pid) / "task" / str(tid)
            folder.mkdir(parents=True)
            state = states.get(f"t{tid}", "S")
            (folder / "stat").write_text(f"{tid} (x) {state} {' '.join(['0'] * 18)} 5 {' '.join(['0'] * 20)}")
        (root / str(pid) / "stat").write_text((root / str(pid) / "task" / str(pid) / "stat").read_text())
    processes = [{"pid": pid, "start_ticks": 5, "name": "x", "rank": f"TP{pid}", "tree": []} for pid in tids]
    return [{"server": "s", "processes": processes}]


def test_threads_beyond_the_limit_are_counted(tmp_path):
    """A process with too many threads costs no more than one with many."""
    asked = a_tree(tmp_path, {7: MOST_OF_ONE_PROCESS + 3})
    pauses = []
    reading, _ = reader({"procfs": str(tmp_path)}, lambda _: None, pause=pauses.append)(asked, NOTHING)
    assert (len(threads_of(reading)), reading.dropped, reading.processes[0].dropped) == (MOST_OF_ONE_PROCESS, 3, 3)
    assert len(pauses) == 1


def test_of_too_many_threads_each_process_is_shown_some(tmp_path):
    """The one that stands elsewhere may be the last: no rank is without its main thread."""
    each = MOST_OF_ONE_PROCESS + 1
    asked = a_tree(tmp_path, {1000 * number: each for number in range(1, 13)})
    reading, _ = reader({"procfs": str(tmp_path)}, lambda _: None, pause=lambda _: None)(asked, NOTHING)
    counts = [len(process.threads) for process in reading.processes]
    assert sum(counts) == MOST_THREADS
    assert max(counts) - min(counts) <= 1
    assert all(process.threads[0].tid == process.pid for process in reading.processes)


@pytest.mark.parametrize("late", [1, MOST_OF_ONE_PROCESS + 1])
def test_a_thread_in_uninterruptible_sleep_is_never_overlooked(tmp_path, late):
    """It is shown before others, and py-spy must not be called for its process, however many threads that has."""
    asked = a_tree(tmp_path, {1000: MOST_OF_ONE_PROCESS + 3, 5000: 1}, **{f"t{1000 + late}": "D"})
    reading, _ = reader({"procfs": str(tmp_path)}, lambda _: None, pause=lambda _: None)(asked, NOTHING)
    assert [thread.tid for thread in reading.processes[0].threads[:2]] == [1000, 1000 + late]
    assert uninterruptible(reading) == {1000}


def test_a_node_that_is_slow_costs_no_more_than_the_worker_has(tmp_path):
    """All main threads are seen, and what there is no time to look at twice has no manner."""
    asked = a_tree(tmp_path, {1000 * number: 9 for number in range(1, 9)})
    now = [0.0]

    def clock():
        now[0] += 0.02
        return now[0]

    def pause(seconds):
        now[0] += seconds

    reading, _ = reader({"procfs": str(tmp_path)}, lambda _: None, clock, pause)(asked, NOTHING)
    assert now[0] < 5.0
    assert [process.threads[0].tid for process in reading.processes] == [1000 * number for number in range(1, 9)]
    assert {thread.manner for process in reading.processes for thread in process.threads} == {"sleeps", ""}


def children_of(pid):
    """Return the pids of the children of a process."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(one) for one in file.read().split()]


def names_of(pid):
    """Return the names of a process's threads."""
    found = []
    for tid in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{tid}/comm", "rb") as file:
            found.append(file.read().decode())
    return found
