"""What has its log told of this life of a server?

A life begins when the server is started. Phases only go forward in it, for the server and for each rank: a draft model
loads weights of its own after the graphs of the first one were captured, and that is no way back.

The ages of what a file held before us come from its modification time and from the differences between the times that
its lines state, so that no time zone matters; from there on, from the moments at which new lines were seen.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace

from stallwatch.logs.journal import Journal
from stallwatch.logs.markers import ERROR_KINDS, KINDS, SERVING, STEP_WAIT
from stallwatch.logs.place import JOURNAL
from stallwatch.logs.rank_phase import RankPhase
from stallwatch.logs.scan import Mark, Scanner
from stallwatch.logs.tail import Tail
from stallwatch.snapshot import PHASES, Moment

MOST_RANKS = 256
CLOCK_SLACK = 1.0  # stated times are whole seconds


@dataclass(slots=True)
class Life:
    """What the log has told of one life of the server."""

    phase: str | None = None
    phase_since: float | None = None
    progress: float | None = None
    last_progress: float | None = None
    last_heartbeat: float | None = None
    step_wait: float | None = None  # when an engine core last said that it still waits for a step of its workers
    last_marker: str = ""
    last_marker_rank: str = ""
    waiting: str = ""
    ranks: dict[str, RankPhase] = field(default_factory=dict)
    dropped: int = 0  # lines of ranks beyond what a server can have

    def take(self, mark: Mark, at: float) -> None:
        """Note what one telling line means."""
        marker = mark.marker
        if marker.kind == "progress":
            self.last_progress, self.waiting = at, ""
            self.last_marker, self.last_marker_rank = marker.word, mark.rank
        elif marker.kind == "heartbeat":
            self.last_heartbeat = at
            self.step_wait = at if marker.word == STEP_WAIT else self.step_wait
        self.waiting = marker.waiting or self.waiting
        phase = marker.phase or ("ready" if marker.word in SERVING and self.phase != "stopping" else "")
        if phase:
            self._reach(phase, mark, at)

    def _reach(self, phase: str, mark: Mark, at: float) -> None:
        if _further(phase, self.phase):
            self.phase, self.phase_since, self.progress = phase, at, None
        if mark.ratio is not None and phase == self.phase:
            self.progress = mark.ratio
        known = self.ranks.get(mark.rank)
        if not mark.rank or not mark.marker.of_each_rank or not _further(phase, known.phase if known else None):
            return
        if known is None and len(self.ranks) >= MOST_RANKS:
            self.dropped += 1
        else:
            self.ranks[mark.rank] = RankPhase(mark.rank, phase, at)

    def dated(self, latest: float, written: float) -> "Life":
        """Return this life in monotonic time, where the log's own clock said `latest` when it was last written."""

        def moment(time: float) -> float:
            return written - max(0.0, latest - time)

        return replace(
            self,
            phase_since=None if self.phase_since is None else moment(self.phase_since),
            last_progress=None if self.last_progress is None else moment(self.last_progress),
            last_heartbeat=None if self.last_heartbeat is None else moment(self.last_heartbeat),
            step_wait=None if self.step_wait is None else moment(self.step_wait),
            ranks={name: replace(rank, since=moment(rank.since)) for name, rank in self.ranks.items()},
        )

    def ranks_in_order(self) -> tuple[RankPhase, ...]:
        """Return the ranks that have told of themselves, TP2 before TP10."""
        return tuple(
            sorted(self.ranks.values(), key=lambda rank: [int(number) for number in re.findall(r"\d+", rank.rank)])
        )


class Follower:
    """Follows the log of one server over rotations and lives."""

    def __init__(self, engine: str) -> None:
        self._scanner = Scanner(engine)
        self._tail: Tail | Journal | None = None
        self._path = self._root = self._incarnation = ""
        self._life = Life()
        self._launched: float | None = None  # when a line that begins a life was seen
        self._old = True  # what is read was there before us, and is dated by the clock of the log
        self._clock = -math.inf  # what that clock said last
        self._offered = b""
        self.last_write = 0.0
        self._written = False  # whether the line above is known
        self._rotations = self._skipped = 0  # of paths before
        self.version = ""
        self.lines: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self.errors: Counter[str] = Counter(dict.fromkeys(ERROR_KINDS, 0))

    @property
    def size(self) -> int:
        """Return the size of the file."""
        return self._tail.size if self._tail else 0

    @property
    def rotations(self) -> int:
        """Return how often the file was rotated or truncated."""
        return self._rotations + (self._tail.rotations if self._tail else 0)

    @property
    def skipped_bytes(self) -> int:
        """Return how many bytes were left out since the reader was too far behind."""
        return self._skipped + (self._tail.skipped_bytes if self._tail else 0)

    def look(self, path: str, incarnation: str, born: float | None, now: Moment, root: str = "") -> Life:
        """Read what is new of this path and return what is known; raise OSError where there is nothing to read.

        `born` is when this incarnation of the server was started (monotonic), None where that is not known. `root` is
        what the path begins with and must not lead out of, see `Place`.
        """
        tail = self._follow(path, root, incarnation)
        self._notice_restart(incarnation, born)
        try:
            for lines in tail.look():
                self._take(lines, now.monotonic)
        except FileNotFoundError:
            self._old = self._old and isinstance(tail, Journal)  # what appears in a file from now on is new
            raise
        if (
            isinstance(tail, Journal)
            and born is not None
            and now.monotonic - _age(tail.modified, now) < born - CLOCK_SLACK
        ):
            raise FileNotFoundError("the journal shows us nothing of this life")  # it may write elsewhere by now
        self._offer(tail.unfinished, now.monotonic)
        written = now.monotonic
        if self._old or not self._written:
            written -= _age(tail.modified, now)
        if tail.grew or not self._written:
            self.last_write, self._written = written, True
        life = self._dated_life(written, born) if self._old else self._life
        if self._old and not tail.behind:
            self._life, self._old = life, False
        return life

    def take_dropped(self) -> int:
        """Return how many lines were left out of this life since the last call, as their ranks were too many."""
        dropped, self._life.dropped = self._life.dropped, 0
        return dropped

    def close(self) -> None:
        """Close the file."""
        if self._tail:
            self._tail.close()

    def _follow(self, path: str, root: str, incarnation: str) -> Tail | Journal:
        if self._tail and (path, root) == (self._path, self._root):
            return self._tail
        if self._tail and incarnation == self._incarnation and self._tail.goes_on_at(path, root):
            self._path, self._root = path, root  # discovery looked while it was renamed
            return self._tail
        if self._tail:
            self._tail.close()
            self._rotations += self._tail.rotations
            self._skipped += self._tail.skipped_bytes
            self._begin_life()
        self._tail = Journal(path) if path.startswith(JOURNAL) else Tail(path, root=root)
        self._path, self._root = path, root
        self._old, self._clock, self._offered, self._written = True, -math.inf, b"", False
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
        self.lines.update(found.lines)
        self.errors.update(found.errors)
        self.version = found.version or self.version
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
        for mark in self._scanner.scan(unfinished + b"...\n", dated=self._old).marks:  # no line ends with what is cut
            if mark.marker.phase and not mark.marker.begins_life:
                self._life.take(mark, self._time_of(mark, now))


def _age(modified: float, now: Moment) -> float:
    """Return how long ago the file was written; a time in the future or before 1970 tells nothing, so it is now."""
    return max(0.0, now.unix - modified) if modified > 0 else 0.0


def _further(phase: str, than: str | None) -> bool:
    return than is None or PHASES.index(phase) > PHASES.index(than)
