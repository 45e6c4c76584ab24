"""What do an engine's own metrics say of the work of each data-parallel rank?

The names of all versions stand side by side: a version has one or the other. Several schedulers may tell of one rank
(its tensor- and pipeline-parallel ones, all of which publish with `--enable-metrics-for-all-schedulers`): they tell the
same, so the largest counts. Other labels split the work (model, priority, streaming): those are added up.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stallwatch.engines.samples import Sample, pattern_of, samples_of

MOST_RANKS = 256
WHOLE = ""  # the rank of what is counted for all data-parallel ranks together

_RANK = re.compile(r"|[0-9]{1,5}")  # a label of a stranger is published only where it can be nothing else


@dataclass(frozen=True, slots=True)
class Names:
    """The metric names of one engine, without the prefix.

    Token counters go by the kind that they count, empty where their label `mode` names it. The `finished` ones only
    move when a request ends, and are read where there are no `live` ones. A turning scheduler loop moves its `beats`.
    """

    prefix: str
    rank_label: str
    running: tuple[str, ...]
    queued: tuple[str, ...]
    paused: tuple[str, ...] = ()
    live: Mapping[str, str] = field(default_factory=dict)
    modes: tuple[str, ...] = ()
    finished: Mapping[str, str] = field(default_factory=dict)
    beats: tuple[str, ...] = ()

    @property
    def pattern(self) -> re.Pattern[bytes]:
        """Find the samples of these names; the `re` module remembers what it has compiled."""
        return pattern_of(
            self.prefix, (*self.running, *self.queued, *self.paused, *self.live, *self.finished, *self.beats)
        )


NAMES = {
    "sglang": Names(
        prefix="sglang",
        rank_label="dp_rank",
        running=("num_running_reqs",),
        # num_decode_host_receive_queue_reqs is a part of the transfer queue, and would count twice
        queued=(
            "num_queue_reqs",
            "num_grammar_queue_reqs",
            "num_prefill_bootstrap_queue_reqs",
            "num_prefill_prealloc_queue_reqs",
            "num_prefill_inflight_queue_reqs",
            "num_prefill_infight_queue_reqs",
            "num_decode_prealloc_queue_reqs",
            "num_decode_transfer_queue_reqs",
        ),
        paused=("num_paused_reqs",),
        live={"realtime_tokens_total": ""},
        modes=("prefill_compute", "prefill_cache", "decode"),
        finished={"prompt_tokens_total": "prompt", "generation_tokens_total": "generation"},
        beats=("scheduler_process_cpu_seconds_total", "scheduler_idle_seconds_total", "scheduler_stage_seconds_total"),
    ),
    "vllm": Names(
        prefix="vllm",
        rank_label="engine",
        running=("num_requests_running",),
        queued=("num_requests_waiting", "num_requests_swapped"),
        live={"prompt_tokens_total": "prompt", "generation_tokens_total": "generation"},
    ),
}


@dataclass(frozen=True, slots=True)
class RankMetrics:
    """What one rank's metrics say; `beats` holds one growing number per scheduler of the rank that publishes any."""

    dp_rank: str
    running: float | None
    queued: float | None
    paused: float | None
    tokens: dict[str, float]
    live: bool
    beats: dict[str, float]


@dataclass(slots=True)
class _Rows:
    """The values of one metric for one rank: by scheduler, by what splits the work, by priority."""

    schedulers: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)

    def add(self, scheduler: str, work: str, priority: str, value: float) -> None:
        self.schedulers.setdefault(scheduler, {}).setdefault(work, {})[priority] = value

    def counts(self) -> dict[str, float]:
        """Add up what each scheduler counts, over all priorities."""
        return {
            scheduler: sum(sum(priorities.values()) for priorities in works.values())
            for scheduler, works in self.schedulers.items()
        }

    def gauge(self) -> float:
        """Return the present total: SGLang states it under the empty priority, beside one gauge per priority."""
        return max(
            sum(priorities.get("", sum(priorities.values())) for priorities in works.values())
            for works in self.schedulers.values()
        )


def ranks_of(page: bytes, names: Names) -> tuple[tuple[RankMetrics, ...], int]:
    """Read a page, rank by rank; none where none of the names is there, ValueError where nothing can be parsed.

    With them comes how many samples were left out, of ranks that are too many or are no numbers.
    """
    samples = samples_of(page, names.pattern)
    live = any(sample.name in names.live for sample in samples)
    ranks, dropped = _by_rank(samples, names)
    whole = ranks.pop(WHOLE, {})
    if not ranks and whole:
        ranks["0"] = whole
    elif not live and any(name in names.finished for name, _ in whole):
        ranks[WHOLE] = {key: rows for key, rows in whole.items() if key[0] in names.finished}
    return tuple(_rank(rank, ranks[rank], names, live=live) for rank in sorted(ranks, key=_order)), dropped


def _by_rank(samples: Iterable[Sample], names: Names) -> tuple[dict[str, dict[tuple[str, str], _Rows]], int]:
    ranks: dict[str, dict[tuple[str, str], _Rows]] = {}
    dropped = 0
    for sample in samples:
        labels = dict(sample.labels)
        rank = labels.pop(names.rank_label, WHOLE)
        if not _RANK.fullmatch(rank) or (rank not in ranks and len(ranks) >= MOST_RANKS):
            dropped += 1
            continue
        mode = labels.pop("mode", "") if names.live.get(sample.name) == "" else ""
        priority = labels.pop("priority", "")
        scheduler = {name: labels.pop(name) for name in list(labels) if name == "pid" or name.endswith("_rank")}
        rows = ranks.setdefault(rank, defaultdict(_Rows))[sample.name, mode]
        rows.add(_joined(scheduler), _joined(labels), priority, sample.value)
    return ranks, dropped


def _rank(rank: str, rows: Mapping[tuple[str, str], _Rows], names: Names, *, live: bool) -> RankMetrics:
    def gauge(group: Iterable[str]) -> float | None:
        values = [rows[name, ""].gauge() for name in group if (name, "") in rows]
        return sum(values) if values else None

    tokens = {}
    for (name, mode), of_kind in rows.items():
        kind = (names.live if live else names.finished).get(name)
        kind = mode if kind == "" and mode in names.modes else kind
        if kind:
            tokens[kind] = max(of_kind.counts().values())
    beats: dict[str, float] = defaultdict(float)
    for name in names.beats:
        for scheduler, count in rows[name, ""].counts().items() if (name, "") in rows else ():
            beats[scheduler] += count
    return RankMetrics(rank, gauge(names.running), gauge(names.queued), gauge(names.paused), tokens, live, dict(beats))


def _joined(labels: Mapping[str, str]) -> str:
    return "\n".join(f"{name}={labels[name]!r}" for name in sorted(labels))


def _order(rank: str) -> tuple[int, str]:
    return (len(rank), rank)
