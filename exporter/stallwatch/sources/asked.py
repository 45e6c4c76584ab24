"""Which processes of a server is a source asked about, and are they still those?"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stallwatch.node.procfs import Procfs
from stallwatch.redaction import clean
from stallwatch.snapshot import Failure, Server

MOST_PROCESSES = 512
_FIELDS = ("pid", "start_ticks", "name", "role", "rank", "tree")


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a server that is there now: one of its own, or a descendant of the one that `process` names."""

    pid: int
    process: str
    rank: str
    descendant: bool = False


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks, and what it notes before it looks at a process, up to the pid.

    What a source reads that answers while its process is wedged has a note of its own: a command line that hung the
    exporter keeps nobody from it.
    """

    source: str
    note: str
    failures: list[Failure] = field(default_factory=list)

    def noted(self, member: Member) -> str:
        """Return what is noted before a process is looked at."""
        return f"{self.note}{member.pid}"


def processes_of(server: Server) -> dict[str, Any] | None:
    """Return the processes that a server has, for a worker; None where it has none."""
    processes = [{name: getattr(process, name) for name in _FIELDS} for process in server.processes]
    return {"server": server.name, "processes": processes} if processes else None


def members_of(
    asking: Asking, procfs: Procfs, target: dict[str, Any], *, descendants: bool = False
) -> tuple[list[Member], int]:
    """Return which processes to look at and how many are left out; those that hung us before go to the failures."""
    every = list(_all_members(procfs, target) if descendants else _own_members(procfs, target))
    kept = every[:MOST_PROCESSES]
    hung = [member for member in kept if asking.noted(member) in procfs.skip]
    asking.failures.extend(Failure(asking.source, "quarantined", asking.noted(one), target["server"]) for one in hung)
    return [member for member in kept if member not in hung], len(every) - len(kept)


def _own_members(procfs: Procfs, target: dict[str, Any]) -> Iterator[Member]:
    for entry in target["processes"]:
        stat = procfs.stat(entry["pid"])
        if stat and stat.start_ticks == entry["start_ticks"]:
            yield Member(entry["pid"], entry["name"], entry["rank"])


def _all_members(procfs: Procfs, target: dict[str, Any]) -> Iterator[Member]:
    own = {member.pid: member for member in _own_members(procfs, target)}
    yield from own.values()
    # Each descendant is told of under the nearest of the server's own processes, which has the smallest tree.
    nearest_first = sorted(target["processes"], key=lambda entry: len(entry["tree"]))
    trees = {pid: entry["pid"] for entry in reversed(nearest_first) for pid in entry["tree"]}
    for pid, above in trees.items():
        stat = procfs.stat(pid) if pid not in own and above in own else None
        if stat and (stat.ppid in own or stat.ppid in trees):  # the pid of one that ended may be a stranger's now
            yield Member(pid, own[above].process, own[above].rank, descendant=True)


def word_of(data: bytes, limit: int = 64) -> str:
    """Return a name that a process gave itself, fit for one line."""
    return clean(data.decode(errors="replace").strip(), limit)
