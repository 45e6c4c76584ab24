"""What does the exporter itself cost? The CPU time and memory of its own processes.

/proc/PID/stat is read, which does not wait for a process, even one that is stuck inside a driver; it is that of the
exporter's own namespace, wherever the node's is mounted.
"""

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Expense:
    """What one process has used: CPU in seconds, memory in bytes, its start in seconds since boot."""

    cpu_seconds: float
    resident_bytes: int
    started: float
    open_files: int | None = None  # is counted for the exporter itself only


def expense_of(pid: int, procfs: Path = Path("/proc")) -> Expense | None:
    """Return what a process has used so far, None where there is no such process, or no descriptor left to look."""
    with suppress(OSError):
        text = (procfs / str(pid) / "stat").read_bytes()
        part = text.rpartition(b")")[2].split()  # from the state on, see proc(5)
        user, system, started, pages = (int(part[place]) for place in (11, 12, 19, 21))
        return Expense((user + system) / TICKS, pages * PAGE, started / TICKS)
    return None


def own_expense(procfs: Path = Path("/proc")) -> Expense | None:
    """Return what this process has used so far, with how many descriptors it holds."""
    expense, descriptors = expense_of(os.getpid(), procfs), procfs / str(os.getpid()) / "fd"
    with suppress(OSError):
        return replace(expense, open_files=sum(1 for _ in descriptors.iterdir())) if expense else None
    return expense
