"""What does an exporter answer, as far as a person is shown it? Checked, since any program may have taken the port.

What came with a later version has a default, so that an older exporter is understood too. Times are Unix seconds.
"""

import msgspec


class Gpu(msgspec.Struct):
    """One GPU that the server holds; memory in bytes, power in watts, None is what cannot be read."""

    index: float
    utilization: float | None = None
    memory_used: float | None = None
    power_watts: float | None = None
    lost: bool = False
    odd: list[str] = []


class Rank(msgspec.Struct):
    """One process that the server cannot do without, and the GPUs that it computes on."""

    process: str
    rank: str
    state: str
    cpu_cores: float | None
    phase: str | None
    pid: float | None = None
    wchan: str | None = None
    threads: float | None = None
    open_fds: float | None = None
    missing_since: float | None = None
    gpus: list[Gpu] = []
    odd: list[str] = []


class Gpus(msgspec.Struct):
    """The GPUs of the server of which no rank is known."""

    unplaced: list[Gpu] = []


class Probe(msgspec.Struct):
    """The last probe of one endpoint."""

    path: str
    result: str
    scope: str
    latency: float
    at: float
    status: float | None = None
    last_success: float | None = None
    consecutive_failures: float = 0


class Evidence(msgspec.Struct):
    """The bundle that is kept of the incident."""

    bundle: str
    gathered: float


class Entry(msgspec.Struct):
    """One server."""

    server: str
    verdict: str
    signature: str
    since: float
    reason: str
    missing: list[str]
    ranks: list[Rank]
    looks_like: str = ""
    first_seen: float | None = None
    phase: str | None = None
    phase_since: float | None = None
    progress: float | None = None
    marker: str = ""
    marker_rank: str = ""
    expected_schedulers: float | None = None
    processes: dict[str, int] | None = None
    last_movement: dict[str, float] = {}
    owed_since: dict[str, float] = {}
    gpus: Gpus = msgspec.field(default_factory=Gpus)
    health: list[Probe] = []
    evidence: Evidence | None = None


class Failure(msgspec.Struct):
    """Why something is missing."""

    collector: str
    server: str
    detail: str
    reason: str = ""


class Answer(msgspec.Struct):
    """All of it; a look of our own says how many seconds it took."""

    time: float
    servers: list[Entry]
    failures: list[Failure] = []
    gpu_released_until: float | None = None
    looked_for: float | None = None
