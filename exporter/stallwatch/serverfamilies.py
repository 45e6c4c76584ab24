"""What is said of each server as a whole, beside what the single collectors say?"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from stallwatch.collectors.engine import EngineReading
from stallwatch.collectors.gpu import GpuReading
from stallwatch.collectors.health import HealthReading
from stallwatch.collectors.log import LogReading
from stallwatch.collectors.process import ProcessReading
from stallwatch.collectors.socket import SocketReading
from stallwatch.engines.meeting import group_of
from stallwatch.judging.serving import OWED
from stallwatch.lives import LOOP_LIVES, LOOP_SECONDS
from stallwatch.past import Past
from stallwatch.signals import COLLECTORS
from stallwatch.snapshot import PHASES, Family, Server
from stallwatch.tracks.limits import SIGNALS
from stallwatch.verdict import SIGNATURES, VERDICTS
from stallwatch.view import View

INFO_LABELS = (
    "server",
    "engine",
    "engine_version",
    "model",
    "port",
    "nnodes",
    "node_rank",
    "group",
    "tp_size",
    "pp_size",
    "dp_size",
    "container_id",
    "pod_uid",
)
Samples = Iterator[tuple[tuple[str, ...], float]]


def server_families(view: View) -> Iterable[Family]:
    """Yield the families of all servers, from the snapshot and what history makes of it."""
    text = "1 for every server of this node, with what its command line says; group is where several nodes meet."
    yield _gauge("server_info", text, INFO_LABELS, _info(view))
    text = "Nodes that the server spans, for those of several nodes, crashed ones included; group is the same on each."
    yield _gauge("server_group_nodes", text, ("server", "group", "node_rank"), _group_nodes(view.pasts))
    yield from _process_counts(view)
    yield from _verdicts(view)
    # Of a server that has crashed only the tombstone is told: no phase, no ages, nothing owed.
    living = {name: past for name, past in view.pasts.items() if past.ending.gone_since is None}
    yield from _phases(view, living)
    yield from _movement(view, living)
    yield from _lives(view)
    yield from _gpus(living)
    help_text = "1 when this signal of the server can be read, 0 when not."
    yield _gauge("signal_success", help_text, ("server", "signal"), _signals(view))


def _gauge(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Family:
    return Family(f"stallwatch_{name}", text, "gauge", labels, tuple(samples))


def _info(view: View) -> Samples:
    logs = view.snapshot.get(LogReading)
    versions = {log.server: log.engine_version for log in logs.logs} if logs else {}
    for server in view.snapshot.servers:
        launch = server.launch
        version = server.version or versions.get(server.name, "")
        sizes = (launch.tp_size, launch.pp_size, launch.dp_size)
        group = group_of(launch)
        port = "" if launch.port is None else str(launch.port)
        place = (str(launch.nnodes), str(launch.node_rank), group)
        known = (server.name, server.engine, version, launch.model, port, *place, *map(str, sizes))
        yield (*known, server.container_id, server.pod_uid), 1.0


def _group_nodes(pasts: Mapping[str, Past]) -> Samples:
    for name, past in pasts.items():
        launch = past.server.launch
        if group := group_of(launch):
            yield (name, group, str(launch.node_rank)), float(launch.nnodes)


def _process_counts(view: View) -> Iterable[Family]:
    servers = view.snapshot.servers
    labels = ("server", "role")
    yield _gauge(
        "server_processes", "Processes of the server that exist; a zombie does not count.", labels, _present(view)
    )
    expected = (
        ((server.name, "scheduler"), float(server.expected_schedulers))
        for server in servers
        if server.expected_schedulers is not None
    )
    yield _gauge("server_expected_processes", "Schedulers that its flags call for on this node.", labels, expected)


def _present(view: View) -> Samples:
    reading = view.snapshot.get(ProcessReading)
    if reading is None:
        return
    counts = Counter((sample.server, sample.role) for sample in reading.processes if sample.state != "Z")
    for server in view.snapshot.servers:
        for role in sorted({"scheduler"} | {process.role for process in server.processes}):
            yield (server.name, role), float(counts[server.name, role])


def _verdicts(view: View) -> Iterable[Family]:
    states = (((name, state), float(v.state == state)) for name, v in view.verdicts.items() for state in VERDICTS)
    text = f"What is judged of the server: 1 for the one that holds of {', '.join(VERDICTS)}."
    yield _gauge("server_verdict", text, ("server", "verdict"), states)
    signatures = (
        ((name, word), float(v.signature == word)) for name, v in view.verdicts.items() for word in SIGNATURES
    )
    text = "What kind of hang, or of what looks like one: 1 for the signature that holds; all 0 where none does."
    yield _gauge("server_signature", text, ("server", "signature"), signatures)
    since = (((name,), _time(v.since)) for name, v in view.verdicts.items())
    text = "When the verdict began; of a stall, the last movement."
    yield _gauge("server_verdict_start_timestamp_seconds", text, ("server",), since)


def _lives(view: View) -> Iterable[Family]:
    pasts = view.pasts.items()
    restarts = tuple(((name,), float(past.ending.restarts)) for name, past in pasts)
    text = "Lives of the server under this name that began after the first one seen."
    yield Family("stallwatch_server_restarts_total", text, "counter", ("server",), restarts)
    looping = (((name,), float(past.ending.crash_looping)) for name, past in pasts)
    text = f"1 when it was started {LOOP_LIVES} times in {LOOP_SECONDS / 60:g} minutes without getting ready."
    yield _gauge("server_crash_looping", text, ("server",), looping)
    seconds = tuple(((name,), value) for name, value in view.not_ready_seconds.items() if name in view.pasts)
    text = "Time it was seen not ready, over all its lives."
    yield Family("stallwatch_server_not_ready_seconds_total", text, "counter", ("server",), seconds)
    pending = (((name,), past.pending) for name, past in pasts if past.pending is not None)
    text = "Requests that run or wait, by the engine's own metrics; absent when unknown."
    yield _gauge("server_pending_requests", text, ("server",), pending)


def _phases(view: View, pasts: Mapping[str, Past]) -> Iterable[Family]:
    moment = view.snapshot.moment
    known = [(name, past) for name, past in pasts.items() if past.phase is not None]
    one_hot = (((name, phase), float(past.phase == phase)) for name, past in known for phase in PHASES)
    text = f"How far the server is: 1 for the one that holds of {', '.join(PHASES)}."
    yield _gauge("server_phase", text, ("server", "phase"), one_hot)
    since = (((name,), _time(moment.unix_of(past.phase_since))) for name, past in known if past.phase_since is not None)
    yield _gauge("server_phase_start_timestamp_seconds", "When its phase began.", ("server",), since)
    progress = (((name,), past.progress) for name, past in known if past.progress is not None)
    yield _gauge(
        "server_phase_progress_ratio", "How far its phase is, where the log has a progress bar.", ("server",), progress
    )
    text = "The furthest phase of each rank, as its place in the list of phases, from 0."
    yield _gauge("server_rank_phase", text, ("server", "rank"), _rank_phases(view))
    verdicts = {name: view.verdicts[name].state for name in pasts if name in view.verdicts}
    idle = (((name,), float(state == "idle")) for name, state in verdicts.items() if state != "unknown")
    text = "1 when the verdict is idle, 0 when it is another one, absent when it is unknown."
    yield _gauge("server_idle", text, ("server",), idle)
    limits = (((name, limit), value) for name, past in pasts.items() for limit, value in past.limits.items())
    text = "Limits in force now for this server: for how long it may stand still."
    yield _gauge("server_limit_seconds", text, ("server", "limit"), limits)


def _rank_phases(view: View) -> Samples:
    logs = view.snapshot.get(LogReading)
    for log in logs.logs if logs else ():
        for rank in log.ranks:
            yield (log.server, rank.rank), float(PHASES.index(rank.phase))


def _movement(view: View, pasts: Mapping[str, Past]) -> Iterable[Family]:
    moment = view.snapshot.moment
    moved = (
        ((name, signal), _time(moment.unix_of(at))) for name, past in pasts.items() for signal, at in past.moved.items()
    )
    text = (
        f"When this signal last moved: {', '.join(SIGNALS[None])}; where it never did, the first sight of the server."
    )
    yield _gauge("server_last_movement_timestamp_seconds", text, ("server", "signal"), moved)
    owed = (
        ((name, reason), _time(moment.unix_of(at)))
        for name, past in pasts.items()
        for reason, at in _owed(past).items()
    )
    text = f"Since when something is owed by the server, by reason: {', '.join(OWED)}; absent while nothing is."
    yield _gauge("server_demand_since_timestamp_seconds", text, ("server", "reason"), owed)
    busy = (
        ((name,), _time(moment.unix_of(past.gpus.busy_at)))
        for name, past in pasts.items()
        if past.gpus.busy_at is not None
    )
    text = "When any GPU of the server was last at or above 5 %."
    yield _gauge("server_gpu_last_busy_timestamp_seconds", text, ("server",), busy)


def _owed(past: Past) -> dict[str, float]:
    """Return what is owed, since when: a start that waits on purpose owes nothing, an answered probe begins anew."""
    if past.waiting:
        return {}
    cleared = past.cleared_at
    return {
        reason: since if reason == "not_ready" or cleared is None else max(since, cleared)
        for reason, since in past.demand_since.items()
    }


def _gpus(pasts: Mapping[str, Past]) -> Iterable[Family]:
    places = (
        ((name, str(place.index), place.uuid, place.rank), 1.0)
        for name, past in pasts.items()
        for place in past.server.gpus
        if place.uuid
    )
    labels = ("server", "gpu", "uuid", "rank")
    yield _gauge("server_gpu_info", "1 for every GPU that the server holds, lost ones included.", labels, places)
    for name, text, field in (
        ("gpu_utilization_min_ratio", "Utilization of its least busy GPU.", "utilization_min"),
        ("gpu_utilization_max_ratio", "Utilization of its busiest GPU.", "utilization_max"),
        ("gpu_memory_used_min_bytes", "Memory used on its emptiest GPU.", "memory_min"),
        ("gpu_memory_used_max_bytes", "Memory used on its fullest GPU.", "memory_max"),
        (
            "memory_loaded",
            "1 when a GPU of the server holds weights (3 GiB, or 5 % of the GPU), 0 when none does.",
            "loaded",
        ),
    ):
        values = ((server, getattr(past.gpus.holding, field)) for server, past in pasts.items())
        samples = (((server,), float(value)) for server, value in values if value is not None)
        yield _gauge(f"server_{name}", text, ("server",), samples)


def _signals(view: View) -> Samples:
    snapshot = view.snapshot
    logs, processes, gpus = snapshot.get(LogReading), snapshot.get(ProcessReading), snapshot.get(GpuReading)
    sockets = snapshot.get(SocketReading)
    present = {
        "gpu": {gpu.uuid for gpu in gpus.gpus if not gpu.lost} if gpus else set(),
        "process": {sample.server for sample in processes.processes} if processes else set(),
        "log": {log.server for log in logs.logs} if logs else set(),
        "socket": {found.server for found in sockets.sockets} if sockets else set(),
        "health": {reading.server for reading in snapshot.all(HealthReading)},
        "engine": {reading.server for reading in snapshot.all(EngineReading)},
    }
    collected = {state.collector for state in view.lanes}
    for server in snapshot.servers:
        for collector in COLLECTORS:
            if collector.name in collected and collector.name in present:
                yield (server.name, collector.name), float(_shows(server, collector.name, present[collector.name]))


def _shows(server: Server, signal: str, present: set[str]) -> bool:
    if signal == "gpu":
        return any(place.uuid in present for place in server.gpus)
    return server.name in present


def _time(unix: float) -> float:
    return round(unix, 3)
