"""Which of the processes that hold GPU memory can we see, and what is missing where we cannot?

In a pid namespace of our own, the driver names processes by numbers of the node's, which are nobody here, or leaves
them out. Of a process that is not there though nothing is hidden from us, nothing is missing: it has ended, and the
driver has not let go of its memory.
"""

# ruff: noqa: PTH110, PTH116  (as in procfs)

import os
from collections.abc import Collection
from dataclasses import dataclass, field

from stallwatch.node.procfs import Procfs

FIRST_NAMESPACE = 0xEFFFFFFC
"""The number that the kernel gives to the pid namespace of the node itself."""
MOST_NAMED = 8


@dataclass(slots=True)
class Visibility:
    """Looks for processes again and again; one that only ends in that moment is not told of."""

    procfs: Procfs = field(default_factory=Procfs)
    namespace_of_node: int = FIRST_NAMESPACE
    _before: frozenset[int] = frozenset()

    def hidden(self, pids: Collection[int]) -> frozenset[int]:
        """Return those of these processes that are kept from us."""
        missing = {pid for pid in pids if not os.path.exists(self.procfs.path(pid, ""))}
        if not missing or not self._reason():
            missing = set()
        lasting = self._before & missing
        self._before = frozenset(missing)
        return lasting

    def told(self, hidden: Collection[int]) -> str:
        """Say which processes are hidden and what to do about it."""
        named = ", ".join(map(str, sorted(hidden)[:MOST_NAMED])) + (", ..." if len(hidden) > MOST_NAMED else "")
        return f"pids {named} hold GPU memory and are not seen here: {self._reason()}"

    def _reason(self) -> str:
        if self.procfs.hides_others():
            return f"{self.procfs.root} is mounted with hidepid, which hides the processes of other users"
        try:
            namespace = os.stat(self.procfs.path("self", "ns/pid")).st_ino
        except OSError:
            return ""
        return (
            ""
            if namespace == self.namespace_of_node
            else "give the exporter the node's processes (hostPID, or pid: host)"
        )
