"""What is published at one moment? The snapshot, what is known and judged of it, and how the exporter itself fares."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stallwatch.expense import Expense
from stallwatch.lanes import LaneState
from stallwatch.past import Past
from stallwatch.snapshot import Snapshot
from stallwatch.verdict import Verdict
from stallwatch.workers import WorkerState

IN_TROUBLE = frozenset({"suspect", "stalled", "dead", "unknown"})
JUST_BEFORE = 1800.0
"""A verdict may change within one incident, so that its evidence was gathered so long before it began."""


def stands_still(state: str) -> bool:
    """Say whether a server of this verdict has not moved for a while."""
    return state in {"suspect", "stalled"}


@dataclass(frozen=True, slots=True)
class Bundle:
    """What is kept of one incident: the name of its directory, whose it is, and when it was gathered (Unix seconds)."""

    name: str
    server: str
    at: float
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """The evidence that is kept: how many bundles, the latest of each server, and what could not be kept, by reason."""

    bundles: int = 0
    latest: Mapping[str, Bundle] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class View:
    """All that is published at one moment: the snapshot, what is known and judged of it, how the exporter fares."""

    snapshot: Snapshot
    pasts: Mapping[str, Past]
    lanes: tuple[LaneState, ...]
    workers: tuple[WorkerState, ...]
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    not_ready_seconds: Mapping[str, float] = field(default_factory=dict)
    expense: Expense | None = None  # of this process
    gpu_released_until: float | None = None  # monotonic
    kept: Kept | None = None  # None where no evidence is kept

    def evidence_of(self, server: str) -> Bundle | None:
        """Return what is kept of the incident that a server is in, None where that is nothing or it is well."""
        bundle, verdict = self.kept.latest.get(server) if self.kept else None, self.verdicts.get(server)
        if bundle is None or verdict is None or verdict.state not in IN_TROUBLE:
            return None
        return bundle if bundle.at >= verdict.since - JUST_BEFORE else None
