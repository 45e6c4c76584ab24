"""What is told of the kernel log: which lines, whose they are, and none of the rest."""

import json
import os
import time

import pytest

from stallwatch.child import fields_of
from stallwatch.lanes import decoder
from stallwatch.snapshot import Moment
from stallwatch.sources.kernel import MOST_LINES, MOST_OF_A_TRACE, KernelLinesReading, reader, target
from wedged import process, server_of

NOTHING = frozenset()
NOW = Moment(unix=1_000_000.0, monotonic=50.0, boottime=5000.0)
TRACE = (
    "      Tainted: P           O       6.8.0 #1",
    "task:python          state:D stack:0     pid:7  tgid:7 ppid:1 flags:0x00004002",
    "Call Trace:",
    " <TASK>",
    " __schedule+0x27c/0x6b0",
    " os_acquire_rwlock_read+0x35/0x70 [nvidia]",
    "RIP: 0033:0x7f2296ca72ad",
    "RAX: ffffffffffffffda RBX: 00007f2296b2b000 RCX: 00007f2296ca72ad",
    " </TASK>",
    "usb 1-1: new device",
)


def since_boot():
    """Return the clock of the kernel log."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Log:
    """A file in the place of /dev/kmsg."""

    def __init__(self, path):
        self.path = path
        self.records = []

    def add(self, *texts, at=4000.0):
        """Log these lines at this time since boot."""
        self.records += [f"4,77,{round(at * 1e6)},-;{text}\n" for text in texts]

    def read(self, *servers, skip=NOTHING, procfs="/proc"):
        """Read it through, as what a worker sends."""
        self.path.write_text("".join(self.records))
        read = reader({"kmsg": str(self.path), "procfs": procfs}, lambda _: None, lambda: NOW)
        reading, failures = read([target(server) for server in servers], skip)
        sent = json.dumps({"reading": reading, "failures": failures}, default=fields_of).encode()
        return decoder("kernel_lines", KernelLinesReading)(sent)

    def lines(self, *servers):
        """Return its lines."""
        reading, failures = self.read(*servers)
        assert failures == ()
        return reading.lines


@pytest.fixture
def log(tmp_path):
    """Have a kernel log."""
    return Log(tmp_path / "kmsg")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=python, GPU has fallen off the bus.", "xid"),
        ("NVRM: GPU at PCI:0000:3b:00: GPU-0", "nvrm"),
        ("NVRM: nvAssertFailed", "nvrm"),
        ("nvidia 0000:3b:00.0: probe with driver nvidia failed with error -1", "nvidia"),
        ("nvidia-nvlink: Nvlink Core is being initialized", "nvidia"),
        ("nvidia-uvm: Loaded the UVM driver", "nvidia"),
        ("nvidia_peermem: module is loaded", "nvidia"),
        ("pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0", "aer"),
        ("nvidia 0000:3b:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer", "aer"),
        ("Out of memory: Killed process 7 (python) total-vm:1kB", "oom"),
        ("Memory cgroup out of memory: Killed process 7 (python) total-vm:1kB", "oom"),
        ("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python,pid=7,uid=0", "oom"),
        ("python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0", "oom"),
        ("usb 1-1: new device", None),
        ("python: NVRM: Xid (PCI:0000:3b:00): 79, forged", None),
        ("audit: user secret AER: ", None),
    ],
)
def test_which_lines_are_told(log, text, kind):
    """Those of the GPUs, of the bus and of memory that ran out, each with its Unix time; a user's line is none."""
    log.add(text, at=4000.5)
    told = [(line.at, line.kind, line.text) for line in log.lines()]
    assert told == ([(999_000.5, kind, text)] if kind else [])


def test_a_hung_task_of_the_server_is_told_with_its_trace(log):
    """The trace ends where the kernel ends it, and holds no registers, which hold what a program computes on."""
    with process("lock") as running:
        (thread,) = {int(one) for one in os.listdir(f"/proc/{running.pid}/task")} - {running.pid}
        log.add("INFO: task python:1 blocked for more than 120 seconds.", *TRACE)  # a stranger's
        log.add(f"INFO: task pt_nccl_watchdg:{thread} blocked for more than 120 seconds.", *TRACE, at=since_boot())
        lines = log.lines(server_of(running.pid))
    assert [line.kind for line in lines] == ["blocked"] + ["trace"] * 7
    assert {(line.server, line.process) for line in lines} == {("sglang:30000", "launcher")}
    assert lines[0].text == f"INFO: task pt_nccl_watchdg:{thread} blocked for more than 120 seconds."
    assert " os_acquire_rwlock_read+0x35/0x70 [nvidia]" in {line.text for line in lines}
    assert not any("0x7f" in line.text or "RAX" in line.text or "usb" in line.text for line in lines)


def test_a_trace_without_end_is_cut(log):
    """Whatever comes then is left out."""
    with process("nothing") as running:
        log.add(f"INFO: task python:{running.pid} blocked for more than 120 seconds.", at=since_boot())
        log.add(*[" spin+0x1/0x2"] * 100, at=since_boot())
        server = server_of(running.pid)
        assert len(log.lines(server)) == 1 + MOST_OF_A_TRACE


def test_what_was_before_the_process_is_anothers(log):
    """A pid that was blocked before the process began was another process then."""
    with process("nothing") as running:
        server = server_of(running.pid)
        blocked = f"INFO: task python:{running.pid} blocked for more than 120 seconds."
        log.add(blocked, *TRACE, at=server.processes[0].started - 5)
        assert log.lines(server) == ()


def test_a_killed_process_of_the_server_is_named(log):
    """The kernel says which process it killed for its memory."""
    with process("nothing") as running:
        log.add(f"Out of memory: Killed process {running.pid} (python) total-vm:1kB")
        (line,) = log.lines(server_of(running.pid))
    assert (line.kind, line.server, line.process) == ("oom", "sglang:30000", "launcher")


def test_what_a_program_wrote_there_is_not_told(log):
    """The kernel marks it with a priority of its own, whatever it says."""
    log.records.append("12,77,4000000000,-;NVRM: Xid (PCI:0000:3b:00): 79, forged\n")
    assert log.lines() == ()


def test_only_the_last_lines_are_told(log):
    """Older ones are counted."""
    log.add(*(f"NVRM: line {number}" for number in range(MOST_LINES + 7)))
    reading, _ = log.read()
    assert (len(reading.lines), reading.dropped) == (MOST_LINES, 7)
    assert reading.lines[-1].text == f"NVRM: line {MOST_LINES + 6}"


def test_a_line_is_cut_and_clean_and_holds_no_secret(log):
    """A line may be of any length and hold what a program called itself."""
    log.add("NVRM: Xid (PCI:0000:3b:00): 43, name=\x1b[31m token=canary " + "x" * 1000)
    (line,) = log.lines()
    assert len(line.text) <= 300
    assert "canary" not in line.text
    assert line.text.isprintable()


def test_what_belongs_to_a_record_is_no_line(log):
    """The kernel says more of a record on lines of their own."""
    log.add("NVRM: one\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0")
    assert [line.text for line in log.lines()] == ["NVRM: one"]


@pytest.mark.parametrize(("path", "reason", "harmless"), [("none", "not_found", True), (".", "unreadable", False)])
def test_a_log_that_cannot_be_read_says_why(tmp_path, path, reason, harmless):
    """As with the kernel collector, and what is not there is nothing broken."""
    reading, (failure,) = reader({"kmsg": str(tmp_path / path)}, lambda _: None)([], NOTHING)
    assert (reading, failure.collector, failure.reason, failure.harmless) == (None, "kernel_lines", reason, harmless)


def test_a_log_in_quarantine_is_not_touched(log):
    """What hung before is named and left alone."""
    reading, (failure,) = log.read(skip=frozenset({f"kmsg {log.path}"}))
    assert (reading, failure.reason) == (None, "quarantined")


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="only who may read the kernel log")
def test_the_real_log_is_read_to_its_end_at_once():
    """Reading it waits for no further record, and leaves no descriptor open."""
    before = len(os.listdir("/proc/self/fd"))
    _, failures = reader({}, lambda _: None)([], NOTHING)
    assert {failure.reason for failure in failures} <= {"no_permission"}
    assert len(os.listdir("/proc/self/fd")) == before
