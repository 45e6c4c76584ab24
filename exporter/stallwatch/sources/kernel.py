"""What did the kernel log of the GPUs, of this server's hung tasks and of memory that ran out?

The records of /dev/kmsg from the oldest that the kernel still has, without waiting for one. Only lines of these kinds
leave this file, without what looks like a secret, and of a hung task's trace nothing of its registers. Not to be
allowed is harmless. Reasons of failures: those of the kernel collector.
"""

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stallwatch.collectors.kernel import RECORD_BYTES, refusal
from stallwatch.gpus.xids import KERNEL_RECORD, xid_of
from stallwatch.node.procfs import TICKS_PER_SECOND
from stallwatch.redaction import clean, redact
from stallwatch.snapshot import Failure, Moment, Reading
from stallwatch.sources.asked import processes_of

NAME = "kernel_lines"
MOST_LINES = 200
MOST_OF_A_TRACE = 48
MOST_BYTES = 32 << 20  # of the whole ring, which is rarely more than 1 MiB
MOST_SECONDS = 3.0
LONGEST = 300

_RECORD = re.compile(KERNEL_RECORD + "(?P<text>.*)")
_BLOCKED = re.compile(r"INFO: task .{0,64}:(?P<pid>[0-9]{1,10}) blocked for more than [0-9]{1,9} seconds")
_KILLED = re.compile(
    r"(?:Memory cgroup o|O)ut of memory: Killed process (?P<pid>[0-9]{1,10})|oom-kill:|.{0,64} invoked oom-killer:"
)
_KINDS = (
    (
        "aer",
        re.compile(
            r"(?:pcieport|nvidia|[\w-]{1,32}) [0-9a-fA-F:.]{7,16}: (?:AER: |PCIe Bus Error)|AER: |PCIe Bus Error"
        ),
    ),
    ("nvrm", re.compile(r"NVRM: ")),
    ("nvidia", re.compile(r"nvidia(?:-[a-z]{1,16}|_[a-z]{1,16})?(?::| [0-9a-fA-F:.]{7,16}: )")),
)
_REGISTERS = re.compile(r"(?:[A-Z][A-Z0-9]{1,3}|ORIG_RAX|[xp]c|x[0-9]{1,2}|sp|lr|pstate|Code)[ :]")
_END_OF_TRACE = "</TASK>"

target = processes_of


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One line: `kind` is `xid`, `nvrm`, `nvidia`, `aer`, `oom`, `blocked`, or `trace` of the blocked one before it.

    `server` and `process` are whose it is, empty where it is of the node.
    """

    at: float  # Unix time
    kind: str
    text: str
    server: str = ""
    process: str = ""


@dataclass(frozen=True, slots=True)
class KernelLinesReading(Reading):
    """The last of these lines, oldest first; `dropped` counts older ones."""

    lines: tuple[KernelLine, ...] = ()


@dataclass(frozen=True, slots=True)
class _Owner:
    server: str
    process: str
    started: float  # seconds since boot, 0 where that is not known


Outcome = tuple[KernelLinesReading | None, tuple[Failure, ...]]


class _Sieve:
    """Takes the records that are told of, in their order."""

    def __init__(self, procfs: str, targets: list[dict[str, Any]], moment: Moment) -> None:
        self._procfs = procfs
        self._moment = moment
        self._owners: dict[int, _Owner] = {}
        self._traced: KernelLine | None = None
        self._trace_left = 0
        self.lines: deque[KernelLine] = deque(maxlen=MOST_LINES)
        self.count = 0
        for one in targets:
            for entry in one["processes"]:
                below = _Owner(one["server"], entry["name"], 0.0)
                for pid in entry["tree"]:
                    self._owners.setdefault(pid, below)
                self._owners[entry["pid"]] = replace(below, started=entry["start_ticks"] / TICKS_PER_SECOND)

    def take(self, record: str) -> None:
        """Keep a record if it is told of."""
        found = _RECORD.match(record)
        if found is None:
            return  # what a program wrote, or what belongs to the record before, such as the device that it is about
        since_boot, text = int(found["microseconds"]) / 1e6, found["text"]
        line = KernelLine(round(self._moment.unix_of_boottime(since_boot), 3), "", _shown(text))
        if blocked := _BLOCKED.match(text):
            owner = self._owner(int(blocked["pid"]), since_boot)
            self._traced = None
            if owner:
                line = replace(line, kind="blocked", server=owner.server, process=owner.process)
                self._traced, self._trace_left = line, MOST_OF_A_TRACE
                self._keep(line)
        elif kind := _kind(record, text):
            killed = _KILLED.match(text) if kind == "oom" else None
            owner = self._owners.get(int(killed["pid"] or 0)) if killed else None
            who = (owner.server, owner.process) if owner else ("", "")
            self._keep(KernelLine(line.at, kind, line.text, *who))
        elif self._traced:
            self._take_trace(replace(self._traced, at=line.at, kind="trace", text=line.text))

    def _take_trace(self, line: KernelLine) -> None:
        self._trace_left -= 1
        if self._trace_left <= 0 or _END_OF_TRACE in line.text:
            self._traced = None
        if not _REGISTERS.match(line.text.strip()):
            self._keep(line)

    def _keep(self, line: KernelLine) -> None:
        self.lines.append(line)
        self.count += 1

    def _owner(self, task: int, at: float) -> _Owner | None:
        """Return whose a task is, which may be any thread of a process."""
        owner = self._owners.get(task) or next((one for pid, one in self._owners.items() if self._has(pid, task)), None)
        return owner if owner and at >= owner.started else None

    def _has(self, pid: int, task: int) -> bool:
        return os.path.exists(f"{self._procfs}/{pid}/task/{task}")  # noqa: PTH110  (as in procfs)


def _kind(record: str, text: str) -> str:
    if xid_of(record):
        return "xid"
    if _KILLED.match(text):
        return "oom"
    return next((kind for kind, pattern in _KINDS if pattern.match(text)), "")


def _shown(text: str) -> str:
    return clean(redact(text[: 2 * LONGEST]), LONGEST)


def _records(descriptor: int, clock: Callable[[], float], failures: set[str]) -> Iterator[str]:
    """Yield all records that are there: of /dev/kmsg a read is one, of a file that stands in for it a part of many."""
    part, left, until = "", MOST_BYTES, clock() + MOST_SECONDS
    while left > 0 and clock() < until:
        try:
            data = os.read(descriptor, RECORD_BYTES)
        except BlockingIOError:
            return
        except BrokenPipeError:
            failures.add("overwritten")
            left -= RECORD_BYTES
            continue
        if not data:
            return
        left -= len(data)
        *lines, part = (part + data.decode(errors="replace")).split("\n")
        part = part[:RECORD_BYTES]
        yield from lines
    failures.add("too_many")


_DETAILS = {
    "overwritten": "some lines were overwritten before they were read",
    "too_many": f"more than {MOST_BYTES >> 20} MiB, or {MOST_SECONDS:g} s, of lines",
}


def reader(
    options: Mapping[str, str],
    note: Callable[[str], None],
    clock: Callable[[], Moment] = Moment.now,
) -> Callable[[list[dict[str, Any]], frozenset[str]], Outcome]:
    """Return the function that reads the kernel log through."""
    path, procfs = options.get("kmsg", "/dev/kmsg"), options.get("procfs", "/proc")

    def read(targets: list[dict[str, Any]], skip: frozenset[str]) -> Outcome:
        if f"kmsg {path}" in skip:
            return None, (Failure(NAME, "quarantined", f"{path} did not return before"),)
        note(f"kmsg {path}")
        now = clock()
        sieve, problems = _Sieve(procfs, targets, now), set[str]()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            try:
                for record in _records(descriptor, time.monotonic, problems):
                    sieve.take(record)
            finally:
                os.close(descriptor)
        except OSError as error:
            return None, (Failure(NAME, *refusal(error, path, procfs)),)
        lines = tuple(sieve.lines)
        failures = tuple(Failure(NAME, reason, f"{path}: {_DETAILS[reason]}") for reason in sorted(problems))
        return KernelLinesReading(now.monotonic, lines, dropped=sieve.count - len(lines)), failures

    return read
