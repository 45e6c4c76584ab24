"""What has its log told of one life of a server?

A life begins when the server is started. Phases only go forward in it, for the server and for each rank: a draft model
loads weights of its own after the graphs of the first one were captured, and that is no way back.
"""

import re
from dataclasses import dataclass, field, replace

from stallwatch.markers import SERVING
from stallwatch.scan import Mark
from stallwatch.snapshot import PHASES


@dataclass(frozen=True, slots=True)
class RankPhase:
    """The furthest phase that one rank has told of, and since when (monotonic)."""

    rank: str
    phase: str
    since: float


@dataclass(slots=True)
class Life:
    """What the log has told of one life of the server."""

    phase: str | None = None
    phase_since: float | None = None
    progress: float | None = None
    last_progress: float | None = None
    last_heartbeat: float | None = None
    last_marker: str = ""
    last_marker_rank: str = ""
    waiting: str = ""
    ranks: dict[str, RankPhase] = field(default_factory=dict)

    def take(self, mark: Mark, at: float) -> None:
        """Note what one telling line means."""
        marker = mark.marker
        if marker.kind == "progress":
            self.last_progress, self.waiting = at, ""
            self.last_marker, self.last_marker_rank = marker.word, mark.rank
        elif marker.kind == "heartbeat":
            self.last_heartbeat = at
        self.waiting = marker.waiting or self.waiting
        phase = marker.phase or ("ready" if marker.word in SERVING and self.phase is None else "")
        if phase:
            self._reach(phase, mark, at)

    def _reach(self, phase: str, mark: Mark, at: float) -> None:
        if _further(phase, self.phase):
            self.phase, self.phase_since, self.progress = phase, at, None
        if mark.ratio is not None and phase == self.phase:
            self.progress = mark.ratio
        known = self.ranks.get(mark.rank)
        if mark.rank and mark.marker.of_each_rank and _further(phase, known.phase if known else None):
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
            ranks={name: replace(rank, since=moment(rank.since)) for name, rank in self.ranks.items()},
        )

    def ranks_in_order(self) -> tuple[RankPhase, ...]:
        """Return the ranks that have told of themselves, TP2 before TP10."""
        return tuple(
            sorted(self.ranks.values(), key=lambda rank: [int(number) for number in re.findall(r"\d+", rank.rank)])
        )


def _further(phase: str, than: str | None) -> bool:
    return than is None or PHASES.index(phase) > PHASES.index(than)
