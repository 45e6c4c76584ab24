"""What is known of one server's past when it is judged? Plain facts, all frozen; times are monotonic, None: unknown."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stallwatch.collectors.health import Probe
from stallwatch.placement import Holding
from stallwatch.sections import Limits
from stallwatch.snapshot import Server

DEFAULT_LIMITS = Limits().named()
NOTHING = Holding()
COLD, HOT, LOW_POWER = 0.05, 0.90, 0.30


@dataclass(frozen=True, slots=True)
class RankPast:
    """One process that the server cannot do without; `cpu` in cores, over the last seconds."""

    process: str
    rank: str = ""
    role: str = "scheduler"
    state: str = ""
    cpu: float | None = None
    phase: str | None = None
    stopped_since: float | None = None  # state T
    missing_since: float | None = None  # gone, or a zombie, after it was seen
    wchan: str | None = None  # the function of the kernel that its main thread sleeps in
    beat: float | None = None  # when its loop was last seen to turn; None where it never was, or cannot be seen now


@dataclass(frozen=True, slots=True)
class ReplicaPast:
    """One data-parallel replica, by the engine's own metrics."""

    dp_rank: str
    running: float | None = None
    queued: float | None = None
    pending_since: float | None = None
    tokens_at: float | None = None  # when its token counters last moved; None where they only tick as requests end
    finished_at: float | None = None  # when counters that only tick as requests end last did
    heartbeat: float | None = None
    paused: float | None = None  # requests that wait for whoever paused the engine


@dataclass(frozen=True, slots=True)
class GpusPast:
    """The GPUs of the server: what they show now, and since when they have shown it."""

    holding: Holding = NOTHING
    power_ratio: float | None = None  # of the limit, the highest of all
    busy_at: float | None = None
    hot_since: float | None = None  # all at or above 90 %
    cold_since: float | None = None  # all below 5 %
    split_since: float | None = None  # some at or above 90 %, others below 10 %
    lost_since: float | None = None
    faults: tuple[str, ...] = ()  # what the driver says must be done about them
    worked: bool = False  # may have been computing when last seen
    worked_at: float | None = None  # when they last may have been

    @property
    def may_compute(self) -> bool:
        """Tell whether they may be computing: busy, and at more than idle power or at a power that nobody knows.

        Cold GPUs do not compute, whatever they draw: small ones idle at 40 % of their limit.
        """
        busiest = self.holding.utilization_max
        if busiest is None and self.power_ratio is None:
            return self.worked
        if busiest is not None and busiest < COLD:
            return False
        if self.power_ratio is not None:
            return self.power_ratio > LOW_POWER
        # Some at work and some at rest is no computing together, so split ones need no power to be told.
        return self.split_since is None and (busiest or 0.0) >= HOT


@dataclass(frozen=True, slots=True)
class XidPast:
    """What the kernel told of a GPU of the server in this life of it: an error by its number, and when it last did."""

    gpu: int
    code: int
    at: float
    fault_at: float | None = None  # when it last meant that the GPU is broken


@dataclass(frozen=True, slots=True)
class BlockedPast:
    """A process that the kernel called hung: for how long by then, in seconds, and when it said so."""

    process: str
    seconds: float
    at: float


@dataclass(frozen=True, slots=True)
class Ending:
    """How a server went, and how its starts went before."""

    gone_since: float | None = None
    orderly: bool | None = None  # None: nothing tells
    launcher_gone_since: float | None = None
    restarts: int = 0
    crash_looping: bool = False


@dataclass(frozen=True, slots=True)
class Past:
    """All that a judgement of one server rests on."""

    server: Server
    first_seen: float
    started: float
    ready: bool | None = None
    phase: str | None = None
    phase_since: float | None = None
    progress: float | None = None
    marker: str = ""  # the last telling line of the log, and whose it was
    marker_rank: str = ""
    waiting: str = ""  # gated or sleeping: on purpose
    moved: Mapping[str, float] = field(default_factory=dict)  # of what can be read now
    vanished: Mapping[str, float] = field(default_factory=dict)  # the last stamps of what cannot be read any more
    demand_since: Mapping[str, float] = field(default_factory=dict)
    pending: float | None = None
    cleared_at: float | None = None
    probes: tuple[Probe, ...] = ()
    failing: tuple[str, ...] = ()  # paths that fail again and again
    ranks: tuple[RankPast, ...] = ()
    replicas: tuple[ReplicaPast, ...] = ()
    gpus: GpusPast = GpusPast()
    parts: Mapping[str, GpusPast] = field(default_factory=dict)  # by replica, where each has GPUs of its own
    xids: tuple[XidPast, ...] = ()
    blocked: tuple[BlockedPast, ...] = ()
    ending: Ending = Ending()
    readable: frozenset[str] = frozenset()
    missing: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def schedulers(self) -> tuple[RankPast, ...]:
        """Return the ranks that compute."""
        return tuple(rank for rank in self.ranks if rank.role == "scheduler")

    @property
    def stamps(self) -> dict[str, float]:
        """Return when each signal last moved, as far as it was ever seen: a gap in a signal is no standstill."""
        return {**self.vanished, **self.moved}

    def limit(self, name: str) -> float:
        """Return a limit that holds for this server."""
        return self.limits.get(name, DEFAULT_LIMITS[name])
