"""Does this socket belong to one of these processes?

Told by the inode of the socket among their open files. Which descriptor of whom it was is remembered, and so is who has
it not, since the ranks of a server have thousands of descriptors.
"""

from collections.abc import Iterable, Sequence

from stallwatch.node.procfs import Procfs

_MOST_REMEMBERED = 4096


class Owners:
    """Finds whose a socket is, and remembers it."""

    def __init__(self) -> None:
        self._owners: dict[int, tuple[int, int]] = {}
        self._strangers: dict[tuple[int, int], tuple[int, ...]] = {}

    def owns(self, procfs: Procfs, pids: Sequence[int], inode: int) -> bool:
        """Say whether one of these processes has it open; PermissionError where we may not see that."""
        link = f"socket:[{inode}]"
        pid, descriptor = self._owners.get(inode, (0, 0))
        if pid in pids and procfs.link(pid, f"fd/{descriptor}") == link:
            return True
        if self._strangers.get((inode, pids[0])) == tuple(pids):
            return False
        if len(self._owners) + len(self._strangers) > _MOST_REMEMBERED:
            self._owners.clear()
            self._strangers.clear()
        for pid, descriptor in _descriptors(procfs, pids):
            if procfs.link(pid, f"fd/{descriptor}") == link:
                self._owners[inode] = (pid, descriptor)
                return True
        self._strangers[inode, pids[0]] = tuple(pids)
        return False


def _descriptors(procfs: Procfs, pids: Iterable[int]) -> Iterable[tuple[int, int]]:
    return ((pid, descriptor) for pid in pids for descriptor in procfs.fds(pid))
