"""The kernel log is read to its end at each look, from its oldest line on, and what it cannot tell has a reason."""

import errno
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace

import msgspec
import pytest

from readings import a_server
from stallwatch.child import fields_of
from stallwatch.collectors import kernel
from stallwatch.collectors.kernel import MOST_BLOCKED, MOST_BYTES, MOST_KINDS, Blocked, KernelLog, KernelReading, Xid
from stallwatch.gpus.xids import KERNEL_RECORD
from stallwatch.snapshot import Moment

NOW = 5000.0
NOTHING = frozenset()


class Log:
    """A pipe that keeps the borders of what is written, as /dev/kmsg does, and what reads it by its path."""

    def __init__(self):
        self._out, self._in = os.pipe2(os.O_DIRECT | os.O_NONBLOCK | os.O_CLOEXEC)
        self.path = f"/proc/self/fd/{self._out}"
        self.now = NOW
        self.notes = []
        self.reader = KernelLog(self.path, self.notes.append, boottime=lambda: self.now)

    def add(self, text, at=None, more="", priority=4):
        """Log a line at this time since boot, and more lines of the same record."""
        microseconds = round((self.now if at is None else at) * 1e6)
        os.write(self._in, f"{priority},77,{microseconds},-;{text}\n{more}".encode())

    def xid(self, code=79, *, address="0000:3b:00", at=None):
        """Log an Xid."""
        self.add(f"NVRM: Xid (PCI:{address}): {code}, pid=7, name=python", at)

    def look(self, *servers, after=5.0):
        """Look once more, so many seconds later."""
        self.now += after
        reading, failures = self.reader.read([kernel.target(server) for server in servers], NOTHING)
        assert failures == ()
        return reading

    def close(self):
        """Take it away."""
        os.close(self._out)
        os.close(self._in)


@pytest.fixture
def log():
    """Have a kernel log."""
    made = Log()
    yield made
    made.close()


def test_lines_from_before_keep_their_time(log):
    """What was logged before the exporter began is counted, at the times that the kernel gave it."""
    log.xid(31, at=100.0)
    log.xid(79, at=200.0)
    log.xid(79, at=300.5)
    log.add("usb 1-1: new device", more=" SUBSYSTEM=usb\n DEVICE=c189:1\n")
    assert log.look().xids == (
        Xid("0000:3b:00", 31, 1, 100.0, None),
        Xid("0000:3b:00", 79, 2, 300.5, 300.5),
    )


def test_it_reads_on_where_it_was(log):
    """Each line counts once, over many looks; without new ones the counts stand."""
    assert log.look().xids == ()
    for number in range(1, 4):
        log.xid(13)
        log.xid(13, address="0000:5e:00")
        for _ in range(2):
            assert {xid.address: xid.count for xid in log.look().xids} == {"0000:3b:00": number, "0000:5e:00": number}


def test_a_clock_that_drifts_tells_no_line_before_the_look_that_had_none(log):
    """The clock of the kernel log is minutes off after months; one that is far off is believed all the same."""
    log.look()
    looked = log.now
    log.xid(79, at=looked - 300.0)
    log.xid(74, at=looked + 400.0)
    log.xid(48, at=1.0)
    assert {xid.code: xid.last_at for xid in log.look().xids} == {79: looked, 74: looked + 5.0, 48: 1.0}


def test_a_recovery_that_is_no_longer_asked_for_is_no_fault(log):
    """The last line of Xid 154 decides."""
    log.add("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    assert log.look().xids[0].fault_at == NOW
    log.add("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    (xid,) = log.look().xids
    assert (xid.count, xid.fault_at) == (2, None)


def test_processes_of_servers_that_hang_in_the_kernel(log):
    """The last line on each counts; other tasks, and a process that had the pid before, are nobody's."""
    started = log.now - 1000 - 5000.0
    server = a_server(ranks=2, born=started)  # pids 101 and 102, started 1000 s ago since boot
    log.add("INFO: task python:102 blocked for more than 122 seconds.", log.now - 1001)
    log.add("INFO: task sglang::schedul:101 blocked for more than 122 seconds.", log.now - 300)
    log.add("INFO: task sglang::schedul:101 blocked for more than 245 seconds.", log.now - 177)
    log.add("INFO: task a:b: :1:9999 blocked for more than 122 seconds.")
    assert log.look(server).blocked == (Blocked(server.name, "scheduler_TP0", 245.0, NOW - 177),)


def test_what_a_program_wrote_is_not_believed(log):
    """Who writes to /dev/kmsg is given a priority of 8 and more by the kernel, and breaks no GPU and no process."""
    server = a_server(ranks=1, born=log.now - 6000.0)
    for priority in (8 | 4, 3 << 3, 23 << 3 | 7):
        log.add("NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=python", priority=priority)
        log.add("INFO: task sglang::schedul:101 blocked for more than 245 seconds.", priority=priority)
    reading = log.look(server)
    assert (reading.xids, reading.blocked) == ((), ())


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK | os.W_OK), reason="takes the right to use the kernel log")
def test_the_kernel_marks_what_a_program_writes():
    """Even a record that claims to be of the kernel itself is told from one."""
    file = os.open("/dev/kmsg", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.lseek(file, 0, os.SEEK_END)
        os.write(file, b"<4>stallwatch: written by a test\n")
        while "written by a test" not in (record := os.read(file, kernel.RECORD_BYTES).decode()):
            pass
    finally:
        os.close(file)
    assert re.match(KERNEL_RECORD, record) is None


def test_what_was_overwritten_is_told_and_the_rest_is_read(log):
    """EPIPE says that lines are gone; reading goes on with those that are left."""
    answers = [OSError(errno.EPIPE, "Broken pipe")] * 2

    def read(file, size):
        if answers:
            raise answers.pop()
        return os.read(file, size)

    log.xid(79)
    reading, failures = KernelLog(log.path, lambda _: None, read=read).read([], NOTHING)
    assert [xid.code for xid in reading.xids] == [79]
    assert [(failure.reason, failure.harmless) for failure in failures] == [("overwritten", True)]


def test_a_flood_is_read_look_by_look(tmp_path):
    """One look takes a bounded part of it, and nothing is missed."""
    line, times = "4,1,1000000,-;NVRM: Xid (PCI:0000:3b:00): 31, Ch 00000010\n", 5 * MOST_BYTES // 2 // 58
    path = tmp_path / "kmsg"
    path.write_text(line * times)
    reader = KernelLog(str(path), lambda _: None)
    counts = [reader.read([], NOTHING)[0].xids[0].count for _ in range(4)]
    assert counts[0] <= MOST_BYTES // len(line) + 200
    assert counts[0] < counts[1] < counts[-1] == times


def test_a_kernel_that_only_says_overwritten_does_not_keep_it():
    """A look ends even where each read fails so."""

    def read(file, size):
        raise OSError(errno.EPIPE, "Broken pipe")

    reading, failures = KernelLog("/dev/null", lambda _: None, read=read).read([], NOTHING)
    assert reading.xids == ()
    assert [failure.reason for failure in failures] == ["overwritten"]


def test_nothing_grows_without_bound(tmp_path):
    """Kinds of Xids, hung tasks, and a line without an end are kept up to a number, and what is left out is told."""
    path = tmp_path / "kmsg"
    xids = [f"4,1,1,-;NVRM: Xid (PCI:0000:{bus:02x}:00): {code}, x" for bus in range(4) for code in range(1, 100)]
    hung = [f"4,1,1,-;INFO: task a:{pid} blocked for more than 122 seconds." for pid in range(1, 1000)]
    path.write_text("\n".join([*xids, *hung, "x" * 100_000]))
    reader = KernelLog(str(path), lambda _: None)
    reading, failures = reader.read([], NOTHING)
    assert len(reading.xids) == MOST_KINDS
    assert [failure.reason for failure in failures] == ["too_many"]
    assert len(reader._blocked) == MOST_BLOCKED
    assert len(reader._part) <= kernel.RECORD_BYTES


@pytest.mark.parametrize(
    ("error", "restricted", "reason", "hint"),
    [
        (errno.EACCES, "0", "no_permission", "only root"),
        (errno.EPERM, "1", "no_permission", "CAP_SYSLOG"),
        (errno.EPERM, "0", "no_permission", "device cgroup"),
        (errno.EPERM, None, "no_permission", "device cgroup"),
        (errno.ENOENT, "1", "not_found", "container"),
    ],
)
def test_a_log_that_may_not_be_read_is_harmless_and_says_what_it_takes(tmp_path, error, restricted, reason, hint):
    """Without the right there is no reading, and the reason names the right."""
    if restricted is not None:
        (tmp_path / "sys" / "kernel").mkdir(parents=True)
        (tmp_path / "sys" / "kernel" / "dmesg_restrict").write_text(f"{restricted}\n")

    def read(_file, _size):
        raise OSError(error, os.strerror(error))

    reading, (failure,) = KernelLog("/dev/null", lambda _: None, str(tmp_path), read=read).read([], NOTHING)
    assert reading is None
    assert (failure.collector, failure.reason, failure.server, failure.harmless) == ("kernel", reason, "", True)
    assert hint in failure.detail
    assert failure.detail.startswith("/dev/null: ")


def test_a_log_that_appears_is_read(tmp_path):
    """A device that is given to a container later is found; one that cannot be read at all is a fault."""
    path = tmp_path / "kmsg"
    reader = KernelLog(str(path), lambda _: None)
    assert reader.read([], NOTHING)[1][0].reason == "not_found"
    path.write_text("4,1,1000000,-;NVRM: Xid (PCI:0000:3b:00): 79, x\n")
    assert [xid.last_at for xid in reader.read([], NOTHING)[0].xids] == [1.0]
    reading, (failure,) = KernelLog(str(tmp_path), lambda _: None).read([], NOTHING)
    assert (reading, failure.reason, failure.harmless) == (None, "unreadable", False)


def test_no_descriptor_is_left_behind(tmp_path):
    """A log that fails in the middle is closed, and read again from its begin."""
    path = tmp_path / "kmsg"
    path.write_text("4,1,1000000,-;NVRM: Xid (PCI:0000:3b:00): 79, x\n")
    answers = [None, None, OSError(errno.EIO, "Input/output error")]

    def read(file, size):
        if answers and (error := answers.pop(0)):
            raise error
        return os.read(file, size)

    reader, before = KernelLog(str(path), lambda _: None, read=read), len(os.listdir("/proc/self/fd"))
    told = [reader.read([], NOTHING) for _ in range(6)]
    assert [reading.xids[0].count if reading else None for reading, _ in told] == [1, None, 1, 1, 1, 1]
    assert told[1][1][0].reason == "unreadable"
    assert len(os.listdir("/proc/self/fd")) == before + 1


def test_a_log_that_hung_is_left_alone(log):
    """It is announced before it is read, and not read where that did not come back."""
    log.look()
    assert log.notes == [f"kmsg {log.path}"]
    reading, (failure,) = log.reader.read([], frozenset(log.notes))
    assert (reading, failure.reason) == (None, "quarantined")


def test_the_log_of_this_machine():
    """The kernel's own log is read where this user may, in a moment, and else a right is named."""
    read = kernel.reader({}, lambda _: None)
    begin = time.monotonic()
    reading, failures = read([], NOTHING)
    assert time.monotonic() - begin < 2
    assert (reading is None) == (failures != ())
    assert {failure.reason for failure in failures} <= {"no_permission", "not_found"}


UNPRIVILEGED = """
import os
from stallwatch.collectors import kernel
if os.getuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
reading, failures = kernel.reader({}, lambda note: None)([], frozenset())
print(reading is not None, *((one.reason, one.detail) for one in failures))
"""


def test_the_log_of_this_machine_without_privileges():
    """Another user is told no_permission with the right it takes, unless this kernel lets everybody read."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", UNPRIVILEGED]
    said = subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout
    with open("/proc/sys/kernel/dmesg_restrict") as file:
        restricted = file.read().strip() == "1"
    if not os.path.exists("/dev/kmsg"):
        assert "not_found" in said
    elif restricted:
        assert said.startswith("False")
        assert "no_permission" in said
        assert "CAP_SYSLOG" in said
    else:
        assert said.startswith("True") or "no_permission" in said


def test_a_reading_crosses_to_the_exporter(log):
    """It is plain values."""
    log.xid()
    server = a_server()
    log.add("INFO: task sglang:101 blocked for more than 122 seconds.", NOW + 1)
    reading = log.look(server)
    assert reading.xids
    assert reading.blocked
    assert msgspec.json.decode(json.dumps(reading, default=fields_of), type=KernelReading) == reading


def test_a_server_without_processes_is_not_asked_about():
    """Nothing of it can hang."""
    assert kernel.target(a_server(ranks=0)) is not None
    assert kernel.target(replace(a_server(), processes=())) is None


def test_families():
    """Counts and Unix times by GPU; where none is known at an address, that address."""
    known = Xid("0000:3b:00", 79, 2, 900.0, 900.0, "3", "GPU-3")
    unknown = Xid("0000:5e:00", 79, 1, 950.0, 950.0, "0000:5e:00", "")
    moment = Moment(unix=1_800_000_000.0, monotonic=1000.0, boottime=1100.0)
    found = {
        family.name: dict(family.samples) for family in kernel.families([KernelReading(1.0, (known, unknown))], moment)
    }
    assert found == {
        "stallwatch_gpu_xid_total": {("3", "GPU-3", "79"): 2.0, ("0000:5e:00", "", "79"): 1.0},
        "stallwatch_gpu_xid_last_timestamp_seconds": {
            ("3", "GPU-3", "79"): 1_799_999_800.0,
            ("0000:5e:00", "", "79"): 1_799_999_850.0,
        },
    }
