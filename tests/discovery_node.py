"""A node of fake processes, and discovery that looks at it."""

from procfs_tree import ProcTree
from stallwatch.finder import Finder
from stallwatch.node.procfs import Procfs

MODULE = ("python3", "-m", "sglang.launch_server")


class Node:
    """Discovery over a fake tree, with a clock that is set by hand."""

    def __init__(self, folder):
        self.folder, self.tree, self.now, self.notes = folder, ProcTree(folder), 10_000.0, []
        self.restart()

    def restart(self, below=None):
        """Begin with an empty memory, as a new worker does."""
        self.discovery = Finder(Procfs(str(self.tree.root), self.notes.append), lambda: self.now, below)

    def look(self, targets=(), skip=()):
        """Look after five seconds; return servers by name."""
        self.now += 5
        reading, self.failures = self.discovery.read(list(targets), frozenset(skip))
        assert len({server.name for server in reading.servers}) == len(reading.servers)
        return {server.name: server for server in reading.servers}

    def server(self, pid, *flags, ranks=("TP0", "TP1"), **settings):
        """Add a launcher with the pid, and its ranks with the pids that follow."""
        self.tree.add(pid, *MODULE, *flags, session=pid, pgrp=pid, **settings)
        for number, rank in enumerate(ranks, 1):
            title = f"sglang::scheduler_{rank}" if rank else "sglang::scheduler"
            self.tree.titled(pid + number, title, ppid=pid, session=pid, pgrp=pid, **settings)


def roles(server):
    """Return the roles by process name."""
    return {process.name: process.role for process in server.processes}
