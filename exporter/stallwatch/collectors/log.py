"""What does a server's log tell: does it grow, does the server get on, how far is each rank, what failed?

A log that was there before us is read from at most 8 MiB before its end. The ages of what it holds then come from the
file's modification time and from the differences between the times its lines state, so that no time zone matters; from
there on, from the moments at which new lines were seen. Lines that an earlier life of the server wrote count as lines
and errors, never for phases and progress.

Reasons of failures: `not_found`, `permission_denied`, `not_a_regular_file`, `is_a_directory`, `io_error` and
`quarantined`.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stallwatch.life import Life, RankPhase
from stallwatch.markers import ERROR_KINDS, KINDS
from stallwatch.scan import Mark, Scanner
from stallwatch.snapshot import Failure, Family, Moment, Reading, Server
from stallwatch.tail import NotRegularFileError, Tail

NAME = "log"
CLOCK_SLACK = 1.0  # stated times are whole seconds


@dataclass(frozen=True, slots=True)
class Log:
    """One server's log as it is now; times are monotonic, and None is what the log has not told in this life."""

    server: str
    path: str
    size_bytes: int
    last_write: float
    last_progress: float | None
    last_heartbeat: float | None
    phase: str | None  # the furthest of all
    phase_since: float | None
    progress: float | None  # of the phase, 0 to 1
    ranks: tuple[RankPhase, ...]  # those that write their name on their lines
    last_marker: str  # of the last progress line, a word of the tables
    last_marker_rank: str
    waiting: str  # gated or sleeping: on purpose, until somebody lets it go on
    stopping: bool
    engine_version: str
    lines: dict[str, int]
    errors: dict[str, int]
    rotations: int
    skipped_bytes: int


@dataclass(frozen=True, slots=True)
class LogReading(Reading):
    """The logs of all servers on this node."""

    logs: tuple[Log, ...]


class _Follower:
    """Follows the log of one server over rotations and lives."""

    def __init__(self, engine: str) -> None:
        self._scanner = Scanner(engine)
        self._tail: Tail | None = None
        self._path = self._incarnation = self._version = ""
        self._life = Life()
        self._launched: float | None = None  # when a line that begins a life was seen
        self._old = True  # what is read was there before us, and is dated by the clock of the log
        self._clock = -math.inf  # what that clock said last
        self._offered = b""
        self._last_write: float | None = None
        self._lines: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self._errors: Counter[str] = Counter(dict.fromkeys(ERROR_KINDS, 0))
        self._rotations = self._skipped = 0

    def look(self, target: Mapping[str, Any], now: Moment) -> Log:
        """Read what is new and tell what is known; raise OSError where there is nothing to read."""
        born = None if target["started"] is None else now.monotonic - (now.boottime - target["started"])
        tail = self._follow(target["path"])
        self._notice_restart(target["incarnation"], born)
        try:
            for lines in tail.look():
                self._take(lines, now.monotonic)
        except FileNotFoundError:
            self._old = False  # what appears from now on is new
            raise
        self._offer(tail.unfinished, now.monotonic)
        life, written = self._life, now.monotonic
        if self._last_write is None or self._old:
            written -= _age(tail.modified, now)
        if self._old:
            life = self._dated_life(written, born)
        if self._old and not tail.behind:
            self._life, self._old = life, False
        if self._last_write is None or tail.grew:
            self._last_write = written
        return self._log(target["server"], tail, life, self._last_write)

    def close(self) -> None:
        """Close the file."""
        if self._tail:
            self._tail.close()

    def _follow(self, path: str) -> Tail:
        if self._tail and path == self._path:
            return self._tail
        if self._tail:
            self._tail.close()
            self._rotations += self._tail.rotations
            self._skipped += self._tail.skipped_bytes
            self._begin_life()
        self._tail, self._path = Tail(path), path
        self._old, self._clock, self._offered, self._last_write = True, -math.inf, b"", None
        return self._tail

    def _notice_restart(self, incarnation: str, born: float | None) -> None:
        """Forget the life before, unless the log has told already that a new one began."""
        told = self._launched is not None and born is not None and self._launched >= born
        if self._incarnation and incarnation != self._incarnation and not told:
            self._begin_life()
        self._incarnation = incarnation

    def _begin_life(self) -> None:
        self._life = Life()
        self._scanner.forget_bars()

    def _dated_life(self, written: float, born: float | None) -> Life:
        life = self._life.dated(self._clock, written)
        if born is not None and life.phase_since is not None and life.phase_since < born - CLOCK_SLACK:
            return Life()  # an earlier life told that, and this one has not told anything yet
        return life

    def _take(self, lines: bytes, now: float) -> None:
        found = self._scanner.scan(lines, dated=self._old)
        self._lines.update(found.lines)
        self._errors.update(found.errors)
        self._version = found.version or self._version
        for mark in found.marks:
            if mark.marker.begins_life:
                self._life = Life()
                self._launched = None if self._old else now
            self._life.take(mark, self._time_of(mark, now))
        if found.last_written is not None:
            self._clock = found.last_written

    def _time_of(self, mark: Mark, now: float) -> float:
        if not self._old:
            return now
        if mark.written is not None:
            return mark.written
        return self._clock if math.isfinite(self._clock) else math.inf  # not known: no older than the last write

    def _offer(self, unfinished: bytes, now: float) -> None:
        """Take phases from a line that has no end yet, and maybe never will; it is counted when it ends."""
        if unfinished == self._offered:
            return
        self._offered = unfinished
        for mark in self._scanner.scan(unfinished + b"\n", dated=self._old).marks:
            if mark.marker.phase and not mark.marker.begins_life:
                self._life.take(mark, self._time_of(mark, now))

    def _log(self, server: str, tail: Tail, life: Life, last_write: float) -> Log:
        return Log(
            server=server,
            path=self._path,
            size_bytes=tail.size,
            last_write=last_write,
            last_progress=life.last_progress,
            last_heartbeat=life.last_heartbeat,
            phase=life.phase,
            phase_since=life.phase_since,
            progress=life.progress,
            ranks=life.ranks_in_order(),
            last_marker=life.last_marker,
            last_marker_rank=life.last_marker_rank,
            waiting=life.waiting,
            stopping=life.phase == "stopping",
            engine_version=self._version,
            lines=dict(self._lines),
            errors=dict(self._errors),
            rotations=self._rotations + tail.rotations,
            skipped_bytes=self._skipped + tail.skipped_bytes,
        )


def target(server: Server) -> dict[str, Any] | None:
    """Say which log to follow for this server, None where there is none."""
    if server.log_path is None:
        return None
    return {
        "server": server.name,
        "engine": server.engine,
        "path": server.log_path,
        "incarnation": server.incarnation,
        "started": min((process.started for process in server.processes), default=None),
    }


def reader(
    options: Mapping[str, str],  # noqa: ARG001 the same for every reader
    note: Callable[[str], None],
    clock: Callable[[], Moment] = Moment.now,
) -> Callable[[list[dict[str, Any]], frozenset[str]], tuple[LogReading, tuple[Failure, ...]]]:
    """Return what reads the logs of the given servers, and remembers where it was."""
    followers: dict[str, _Follower] = {}

    def read(targets: list[dict[str, Any]], skip: frozenset[str]) -> tuple[LogReading, tuple[Failure, ...]]:
        now = clock()
        for gone in followers.keys() - {wanted["server"] for wanted in targets}:
            followers.pop(gone).close()
        logs, failures = [], []
        for wanted in targets:
            what = f"log {wanted['path']}"
            if what in skip:
                failures.append(Failure(NAME, "quarantined", what, wanted["server"]))
                continue
            note(what)
            follower = followers.setdefault(wanted["server"], _Follower(wanted["engine"]))
            try:
                logs.append(follower.look(wanted, now))
            except OSError as error:
                failures.append(Failure(NAME, _reason(error), what, wanted["server"]))
        return LogReading(now.monotonic, tuple(logs)), tuple(failures)

    return read


def families(readings: Sequence[LogReading], moment: Moment) -> Iterable[Family]:
    """State the metric families of the logs."""
    logs = [log for reading in readings for log in reading.logs]

    def family(name: str, text: str, kind: str, value: Callable[[Log], float | None]) -> Family:
        samples = tuple(((log.server,), known) for log in logs if (known := value(log)) is not None)
        return Family(f"stallwatch_log_{name}", text, kind, ("server",), samples)

    def unix(time: float | None) -> float | None:
        return None if time is None else moment.unix_of(time)

    yield family("size_bytes", "Size of the log file.", "gauge", lambda log: log.size_bytes)
    text = "When the log last grew."
    yield family("last_write_timestamp_seconds", text, "gauge", lambda log: unix(log.last_write))
    text = "When the log last had a line that only a server that gets on writes."
    yield family("last_progress_timestamp_seconds", text, "gauge", lambda log: unix(log.last_progress))
    text = "Time since the last line of progress; absent while this life of the server has written none."
    yield family("staleness_seconds", text, "gauge", lambda log: _since(log.last_progress, moment))
    text = "Rotations and truncations that were followed."
    yield family("rotations_total", text, "counter", lambda log: log.rotations)
    text = "Bytes left out because the reader was too far behind."
    yield family("skipped_bytes_total", text, "counter", lambda log: log.skipped_bytes)
    yield _by_kind("lines", "Lines read, by kind.", {log.server: log.lines for log in logs})
    yield _by_kind("errors", "Lines that say what failed, by kind.", {log.server: log.errors for log in logs})


def _by_kind(what: str, text: str, counts: Mapping[str, Mapping[str, int]]) -> Family:
    samples = tuple(((server, kind), float(count)) for server, kinds in counts.items() for kind, count in kinds.items())
    return Family(f"stallwatch_log_{what}_total", text, "counter", ("server", "kind"), samples)


def _since(time: float | None, moment: Moment) -> float | None:
    return None if time is None else max(0.0, moment.monotonic - time)


def _age(modified: float, now: Moment) -> float:
    """Return how long ago the file was written; a time in the future or before 1970 tells nothing, so it is now."""
    return max(0.0, now.unix - modified) if modified > 0 else 0.0


def _reason(error: OSError) -> str:
    if isinstance(error, NotRegularFileError):
        return "not_a_regular_file"
    known = {FileNotFoundError: "not_found", PermissionError: "permission_denied", IsADirectoryError: "is_a_directory"}
    return known.get(type(error), "io_error")
