"""What does psutil tell of a process, while it is there and we may look?"""

from dataclasses import dataclass, field
from typing import Any

import psutil

from stallwatch.node.usage import Identity, Stat


@dataclass(slots=True)
class Handles:
    """psutil's handles of the processes of one look, which go on from those of the look before."""

    procfs: str
    known: dict[Identity, psutil.Process] = field(default_factory=dict)
    _before: dict[Identity, psutil.Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Have psutil look at this tree."""
        psutil.PROCFS_PATH = self.procfs

    def next(self) -> "Handles":
        """Return those of the next look; what is not asked for again is forgotten."""
        return Handles(self.procfs, {}, self.known)

    def facts(self, stat: Stat) -> dict[str, Any] | None:
        """Return threads, memory, switches and open files; None where the process has gone meanwhile.

        What needs a right that is missing is None too; raises PermissionError where nothing can be read without it.
        """
        try:
            handle = self.known[stat.id] = self._before.get(stat.id) or psutil.Process(stat.id[0])
            with handle.oneshot():
                switches = handle.num_ctx_switches()
                return {
                    "threads": handle.num_threads(),
                    "resident_bytes": handle.memory_info().rss,
                    "voluntary_switches": switches.voluntary,
                    "involuntary_switches": switches.involuntary,
                    "open_fds": None if stat.state == "Z" else _open_fds(handle),
                }
        except psutil.NoSuchProcess:
            return None
        except psutil.AccessDenied as error:
            raise PermissionError(str(error)) from error


def _open_fds(handle: psutil.Process) -> int | None:
    try:
        return handle.num_fds()
    except psutil.AccessDenied:
        return None
