"""How much is watched of a node on which anybody may start processes under any name?

What there is too much of is left out from the end: of servers the youngest, of a server what matters least.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from stallwatch.node.grouping import Group
from stallwatch.snapshot import Process, Server

MOST_SERVERS = 256
MOST_PROCESSES = 1024  # of all servers
MOST_OF_ONE_SERVER = 512
MOST_DESCENDANTS = 1024  # of one process
MOST_IN_TREES = 8192  # of all servers


def oldest(groups: Sequence[Group]) -> tuple[Sequence[Group], int]:
    """Return the servers that are watched, in the order they came in, and how many are left out."""
    if len(groups) <= MOST_SERVERS:
        return groups, 0
    kept = {group.key for group in sorted(groups, key=_age)[:MOST_SERVERS]}
    return [group for group in groups if group.key in kept], len(groups) - MOST_SERVERS


def _age(group: Group) -> tuple[int, int]:
    return min((entry.stat.start_ticks, pid) for pid, (entry, _) in group.members.items())


def bounded(servers: Iterable[Server]) -> tuple[list[Server], int]:
    """Return the servers with no more processes than are watched, and how many processes are left out."""
    kept, dropped, processes, in_trees = [], 0, MOST_PROCESSES, MOST_IN_TREES
    for server in servers:
        allowed = server.processes[: max(1, min(MOST_OF_ONE_SERVER, processes))]
        few = []
        for process in allowed:
            few.append(_pruned(process, in_trees))
            in_trees -= len(few[-1].tree)
        dropped += len(server.processes) - len(few)
        dropped += sum(len(whole.tree) - len(pruned.tree) for whole, pruned in zip(allowed, few, strict=True))
        processes -= len(few)
        kept.append(server if tuple(few) == server.processes else replace(server, processes=tuple(few)))
    return kept, dropped


def _pruned(process: Process, most: int) -> Process:
    if len(process.tree) <= most:
        return process
    tree = process.tree[: max(0, most)]
    return replace(process, tree=tree, compilers=tuple(pid for pid in process.compilers if pid in tree))
