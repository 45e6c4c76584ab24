"""Which processes make up one server?

A scheduler belongs to the nearest launcher above it; one without is of an Engine inside another program, and those that
have the same program above them and the same session are one server. What once belonged to a launcher stays with its
server when that launcher is gone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from stallwatch.engines import Identity
from stallwatch.engines.engine import LAUNCHER, OTHER, ROUTER, SCHEDULER, SPAWNING
from stallwatch.node.table import Entry, ProcessTable

Key = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Group:
    """The processes of one server; `flags` is where its flags stand, which a router may have for it."""

    key: Key
    engine: str
    launcher: Entry | None = None
    flags: Entry | None = None
    members: dict[int, tuple[Entry, Identity]] = field(default_factory=dict)

    @property
    def is_gone(self) -> bool:
        """Say whether nothing of it runs."""
        return all(entry.is_zombie for entry, _ in self.members.values())


class Grouping:
    """Puts processes together to servers, and remembers what belonged where."""

    def __init__(self) -> None:
        self._keys: dict[tuple[int, int], Key] = {}

    def remember(self, identity: tuple[int, int], key: Key) -> None:
        """Learn where a process belongs that was sorted before."""
        self._keys[identity] = key

    def groups(self, table: ProcessTable) -> list[Group]:
        """Return the servers that the table holds, in order of their first process."""
        known = {pid: entry for pid, entry in table.entries.items() if entry.kind.identity}
        known = {pid: entry for pid, entry in known.items() if not _is_copy(table, entry)}
        launchers = _launchers(table, known)
        groups = {_launcher_key(entry): _group(table, entry, launchers) for entry in launchers.values()}
        for pid, entry in known.items():
            if pid not in launchers and not _is_wrapper(entry):
                key, identity = self._key(table, entry, launchers), _as_part(_identity(entry))
                groups.setdefault(key, Group(key, identity.engine)).members[pid] = (entry, identity)
        self._forget(groups.values())
        return sorted((group for group in groups.values() if not group.is_gone), key=lambda group: group.key)

    def _key(self, table: ProcessTable, entry: Entry, launchers: Mapping[int, Entry]) -> Key:
        above = list(table.ancestors(entry.stat.pid))
        owner = next((one for one in above if one.stat.pid in launchers), None)
        if owner:
            return _launcher_key(owner)
        if entry.stat.identity in self._keys:
            return self._keys[entry.stat.identity]
        root = next((one.stat.pid for one in above if not one.kind.identity), 0)
        return f"{_identity(entry).engine} embedded", root, entry.stat.session

    def _forget(self, groups: Iterable[Group]) -> None:
        self._keys = {
            entry.stat.identity: group.key
            for group in groups
            if group.key[0] == LAUNCHER
            for entry, _ in group.members.values()
        }


def _launcher_key(entry: Entry) -> Key:
    return LAUNCHER, *entry.stat.identity


def _identity(entry: Entry) -> Identity:
    assert entry.kind.identity is not None  # noqa: S101  (only known processes come here)
    return entry.kind.identity


def _group(table: ProcessTable, launcher: Entry, launchers: Mapping[int, Entry]) -> Group:
    identity = _identity(launcher)
    spawning = Identity(identity.engine, SPAWNING, SPAWNING)
    members = {child.stat.pid: (child, spawning) for child in _spawned(table, launcher, launchers)}
    members[launcher.stat.pid] = (launcher, replace(identity, name=LAUNCHER))
    return Group(_launcher_key(launcher), identity.engine, launcher, _flags(table, launcher), members)


def _is_copy(table: ProcessTable, entry: Entry) -> bool:
    """Say whether this is a fork that still has the title or command line of a process above it."""
    return any(
        above.kind.identity == entry.kind.identity and above.kind.argv == entry.kind.argv
        for above in table.ancestors(entry.stat.pid)
    )


def _is_wrapper(entry: Entry) -> bool:
    return _identity(entry).role == LAUNCHER and bool(entry.kind.argv)


def _as_part(identity: Identity) -> Identity:
    name = "http_server" if identity.name == LAUNCHER else identity.name
    return replace(identity, role=OTHER, name=name) if identity.role == LAUNCHER else identity


def _launchers(table: ProcessTable, known: Mapping[int, Entry]) -> dict[int, Entry]:
    found = {pid: entry for pid, entry in known.items() if _identity(entry).role == LAUNCHER}
    nested = {
        pid: outer
        for pid, entry in found.items()
        if (outer := next((above for above in table.ancestors(pid) if above.stat.pid in found), None))
    }
    # A titled main below a launcher is part of its server; a launcher with another command line is what a wrapper runs.
    parts = {pid for pid in nested if not found[pid].kind.argv}
    wrappers = {outer.stat.pid for pid, outer in nested.items() if pid not in parts}
    owners = {
        next((above.stat.pid for above in table.ancestors(pid) if above.stat.pid in found), 0)
        for pid, entry in known.items()
        if _identity(entry).role == SCHEDULER
    }
    return {pid: entry for pid, entry in found.items() if pid not in parts and pid not in wrappers - owners}


def _spawned(table: ProcessTable, launcher: Entry, launchers: Mapping[int, Entry]) -> Iterable[Entry]:
    def leave(entry: Entry) -> bool:
        identity = entry.kind.identity
        return entry.stat.pid in launchers or (identity is not None and identity.role == SCHEDULER)

    return (entry for entry in table.descendants(launcher.stat.pid, leave) if entry.kind.spawned)


def _flags(table: ProcessTable, launcher: Entry) -> Entry | None:
    if launcher.kind.argv:
        return launcher
    above = table.ancestors(launcher.stat.pid)
    return next((one for one in above if one.kind.argv and _identity(one).role == ROUTER), None)
