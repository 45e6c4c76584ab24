"""Server: is this one hung, and since when? Everything of one server over one time axis: a stall is all of it going flat."""

from collections.abc import Sequence

import servermore
from frame import (
    RUNBOOKS,
    THIS_NODE,
    THIS_SERVER,
    annotate,
    choose,
    choose_source,
    frame,
    lay_out,
    runbook,
)
from grafana_foundation_sdk.builders.dashboard import Dashboard, DashboardLink
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel
from parts import bands, coded, graph, limit_line, link, now, number, over_time, select, thresholds
from words import (
    GREY,
    PHASE_CODES,
    PHASE_WORDS,
    PROCESS_WORDS,
    READ_WORDS,
    RESULT_CODES,
    RESULT_WORDS,
    SIGNATURE_CODES,
    SIGNATURE_WORDS,
    STATE_CODES,
    VERDICT_CODES,
    VERDICT_WORDS,
)

from stallwatch.past import COLD, LOW_POWER

NO_SERVER = "No data because this server is not seen: it is not there, or its node is not scraped"
SEE = "see Signals above, and the Exporter dashboard"
NO_GPU = f"No data because no GPU of this server is read: {SEE}"
NO_PROCESS = f"No data because its processes are not read: {SEE}"
NO_LOG = f"No data because no log of it is read, or it has written no progress line in this life: {SEE}"
NO_HEALTH = f"No data because it is not probed (no port, or the health collector is off): {SEE}"
NO_ENGINE = f"No data because the engine's own metrics are not read (start it with --enable-metrics): {SEE}"
RANKS = 'process=~"scheduler.*|Worker.*|EngineCore.*"'


def dashboard() -> Dashboard:
    """Return the dashboard of one server."""
    text = (
        "One inference server over one time axis. A server that works moves in every panel; when it stalls, all of them"
        " go flat at the same moment and the ages begin to climb."
    )
    page = frame("stallwatch-server", "Server", text, "1h", "10s")
    page.with_variable(choose_source())
    page.with_variable(choose("job", "Job", "stallwatch_snapshot_timestamp_seconds", several=False))
    instance = ("stallwatch_snapshot_timestamp_seconds", 'job="$job"')
    page.with_variable(choose("instance", "Node", *instance, several=False))
    page.with_variable(choose("server", "Server", "stallwatch_server_verdict", *THIS_NODE, several=False))
    annotate(page, THIS_SERVER, THIS_SERVER)
    open_rows = [("Does it move?", [*_bands(), *_gpus(), *_processes(), *_ages(), *_health(), *_work()])]
    lay_out(page, _now(), open_rows, servermore.rows(one, node, held))
    return page


def one(metric: str, *matchers: str) -> str:
    """Return the selector of a metric of this server."""
    return select(metric, *THIS_SERVER, *matchers)


def node(metric: str, *matchers: str) -> str:
    """Return the selector of a metric of its node."""
    return select(metric, *THIS_NODE, *matchers)


def held(metric: str) -> str:
    """Return a metric of each GPU that this server holds, with the rank on it; a GPU may serve two servers."""
    return f"{one('stallwatch_server_gpu_info')} * ignoring (server, rank) group_left () {node(metric)}"


def age(metric: str, *labels: str) -> str:
    """Return how long ago a published time was, by the node's own clock."""
    snapshot = node("stallwatch_snapshot_timestamp_seconds")
    return f"{snapshot} - ignoring ({', '.join(('server', *labels))}) group_right () {one(metric)}"


def _now() -> Sequence[Builder[Panel]]:
    verdict = coded("stallwatch_server_verdict", "verdict", VERDICT_CODES, *THIS_SERVER)
    signature = coded("stallwatch_server_signature", "signature", SIGNATURE_CODES, *THIS_SERVER)
    phase = coded("stallwatch_server_phase", "phase", PHASE_CODES, *THIS_SERVER)
    empty = "No data: not seen"
    return [
        number(
            "Verdict",
            "What is judged of it now. Click for the runbook.",
            "none",
            empty,
            now(verdict, "verdict"),
            words=VERDICT_WORDS,
            links=_runbooks("Stalled", "Dead", "Slow", "Suspect", "Blind"),
        ),
        number(
            "Signature",
            "Which kind of hang it is, or of what looks like one. The runbook says what to look at by signature.",
            "none",
            empty,
            now(signature, "signature"),
            words=SIGNATURE_WORDS,
            links=_runbooks("Stalled", "Dead", "StartupStuck", "Silent", "CrashLooping"),
        ),
        number(
            "For",
            "How long this verdict has held; of a stall, how long ago it last moved.",
            "s",
            empty,
            now(age("stallwatch_server_verdict_start_timestamp_seconds")),
        ),
        number(
            "Phase", "How far its start is.", "none", "No data: no log read", now(phase, "phase"), words=PHASE_WORDS
        ),
        number(
            "Pending requests",
            "Requests that run or wait, by the engine's own metrics. They freeze when the scheduler hangs.",
            "none",
            "No data: engine not read",
            now(one("stallwatch_server_pending_requests")),
        ),
        number(
            "Schedulers missing",
            "How many schedulers its flags call for on this node and are not there.",
            "none",
            "No data: not known",
            now(f"{one('stallwatch_server_expected_processes')} - {one('stallwatch_server_processes')}"),
            steps=thresholds((None, GREY), (1, "red")),
        ),
    ]


def _runbooks(*names: str) -> Sequence[DashboardLink]:
    alerts = [f"InferenceServer{name}" for name in names]
    return [*(link(f"Runbook {alert}", runbook(alert)) for alert in alerts), link("All runbooks", RUNBOOKS)]


def _bands() -> Sequence[Builder[Panel]]:
    verdict = coded("stallwatch_server_verdict", "verdict", VERDICT_CODES, *THIS_SERVER)
    signature = coded("stallwatch_server_signature", "signature", SIGNATURE_CODES, *THIS_SERVER)
    phase = coded("stallwatch_server_phase", "phase", PHASE_CODES, *THIS_SERVER)
    queries = [over_time(verdict, "verdict"), over_time(signature, "signature"), over_time(phase, "phase")]
    return [
        bands(
            "Verdict, signature, phase",
            "What was judged of it, what kind of hang that was, and how far its start was. A gap: its node was not scraped.",
            NO_SERVER,
            queries,
            VERDICT_WORDS,
            by_query={"B": SIGNATURE_WORDS, "C": PHASE_WORDS},
            legend=False,
        ),
        bands(
            "Signals",
            "Which of its signals can be read. One that cannot be is absent below: its panel is empty, not calm.",
            NO_SERVER,
            [over_time(one("stallwatch_signal_success"), "{{signal}}")],
            READ_WORDS,
            legend=False,
        ),
    ]


def _gpus() -> Sequence[Builder[Panel]]:
    gpu = "GPU {{gpu}} {{rank}}"
    power = held("stallwatch_gpu_power_limit_watts")
    return [
        graph(
            "GPU utilization",
            "Share of the time in which a kernel ran, per GPU; below the dashed line it counts as not busy. 100 % is no"
            " proof of work: ranks that wait for each other in a collective show it too, at low power.",
            "percentunit",
            NO_GPU,
            [over_time(held("stallwatch_gpu_utilization_ratio"), gpu)],
            most=1,
            lines=thresholds((None, "transparent"), (COLD, "orange")),
        ),
        graph(
            "GPU memory",
            "Memory in use per GPU. It climbs while weights load and stays where it is afterwards, hung or not.",
            "bytes",
            NO_GPU,
            [over_time(held("stallwatch_gpu_memory_used_bytes"), gpu)],
        ),
        graph(
            "GPU power",
            "Power drawn per GPU. Full utilization below the lower dashed line is a spin: kernels that wait, not work.",
            "watt",
            NO_GPU,
            [
                over_time(held("stallwatch_gpu_power_watts"), gpu),
                over_time(f"min({power})", "limit"),
                over_time(f"{LOW_POWER} * min({power})", f"{LOW_POWER:.0%} of the limit"),
            ],
            overrides=[limit_line("/limit$/")],
        ),
    ]


def _processes() -> Sequence[Builder[Panel]]:
    cpu = f"rate({one('stallwatch_process_cpu_seconds_total', RANKS)}[$__rate_interval])"
    state = coded("stallwatch_process_state", "state", STATE_CODES, *THIS_SERVER)
    return [
        graph(
            "Scheduler CPU",
            "Cores that each rank uses. An idle scheduler spins at a whole core unless it was started with"
            " --sleep-on-idle, and a deadlocked one burns about 1 %: CPU alone is no movement.",
            "none",
            NO_PROCESS,
            [over_time(cpu, "{{process}}")],
        ),
        bands(
            "State of its processes",
            "State of the main thread of each process. All asleep for minutes while work is owed is a deadlock; one"
            " that is stopped or in the kernel for long is the culprit.",
            NO_PROCESS,
            [over_time(state, "{{process}}")],
            PROCESS_WORDS,
            height=6,
        ),
    ]


def _ages() -> Sequence[Builder[Panel]]:
    silent = one("stallwatch_server_limit_seconds", 'limit="silent"')
    limits = one("stallwatch_server_limit_seconds", 'limit=~"suspect|stalled|start_without_movement"')
    movement = age("stallwatch_server_last_movement_timestamp_seconds", "signal")
    return [
        graph(
            "Since the last progress line of the log",
            "Lines that only a server which gets on writes: no access lines, no heartbeats. A saw while it works, a ramp"
            " from the moment it stalls. Dashed: the limit of InferenceServerSilent.",
            "s",
            NO_LOG,
            [over_time(one("stallwatch_log_staleness_seconds"), "progress line"), over_time(silent, "limit {{limit}}")],
            overrides=[limit_line("/^limit/")],
        ),
        graph(
            "Since it last moved, by signal",
            "How long ago each signal last showed that it gets on; the lowest line counts. Dashed: the limits in force"
            " now for this server.",
            "s",
            NO_SERVER,
            [
                over_time(movement, "{{signal}}"),
                over_time(age("stallwatch_server_gpu_last_busy_timestamp_seconds"), "GPU busy"),
                over_time(age("stallwatch_engine_heartbeat_timestamp_seconds", "dp_rank"), "heartbeat {{dp_rank}}"),
                over_time(limits, "limit {{limit}}"),
            ],
            height=6,
            overrides=[limit_line("/^limit/")],
        ),
        graph(
            "Owed for",
            "Since when something is owed, by reason: it is not ready, requests are pending, its probe fails, or bytes"
            " wait in its socket. Nothing owed and nothing moving is idle; owed and nothing moving is a hang.",
            "s",
            f"No data because nothing is owed, or what would tell cannot be read: {SEE}",
            [over_time(age("stallwatch_server_demand_since_timestamp_seconds", "reason"), "{{reason}}")],
        ),
    ]


def _health() -> Sequence[Builder[Panel]]:
    result = coded("stallwatch_health_result", "result", RESULT_CODES, *THIS_SERVER)
    return [
        bands(
            "Health, by endpoint",
            "Outcome of the last probe. A good answer is no proof: /health can say 200 through a whole hang.",
            NO_HEALTH,
            [over_time(result, "{{path}}")],
            RESULT_WORDS,
            height=4,
        ),
        graph(
            "Health latency",
            "Time to the outcome, whatever it was. SGLang takes 1 s for a good answer and 20 s for a 503.",
            "s",
            NO_HEALTH,
            [over_time(one("stallwatch_health_latency_seconds"), "{{path}}")],
        ),
    ]


def _work() -> Sequence[Builder[Panel]]:
    tokens = f"rate({one('stallwatch_engine_tokens_total')}[$__rate_interval])"
    return [
        graph(
            "Tokens",
            "Tokens per second by kind and data-parallel rank, as the engine counts them. No tokens while requests run"
            " is the plainest sign of a hang.",
            "cps",
            NO_ENGINE,
            [over_time(tokens, "{{kind}} {{dp_rank}}")],
        ),
        graph(
            "Requests",
            "Requests that run and wait, by data-parallel rank, and connections to its port that it has not accepted."
            " The engine's numbers freeze in a hang.",
            "none",
            NO_ENGINE,
            [
                over_time(one("stallwatch_engine_requests_running"), "running {{dp_rank}}"),
                over_time(one("stallwatch_engine_requests_queued"), "waiting {{dp_rank}}"),
                over_time(one("stallwatch_socket_accept_queue"), "not accepted"),
            ],
        ),
    ]
