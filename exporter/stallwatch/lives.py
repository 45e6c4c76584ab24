"""How did a server that has gone end, and how often has it been started?

An orderly end (drain lines in its log) leaves nothing. Any other end leaves a tombstone for a quarter of an hour, so
that what crashed in the night is still told of. A new life under the same name takes over, and is counted. A server
that is configured stays in the list without any process, which is no life.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from stallwatch.node.usage import Identity
from stallwatch.past import Ending
from stallwatch.snapshot import Server

TOMBSTONE_SECONDS = 15 * 60.0
LOOP_LIVES = 3
LOOP_SECONDS = 30 * 60.0


@dataclass
class _Row:
    """One name and the lives it has had."""

    server: Server
    gone_since: float | None = None
    orderly: bool | None = None  # None: nothing tells, since its log could not be read
    ready: bool = False
    restarts: int = 0
    unready_starts: list[float] = field(default_factory=list)
    not_ready_seconds: float = 0.0
    seen: float = 0.0
    unready: bool = False  # it was once known not to be ready


@dataclass(frozen=True, slots=True)
class Told:
    """What is told of a server: was it ready at the look before, and does its log say that it ends (None: no log)?"""

    ready: bool | None = None
    stopping: bool | None = None


class Lives:
    """The servers of the node over their lives."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}

    def remember(self) -> Any:
        """Return what an exporter that is started again can go on with, as plain values for a file."""
        return msgspec.to_builtins(list(self._rows.values()))

    def recall(self, remembered: Any, among: frozenset[Identity] | None = None) -> tuple[Server, ...]:
        """Go on with what was remembered, and return these servers; those not seen at the next look have gone.

        Where not all processes can be seen, `among` are those that are, and servers of which none is among them are
        forgotten: nobody knows whether they have gone.
        """
        try:
            rows = msgspec.convert(remembered, list[_Row])
        except msgspec.ValidationError:
            return ()
        self._rows = {row.server.name: row for row in rows if among is None or _one_of(row.server, among)}
        return tuple(row.server for row in self._rows.values())

    def look(
        self, servers: Iterable[Server], told: Mapping[str, Told], now: float
    ) -> tuple[tuple[Server, ...], dict[str, Ending]]:
        """Return the servers that are there and those that left a tombstone, and how each ended or was started."""
        listed = {server.name: server for server in servers}
        alive = {name for name, server in listed.items() if server.processes}
        running = {process.pid: process.start_ticks for name in alive for process in listed[name].processes}
        self._rows = {name: row for name, row in self._rows.items() if name in alive or not _runs(row.server, running)}
        born = {name for name in alive if self._take(listed[name], now)}
        for name, row in self._rows.items():
            known = told.get(name, Told())
            # What was ready at the look before was another life.
            self._note(row, replace(known, ready=None) if name in born else known, now, there=name in alive)
        self._rows = {name: row for name, row in self._rows.items() if name in alive or _kept(row, now)}
        tombs = {name: row for name, row in self._rows.items() if name not in alive and not row.orderly}
        shown = [listed[name] for name in listed if name not in tombs]
        graves = [_grave(row, listed.get(name)) for name, row in tombs.items()]
        return (*shown, *graves), {name: _ending(row, now) for name, row in self._rows.items()}

    def not_ready_seconds(self) -> dict[str, float]:
        """Return how long each server has not been ready, over all its lives."""
        return {name: row.not_ready_seconds for name, row in self._rows.items()}

    def _take(self, server: Server, now: float) -> bool:
        """Note that a server is there and return whether this life of it is new."""
        row = self._rows.get(server.name)
        if row is None:
            self._rows[server.name] = _Row(server, unready_starts=[now], seen=now)
            return True
        born = row.server.incarnation != server.incarnation
        if born:
            row.restarts += 1
            if row.ready or row.orderly:
                row.unready_starts = []
            elif not row.unready:
                row.unready_starts.pop()  # whether that life got ready was never known
            row.unready_starts.append(now)
            row.ready, row.unready, row.orderly = False, False, None
        row.server, row.gone_since = server, None
        return born

    def _note(self, row: _Row, told: Told, now: float, *, there: bool) -> None:
        if there and told.ready is False:
            row.not_ready_seconds += now - row.seen
        row.seen = now
        row.ready = row.ready or bool(told.ready)
        row.unready = row.unready or told.ready is False
        # Where a server has gone, a later life may already have written its log: what it told last still counts.
        if told.stopping is not None and (there or not row.orderly):
            row.orderly = told.stopping or (False if _has_launcher(row.server) else None)
        if not there and row.gone_since is None:
            row.gone_since = now


def _runs(server: Server, running: Mapping[int, int]) -> bool:
    """Tell whether a process of this server is still there, then under another name."""
    return any(running.get(process.pid) == process.start_ticks for process in server.processes)


def _has_launcher(server: Server) -> bool:
    """Tell whether it is a server; an engine inside another program ends with that, and its log says nothing of it."""
    return any(process.role == "launcher" for process in server.processes)


def _grave(row: _Row, listed: Server | None) -> Server:
    """Return the server as it was, without processes; of one that is configured, where its signals are read."""
    was = row.server
    started = min((process.started for process in was.processes), default=was.started)
    return replace(listed or was, processes=(), incarnation=was.incarnation, gpus=was.gpus, started=started)


def _kept(row: _Row, now: float) -> bool:
    # An orderly end shows no tombstone, but its starts still count for a while.
    longest = LOOP_SECONDS if row.orderly else TOMBSTONE_SECONDS
    return row.gone_since is not None and now - row.gone_since < longest


def _ending(row: _Row, now: float) -> Ending:
    lately = [start for start in row.unready_starts if now - start < LOOP_SECONDS]
    looping = row.unready and not row.ready and len(lately) >= LOOP_LIVES
    return Ending(row.gone_since, row.orderly, None, row.restarts, looping)


def _one_of(server: Server, among: frozenset[Identity]) -> bool:
    return any((process.pid, process.start_ticks) in among for process in server.processes)
