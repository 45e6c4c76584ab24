"""What is published at one moment? The snapshot, what is known and judged of it, and how the exporter itself fares."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stallwatch.expense import Expense
from stallwatch.lanes import LaneState
from stallwatch.past import Past
from stallwatch.snapshot import Snapshot
from stallwatch.verdict import Verdict
from stallwatch.workers import WorkerState


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
