"""What does the kernel say of the GPUs, and of processes that hang in it?

Read from /dev/kmsg: one record per read, from the oldest that the kernel still has. So what was logged before the
exporter began is known as well, each line with its own time, and a restart of the exporter counts nothing anew. What
programs write there is not believed, and only counts and times are kept, never text. Without the right to read it
nothing that decides is missing: the failure is harmless. Reasons: `no_permission`, `not_found`, `unreadable`,
`quarantined`, `overwritten` (lines came faster than they were read), `too_many`.
"""

import errno
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stallwatch.gpus.xids import KERNEL_RECORD, XidLine, xid_of
from stallwatch.snapshot import Failure, Family, Moment, Reading, Server

NAME = "kernel"
INTERVAL = 5.0

RECORD_BYTES = 8192  # no record is longer; the kernel refuses a read with less room than its record needs
MOST_BYTES = 1 << 20  # in one look, which then takes a tenth of a second; the next one goes on there
MOST_KINDS = 256
MOST_BLOCKED = 256
MOST_PROCESSES = 256
# The clock of the kernel log is not disciplined as the others are, and drifts from them by some minutes a year.
DRIFT_SECONDS = 900.0

_BLOCKED = re.compile(
    KERNEL_RECORD + r"INFO: task .{0,64}:(?P<pid>[0-9]{1,10}) blocked for more than (?P<seconds>[0-9]{1,9}) seconds"
)


@dataclass(frozen=True, slots=True)
class Xid:
    """One kind of error of one GPU; times in seconds since boot.

    `gpu` is the index of the GPU at this PCI address, or the address itself and no UUID where no GPU is known there.
    """

    address: str
    code: int
    count: int
    last_at: float
    fault_at: float | None = None  # when it last meant that the GPU is broken
    gpu: str = ""
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Blocked:
    """A process of a server that the kernel called hung: for how long by then, and when, in seconds since boot."""

    server: str
    process: str
    seconds: float
    last_at: float


@dataclass(frozen=True, slots=True)
class KernelReading(Reading):
    """What the kernel log has told so far."""

    xids: tuple[Xid, ...] = ()
    blocked: tuple[Blocked, ...] = ()


Outcome = tuple[KernelReading | None, tuple[Failure, ...]]


def target(server: Server) -> dict[str, Any] | None:
    """Return the processes of a server that the kernel may tell of."""
    processes = [[one.pid, one.name, one.started] for one in server.processes[:MOST_PROCESSES]]
    return {"server": server.name, "processes": processes} if processes else None


def reader(
    options: Mapping[str, str], note: Callable[[str], None]
) -> Callable[[list[dict[str, Any]], frozenset[str]], Outcome]:
    """Return the function that reads on in the kernel log, again and again."""
    return KernelLog(options.get("kmsg", "/dev/kmsg"), note, options.get("procfs", "/proc")).read


class KernelLog:
    """Reads /dev/kmsg to its end at each look, and keeps what it told."""

    def __init__(
        self,
        path: str,
        note: Callable[[str], None],
        procfs: str = "/proc",
        boottime: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        read: Callable[[int, int], bytes] = os.read,
    ) -> None:
        self._path = path
        self._note = note
        self._procfs = procfs
        self._boottime = boottime
        self._read = read
        self._file: int | None = None
        self._part = ""
        self._read_until: float | None = None  # when the end of it was last reached, in seconds since boot
        self._xids: dict[tuple[str, int], Xid] = {}
        self._blocked: dict[int, tuple[float, float]] = {}  # by pid: for how long, and when
        self._problems: list[Failure] = []

    def read(self, targets: list[dict[str, Any]], skip: frozenset[str]) -> Outcome:
        """Read on, and return all that was told so far."""
        note = f"kmsg {self._path}"
        if note in skip:
            return None, (Failure(NAME, "quarantined", f"{self._path} did not return before"),)
        self._note(note)
        self._problems = []
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            self._read_on(self._file)
        except OSError as error:
            return None, (self._refused(error),)
        blocked = tuple(self._blocked_of(targets))
        return KernelReading(time.monotonic(), tuple(self._xids.values()), blocked), tuple(self._problems)

    def _read_on(self, file: int) -> None:
        now, left = self._boottime(), MOST_BYTES
        while left > 0:
            data = self._next(file)
            if data == b"":
                self._read_until = now
                return
            left -= RECORD_BYTES if data is None else len(data)
            for record in self._records(data or b""):
                self._take(record, now)

    def _next(self, file: int) -> bytes | None:
        """Return what comes next, nothing at the end, None where that is gone already."""
        try:
            return self._read(file, RECORD_BYTES)
        except BlockingIOError:
            return b""
        except BrokenPipeError:
            self._problem("overwritten", f"{self._path}: some lines were overwritten before they were read")
            return None

    def _records(self, data: bytes) -> list[str]:
        """Return the whole lines: of /dev/kmsg a read is one record, of a file that stands in for it a part of many."""
        *lines, rest = (self._part + data.decode(errors="replace")).split("\n")
        self._part = rest[:RECORD_BYTES]
        return lines

    def _take(self, record: str, now: float) -> None:
        if xid := xid_of(record):
            self._count(xid, self._when(xid.at, now))
        elif found := _BLOCKED.match(record):
            pid = int(found["pid"])
            self._blocked.pop(pid, None)
            self._blocked[pid] = float(found["seconds"]), self._when(int(found["microseconds"]) / 1e6, now)
            if len(self._blocked) > MOST_BLOCKED:
                del self._blocked[next(iter(self._blocked))]

    def _when(self, stated: float, now: float) -> float:
        """Return when a line was logged: one that was not there at the look before came after it."""
        before = self._read_until
        drifted = before is not None and before - DRIFT_SECONDS <= stated < before
        return min(now, before if drifted and before is not None else stated)

    def _count(self, line: XidLine, at: float) -> None:
        key = (line.address, line.code)
        known = self._xids.get(key)
        if known is None and len(self._xids) >= MOST_KINDS:
            self._problem("too_many", f"{self._path}: more than {MOST_KINDS} kinds of Xid lines")
            return
        count = known.count + 1 if known else 1
        self._xids[key] = Xid(line.address, line.code, count, at, at if line.fault else None)

    def _blocked_of(self, targets: Iterable[dict[str, Any]]) -> Iterator[Blocked]:
        for one in targets:
            for pid, name, started in one["processes"]:
                seconds, at = self._blocked.get(pid, (0.0, started))
                if at > started:  # else the pid was another process then
                    yield Blocked(one["server"], name, seconds, at)

    def _problem(self, reason: str, detail: str) -> None:
        if reason not in {failure.reason for failure in self._problems}:
            self._problems.append(Failure(NAME, reason, detail))

    def _refused(self, error: OSError) -> Failure:
        if self._file is not None:
            os.close(self._file)
            self._file, self._part = None, ""
            # It is read again from its oldest line.
            self._xids, self._blocked = {}, {}
        return Failure(NAME, *refusal(error, self._path, self._procfs))


def refusal(error: OSError, path: str, procfs: str) -> tuple[str, str]:
    """Return why the kernel log cannot be read, in a word and in a sentence that says what it takes."""
    said = f"{path}: {error.strerror}"
    if isinstance(error, FileNotFoundError):
        return "not_found", f"{said}; a container needs this device of the host"
    if isinstance(error, PermissionError):
        return "no_permission", f"{said}; {_hint(error, procfs)}"
    return "unreadable", said


def _hint(error: PermissionError, procfs: str) -> str:
    if error.errno == errno.EACCES:
        return "only root may open it, or whom its mode allows"
    if _restricted(procfs):
        return "kernel.dmesg_restrict is 1, so it takes CAP_SYSLOG, and in a container the device as well"
    return "the device cgroup of a container refuses it unless the device is given to it (or it is privileged)"


def _restricted(procfs: str) -> bool:
    try:
        with open(f"{procfs}/sys/kernel/dmesg_restrict", "rb") as file:  # noqa: PTH123 pathlib costs 1 MiB in a worker
            return file.read(4).strip() not in {b"", b"0"}
    except OSError:
        return False  # then the other hint is given


def families(readings: Sequence[KernelReading], moment: Moment) -> Iterable[Family]:
    """State what the kernel log says of the GPUs."""
    labels = ("gpu", "uuid", "xid")
    xids = [((xid.gpu or xid.address, xid.uuid, str(xid.code)), xid) for one in readings for xid in one.xids]
    text = "Errors of the GPU that the kernel log tells of, those from before the exporter began included."
    counts = tuple((key, float(xid.count)) for key, xid in xids)
    yield Family("stallwatch_gpu_xid_total", text, "counter", labels, counts)
    text = "When the last of them was logged."
    times = tuple((key, round(moment.unix_of_boottime(xid.last_at), 1)) for key, xid in xids)
    yield Family("stallwatch_gpu_xid_last_timestamp_seconds", text, "gauge", labels, times)
