"""What does a server's log tell: does it grow, does the server get on, how far is each rank, what failed?

A log that was there before us is read from at most 8 MiB before its end. Lines that an earlier life of the server wrote
count as lines and errors, never for phases and progress.

Reasons of failures: `not_found`, `permission_denied`, `not_a_regular_file`, `is_a_directory`, `symbolic_link` (in the
place of a log that was found at a process), `too_many_open_files`, `io_error` and `quarantined`.
"""

import errno
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from stallwatch.logs.markers import ERROR_KINDS, KINDS
from stallwatch.logs.rank_phase import RankPhase
from stallwatch.node.inside import NotRegularFileError
from stallwatch.snapshot import Failure, Family, Moment, Reading, Server

if TYPE_CHECKING:  # what follows a log is loaded by the worker alone
    from stallwatch.logs.life import Follower, Life

NAME = "log"

T = TypeVar("T")

_REASONS = {errno.ELOOP: "symbolic_link", errno.EMFILE: "too_many_open_files", errno.ENFILE: "too_many_open_files"}


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
    step_wait: float | None = None  # when an engine core last said that it still waits for a step of its workers


@dataclass(frozen=True, slots=True)
class LogReading(Reading):
    """The logs of all servers on this node."""

    logs: tuple[Log, ...]


def target(server: Server) -> dict[str, Any] | None:
    """Say which log to follow for this server, None where there is none."""
    if server.log_path is None:
        return None
    return {
        "server": server.name,
        "engine": server.engine,
        "path": server.log_path,
        "root": server.log_root,
        "incarnation": server.incarnation,
        "started": min((process.started for process in server.processes), default=server.started),
    }


def reader(
    options: Mapping[str, str],  # noqa: ARG001 the same for every reader
    note: Callable[[str], None],
    clock: Callable[[], Moment] = Moment.now,
) -> Callable[[list[dict[str, Any]], frozenset[str]], tuple[LogReading, tuple[Failure, ...]]]:
    """Return what reads the logs of the given servers, and remembers where it was."""
    from stallwatch.logs.life import Follower  # noqa: PLC0415 whoever only looks at readings does not load it

    followers: dict[str, Follower] = {}

    def read(targets: list[dict[str, Any]], skip: frozenset[str]) -> tuple[LogReading, tuple[Failure, ...]]:
        now = clock()
        for gone in followers.keys() - {wanted["server"] for wanted in targets}:
            followers.pop(gone).close()

        def follow(wanted: Mapping[str, Any]) -> Log:
            follower = followers.get(wanted["server"]) or Follower(wanted["engine"])
            followers[wanted["server"]] = follower
            return _log(wanted, follower, now)

        logs, failures = each_of(NAME, targets, skip, note, follow)
        dropped = sum(follower.take_dropped() for follower in followers.values())
        return LogReading(now.monotonic, logs, dropped=dropped), failures

    return read


def each_of(
    name: str,
    targets: Iterable[Mapping[str, Any]],
    skip: Collection[str],
    note: Callable[[str], None],
    read: Callable[[Mapping[str, Any]], T],
) -> tuple[tuple[T, ...], tuple[Failure, ...]]:
    """Return what is read of each target's log, noted before, and why one is missing; one in quarantine is left out."""
    found, failures = [], []
    for wanted in targets:
        what = f"log {wanted['path']}"
        if what in skip:
            failures.append(Failure(name, "quarantined", what, wanted["server"]))
            continue
        note(what)
        try:
            found.append(read(wanted))
        except OSError as error:
            failures.append(Failure(name, _reason(error), what, wanted["server"]))
    return tuple(found), tuple(failures)


def _log(wanted: Mapping[str, Any], follower: "Follower", now: Moment) -> Log:
    born = None if wanted["started"] is None else now.monotonic - (now.boottime - wanted["started"])
    life = follower.look(wanted["path"], wanted["incarnation"], born, now, wanted["root"])
    told = told_by(life, wanted["server"], wanted["path"], follower.last_write, follower.version)
    return replace(
        told,
        size_bytes=follower.size,
        lines=dict(follower.lines),
        errors=dict(follower.errors),
        rotations=follower.rotations,
        skipped_bytes=follower.skipped_bytes,
    )


def told_by(life: "Life", server: str, path: str, last_write: float, version: str) -> Log:
    """Return what a log tells of this life of its server, with nothing counted in the file itself."""
    return Log(
        server=server,
        path=path,
        size_bytes=0,
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
        engine_version=version,
        lines={},
        errors={},
        rotations=0,
        skipped_bytes=0,
        step_wait=life.step_wait,
    )


def families(readings: Sequence[LogReading], moment: Moment) -> Iterable[Family]:
    """State the metric families of the logs."""
    logs = [log for reading in readings for log in reading.logs]

    def family(name: str, text: str, kind: str, value: Callable[[Log], float | None]) -> Family:
        samples = tuple(((log.server,), known) for log in logs if (known := value(log)) is not None)
        return Family(f"stallwatch_log_{name}", text, kind, ("server",), samples)

    def unix(time: float | None) -> float | None:
        return None if time is None else moment.unix_of(time)

    yield family("size_bytes", "Size of the log file.", "gauge", lambda log: log.size_bytes)
    text = "When the log last grew, with whatever line."
    yield family("last_write_timestamp_seconds", text, "gauge", lambda log: unix(log.last_write))
    text = "When the log last had a line that only a server that gets on writes."
    yield family("last_progress_timestamp_seconds", text, "gauge", lambda log: unix(log.last_progress))
    text = "Time since the last line that shows progress; absent while this life of the server has written none."
    yield family("staleness_seconds", text, "gauge", lambda log: _since(log.last_progress, moment))
    text = "Rotations and truncations that were followed."
    yield family("rotations_total", text, "counter", lambda log: log.rotations)
    text = "Bytes left out because the reader was too far behind."
    yield family("skipped_bytes_total", text, "counter", lambda log: log.skipped_bytes)
    text = f"Lines read, by kind: {', '.join(KINDS)}; a heartbeat is no progress, such as the batch of a probe."
    yield _by_kind("lines", text, {log.server: log.lines for log in logs})
    text = f"Lines that say what failed, by kind: {', '.join(ERROR_KINDS)}; 0 for those not seen."
    yield _by_kind("errors", text, {log.server: log.errors for log in logs})


def _by_kind(what: str, text: str, counts: Mapping[str, Mapping[str, int]]) -> Family:
    samples = tuple(((server, kind), float(count)) for server, kinds in counts.items() for kind, count in kinds.items())
    return Family(f"stallwatch_log_{what}_total", text, "counter", ("server", "kind"), samples)


def _since(time: float | None, moment: Moment) -> float | None:
    return None if time is None else max(0.0, moment.monotonic - time)


def _reason(error: OSError) -> str:
    """Return the word for why a log cannot be read."""
    if isinstance(error, NotRegularFileError):
        return "not_a_regular_file"
    if error.errno in _REASONS:
        return _REASONS[error.errno]
    known = {FileNotFoundError: "not_found", PermissionError: "permission_denied", IsADirectoryError: "is_a_directory"}
    return known.get(type(error), "io_error")
