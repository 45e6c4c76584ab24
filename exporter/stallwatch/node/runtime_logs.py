"""Who keeps the log of a server that writes to no file itself: the runtime of its container, or the journal?

A container's output is a pipe or a terminal that its runtime holds the other end of. containerd and Docker pass it on
to a daemon that has the pipes and files of all containers open, so open files do not tell which file is whose; the id
of the container does, by the places where kubelet, Docker and Podman keep its log. They are looked for in our own tree
and in that of the node's first process, since we may be in a container ourselves. Docker and Podman that log to the
journal leave none, and mark there what is a container's with its id, as that of a service is with the name of its unit.
Docker with another driver leaves nothing that can be read.

That file is the server's only where the server writes to what the first process of its container writes to: what was
started by `docker exec` writes elsewhere.
"""

import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from stallwatch.logs import journal
from stallwatch.node import inside
from stallwatch.node.facts import Facts
from stallwatch.node.log_source import LogSource, absent, reachable
from stallwatch.node.procfs import Procfs
from stallwatch.node.surroundings import QuarantinedError, guard
from stallwatch.node.table import ProcessTable, boottime

KUBELET = "/var/log/containers"
"""Links to the logs of all containers of a Kubernetes node; their names end in the id of the container."""
PLACES = (
    "/var/lib/docker/containers/{0}/{0}-json.log",
    "/var/lib/containers/storage/overlay-containers/{0}/userdata/ctr.log",
)
NO_FILE = (
    "runtime: the runtime of its container keeps no log file that we can see; let us see /var/log and /var/lib/docker "
    "of the node, have the runtime write files (json-file, k8s-file), or name its log in the configuration"
)
JOURNAL = (
    "journal: it logs to the journal, and there is no journalctl here to ask, or it is in no unit to ask for; add "
    '"StandardOutput=append:FILE" and "StandardError=append:FILE" to its unit, or name its log in the configuration'
)
TRY_AGAIN_AFTER = 30.0
_MOST_SIBLINGS = 256
_MOST_DESCRIPTORS = 4096
_DAEMON = "dockerd"


@dataclass(frozen=True, slots=True)
class _Found:
    """What is known of one container's log; without a path, it is looked for again at `again`."""

    source: LogSource
    again: float


class RuntimeLogs:
    """Finds the logs that others keep for servers, and remembers them."""

    def __init__(
        self, table: ProcessTable, clock: Callable[[], float] = boottime, journalctl: str = journal.PROGRAM
    ) -> None:
        self._table = table
        self._clock = clock
        self._journalctl = journalctl
        self._found: dict[str, _Found] = {}
        self._firsts: dict[tuple[int, str], int] = {}  # by a pid and its container

    def instead_of(self, log: LogSource, procfs: Procfs, outputs: Sequence[tuple[int, int]], facts: Facts) -> LogSource:
        """Return the log of the server with these outputs, pids and descriptors, where `log` is absent."""
        word, container_id = log.absence.partition(":")[0], facts.container_id
        try:
            links = {link for pid, descriptor in outputs if (link := procfs.link(pid, f"fd/{descriptor}"))}
            if word == "socket" and f"socket:[{facts.journal_stream.rpartition(':')[2]}]" in links:
                return self._of_unit(procfs, outputs[0][0])
            if word in {"pipe", "terminal"} and container_id:
                shared = self._shared(procfs, outputs[0][0], container_id, links)
                return self._of_container(procfs, container_id) if shared else log
        except PermissionError:
            return absent("permission_denied")
        return log

    def _of_unit(self, procfs: Procfs, pid: int) -> LogSource:
        """Return what the journal holds of the service that a process belongs to."""
        path = journal.path_of_unit(procfs.control_groups(pid)) if journal.is_here(self._journalctl) else None
        return LogSource(path) if path else LogSource(None, JOURNAL)

    def forget_others(self, containers: Collection[str], pids: Collection[int]) -> None:
        """Drop what is known of all other containers and processes."""
        self._found = {container: found for container, found in self._found.items() if container in containers}
        self._firsts = {key: first for key, first in self._firsts.items() if key[0] in pids}

    def _shared(self, procfs: Procfs, pid: int, container_id: str, links: Collection[str]) -> bool:
        """Say whether the first process of a container writes to one of these too."""
        key = (pid, container_id)
        first = self._firsts.get(key)
        if first is None or first not in self._table.entries:
            first = self._firsts[key] = self._first(procfs, pid, container_id)
        return procfs.link(first, "fd/1") in links or procfs.link(first, "fd/2") in links

    def _first(self, procfs: Procfs, pid: int, container_id: str) -> int:
        """Return the oldest of those that the runtime has started in this container."""
        top = self._table.entries.get(pid)
        if top is None:
            return pid
        for above in self._table.ancestors(pid):
            if procfs.container(above.stat.pid)[0] != container_id:
                break
            top = above
        siblings = islice(self._table.children.get(top.stat.ppid, ()), _MOST_SIBLINGS)
        within = [self._table.entries[one] for one in siblings if procfs.container(one)[0] == container_id]
        return min((*within, top), key=lambda entry: entry.stat.start_ticks).stat.pid

    def _of_container(self, procfs: Procfs, container_id: str) -> LogSource:
        known, now = self._found.get(container_id), self._clock()
        if known and (known.source.path or now < known.again):
            return known.source
        try:
            source = next(self._search(procfs, container_id), LogSource(None, NO_FILE))
        except QuarantinedError:
            source = absent("quarantined")
        self._found[container_id] = _Found(source, now + TRY_AGAIN_AFTER)
        return source

    def _search(self, procfs: Procfs, container_id: str) -> Iterator[LogSource]:
        for root in ("/", procfs.path(1, "root")):
            guard(procfs, f"{root.rstrip('/')}{KUBELET}")
            names = (name for name in inside.list_names(root, KUBELET) if name.endswith(f"-{container_id}.log"))
            places = (place.format(container_id) for place in PLACES)
            yield from _regular(procfs, root, (*(f"{KUBELET}/{name}" for name in names), *places))
        yield from self._held_by_daemon(procfs, container_id)
        yield from self._in_journal(procfs, container_id)

    def _in_journal(self, procfs: Procfs, container_id: str) -> Iterator[LogSource]:
        path = journal.path_of_container(container_id)
        guard(procfs, path)
        if journal.holds(path, self._journalctl):
            yield LogSource(path)

    def _held_by_daemon(self, procfs: Procfs, container_id: str) -> Iterator[LogSource]:
        """Yield what Docker has open for a container, wherever it was told to keep its data."""
        for pid in [pid for pid, entry in self._table.entries.items() if entry.stat.comm == _DAEMON]:
            for descriptor in procfs.fds(pid)[:_MOST_DESCRIPTORS]:
                link = procfs.link(pid, f"fd/{descriptor}") or ""
                if link.endswith(f"/{container_id}-json.log"):
                    guard(procfs, link)
                    with suppress(FileNotFoundError):
                        status = os.stat(procfs.path(pid, f"fd/{descriptor}"))  # noqa: PTH116  (as in log_source)
                        yield reachable(procfs, pid, descriptor, link, status)


def _regular(procfs: Procfs, root: str, paths: Iterable[str]) -> Iterator[LogSource]:
    """Yield those of these paths that lead to a regular file, each as what it leads to without a link."""
    prefix = root.rstrip("/")
    for path in paths:
        guard(procfs, f"{prefix}{path}")
        with suppress(OSError):
            place, status = _led_to(root, path)
            with inside.held(root, place, links=False) as handle:
                same = os.path.samestat(os.fstat(handle), status)
            if same and stat.S_ISREG(status.st_mode):
                yield LogSource(f"{prefix}{place}", root=root)


def _led_to(root: str, path: str) -> tuple[str, os.stat_result]:
    """Return where a path below a root leads to, from that root on."""
    with inside.held(root, "") as top, inside.held(root, path) as handle:
        base, place = (os.readlink(f"/proc/self/fd/{one}") for one in (top, handle))  # noqa: PTH115  (as in procfs)
        return place.removeprefix(base) if base != "/" else place, os.fstat(handle)
