"""Which inference servers run on this node, and which of its processes are whose?

Schedulers are found by title; the launcher above them has the flags. Nothing of a command line but what `Launch` holds
leaves this module, since keys stand there.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import Any

from stallwatch.discovery import NAME, DiscoveryReading
from stallwatch.engines import Identity, engine_named
from stallwatch.engines.engine import LAUNCHER, OTHER, SCHEDULER, SPAWNING, Member
from stallwatch.node.addresses import Addresses
from stallwatch.node.bounds import MOST_DESCENDANTS, bounded, oldest
from stallwatch.node.facts import Facts, FactsKeeper
from stallwatch.node.grouping import Group, Grouping
from stallwatch.node.log_source import LogSource, LogSources, absent
from stallwatch.node.procfs import Procfs
from stallwatch.node.runtime_logs import RuntimeLogs
from stallwatch.node.table import Entry, ProcessTable, boottime
from stallwatch.snapshot import Failure, Launch, Process, Server

Roles = Sequence[tuple[Entry, Identity]]


class Finder:
    """Looks for servers again and again; with `below`, only for those that descend from this process."""

    def __init__(self, procfs: Procfs, clock: Callable[[], float] = boottime, below: int | None = None) -> None:
        self._procfs = procfs
        self._table = ProcessTable(clock)
        self._grouping = Grouping()
        self._logs = LogSources(self._table, clock)
        self._runtime_logs = RuntimeLogs(self._table, clock)
        self._addresses = Addresses()
        self._facts = FactsKeeper(self._addresses.port_of)
        self._below = below
        self._descend: set[tuple[int, int]] = set()
        self._is_fresh = True
        self._last: DiscoveryReading | None = None

    def read(
        self, targets: list[dict[str, Any]], skip: frozenset[str]
    ) -> tuple[DiscoveryReading | None, tuple[Failure, ...]]:
        """Return the servers of this moment, those seen last where none can be seen, None where none ever could."""
        procfs = replace(self._procfs, skip=skip)
        if self._is_fresh:
            self._remember(targets)
            self._is_fresh = False
        try:
            self._table.look(procfs)
        except OSError as error:
            failure = Failure(NAME, "procfs_unreadable", f"{procfs.root}: {error.strerror}")
            return self._last, (failure,)  # not to see is not to see that all are gone
        groups, many = oldest(self._wanted(self._grouping.groups(self._table)))
        found = [one for group in groups if (one := self._server(procfs, group))]
        self._facts.forget_others({group.key for group in groups})
        pids = frozenset(pid for group in groups for pid in group.members)
        self._logs.forget_others(pids)
        self._runtime_logs.forget_others({server.container_id for server, _ in found}, pids)
        servers, more = bounded(named([server for server, _ in found]))
        failures = (
            replace(failure, server=server.name)
            for server, (_, some) in zip(servers, found, strict=True)
            for failure in some
        )
        dropped = self._table.dropped + many + more
        self._last = DiscoveryReading(time.monotonic(), tuple(servers), dropped=dropped)
        return self._last, (*failures, *self._skipped(procfs, servers), *_hidden(procfs, servers))

    def _wanted(self, groups: list[Group]) -> list[Group]:
        if self._below is None:
            return groups
        ids = {group.key: {entry.stat.identity for entry, _ in group.members.values()} for group in groups}
        # One whose launcher has gone descends from nobody any more.
        wanted = [group for group in groups if ids[group.key] & self._descend or self._descends(group)]
        self._descend = {one for group in wanted for one in ids[group.key]}
        return wanted

    def _descends(self, group: Group) -> bool:
        return any(one.stat.pid == self._below for pid in group.members for one in self._table.ancestors(pid))

    def _remember(self, targets: Iterable[dict[str, Any]]) -> None:
        for known in targets:
            processes = known.get("processes", ())
            launcher = next((process for process in processes if process[2] == LAUNCHER), None)
            for pid, ticks, role, name, rank in processes:
                identity = Identity(known["engine"], role, name.partition("#")[0], rank)
                self._table.remembered[pid, ticks] = identity
            if launcher:
                key = (LAUNCHER, launcher[0], launcher[1])
                self._facts.remember(key, Launch(**known["launch"]), known["expected"])
                for pid, ticks, *_ in processes:
                    self._grouping.remember((pid, ticks), key)

    def _server(self, procfs: Procfs, group: Group) -> tuple[Server, list[Failure]] | None:
        engine = engine_named(group.engine)
        members = list(group.members.values())
        facts, failures = self._facts.of(procfs, engine, group)
        settled = engine.settle(facts.launch, facts.expected, _with_starters(group))
        roles = [(entry, identity) for (entry, _), identity in zip(members, settled, strict=True)]
        if group.launcher is None and not any(identity.role == SCHEDULER for _, identity in roles):
            return None
        processes = self._processes(roles, facts.expected)
        alive = [process for process in processes if not group.members[process.pid][0].is_zombie]
        writers = _first(alive, LAUNCHER) + _first(alive, SCHEDULER)
        log = self._log(procfs, writers, engine.log_fds, facts) if writers else absent("closed")
        if log.absence.startswith("quarantined"):
            failures.append(Failure(NAME, "quarantined", "its log"))
        tree = alive[0].tree if alive[0].role == LAUNCHER else ()
        pids = list(dict.fromkeys((*(process.pid for process in alive), *tree)))
        address = self._addresses.find(procfs, pids, facts.launch.host, facts.launch.port)
        server = Server(
            name=f"{engine.name}:{facts.launch.port or 'embedded'}",
            engine=engine.name,
            launch=facts.launch,
            processes=processes,
            version=facts.version,
            expected_schedulers=facts.expected,
            log_path=log.path,
            log_root=log.root,
            log_absence=log.absence,
            address=address.literal,
            address_absence=address.absence,
            network=address.network,
            listening=address.listening,
            cuda_visible_devices=facts.visible_devices,
            container_devices=facts.container_devices,
            container_id=facts.container_id,
            pod_uid=facts.pod_uid,
        )
        return server, failures

    def _log(self, procfs: Procfs, writers: list[int], descriptors: Sequence[int], facts: Facts) -> LogSource:
        log = self._logs.find(procfs, writers, descriptors)
        if log.path:
            return log
        return self._runtime_logs.instead_of(log, procfs, list(product(writers, descriptors)), facts)

    def _processes(self, roles: Roles, expected: int | None) -> tuple[Process, ...]:
        ranks = sum(identity.role == SCHEDULER for _, identity in roles)
        complete = expected is not None and ranks >= expected
        names = Counter(identity.name for _, identity in roles)
        processes = []
        for entry, identity in roles:
            # Once all ranks are there, a child that never titles itself is something else than a rank to come.
            role = OTHER if identity.role == SPAWNING and complete else identity.role
            name = identity.name if names[identity.name] == 1 else f"{identity.name}#{entry.stat.pid}"
            processes.append(self._process(entry, role, name, identity.rank))
        return tuple(sorted(processes, key=_order))

    def _process(self, entry: Entry, role: str, name: str, rank: str) -> Process:
        descendants = self._table.descendants(entry.stat.pid) if role in (LAUNCHER, SCHEDULER) else iter(())
        below = list(islice(descendants, MOST_DESCENDANTS))
        tree = tuple(sorted(one.stat.pid for one in below))
        compilers = tuple(sorted(one.stat.pid for one in below if one.kind.compiler))
        return Process(*entry.stat.identity, entry.stat.started, role, name, rank, tree, compilers)

    def _skipped(self, procfs: Procfs, servers: Iterable[Server]) -> list[Failure]:
        if not procfs.skip:
            return []
        owners = {process.pid: server.name for server in servers for process in server.processes}
        pids = (pid for pid in self._table.entries if procfs.is_skipped(pid))
        return [Failure(NAME, "quarantined", f"pid {pid}", owners.get(pid, "")) for pid in pids]


def _with_starters(group: Group) -> list[Member]:
    """Return what each process of a server is, and what the one of them is that started it."""
    starters = (group.members.get(entry.stat.ppid) for entry, _ in group.members.values())
    return [
        (identity, starter[1] if starter else None)
        for (_, identity), starter in zip(group.members.values(), starters, strict=True)
    ]


def _hidden(procfs: Procfs, servers: Sequence[Server]) -> Iterable[Failure]:
    if not servers and procfs.hides_others():
        detail = f"{procfs.root} is mounted with hidepid, which hides the processes of other users"
        yield Failure(NAME, "processes_hidden", detail)


def named(servers: Sequence[Server]) -> tuple[Server, ...]:
    """Give each server a name that no other on the node has: its container or its launcher follows where needed."""
    names = Counter(server.name for server in servers)
    homes = Counter((server.name, server.container_id) for server in servers)
    return tuple(
        server if names[server.name] == 1 else _distinguished(server, homes[server.name, server.container_id] == 1)
        for server in servers
    )


def _distinguished(server: Server, is_alone_in_container: bool) -> Server:  # noqa: FBT001  (an inner step of named)
    if is_alone_in_container and server.container_id:
        return replace(server, name=f"{server.name}@{server.container_id[:12]}")
    return replace(server, name=f"{server.name}#{server.processes[0].pid}")


def _first(processes: Iterable[Process], role: str) -> list[int]:
    return [process.pid for process in processes if process.role == role][:1]


def _order(process: Process) -> tuple[bool, bool, int, str]:
    return process.role != LAUNCHER, process.role != SCHEDULER, len(process.name), process.name
