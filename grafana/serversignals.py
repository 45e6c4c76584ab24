"""What does a server do, over time? Its GPUs, processes, log, health and work, the panels all as wide as the page."""

from collections.abc import Sequence

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from parts import bands, graph, limit_line, over_time, thresholds
from series import THIS_SERVER, age, among, coded, held, per_second, server
from stallwatch.past import COLD, LOW_POWER
from words import PROCESS_WORDS, RESULT_CODES, RESULT_WORDS, STATE_CODES

SEE = "see Signals, and the Exporter dashboard"
NO_GPU = f"No data because no GPU of this server is read: {SEE}"
NO_PROCESS = f"No data because its processes are not read: {SEE}"
NO_LOG = f"No data because no log of it is read, or it has written no progress line in this life: {SEE}"
NO_HEALTH = f"No data because it is not probed (no port, or the health collector is off): {SEE}"
NO_ENGINE = f"No data because the engine's own metrics are not read (start it with --enable-metrics): {SEE}"
RANKS = among("process", "scheduler.*", "Worker.*", "EngineCore.*")
GPU = "GPU {{gpu}} {{rank}}"


def signals() -> Sequence[Builder[Panel]]:
    """Return the panels in the order of the chain: device, process, log, what is owed, HTTP, work."""
    return [*_gpus(), *_processes(), *_ages(), _owed(), *_health(), *_work()]


def _gpus() -> Sequence[Builder[Panel]]:
    limit = f"min({held('stallwatch_gpu_power_limit_watts')})"
    return [
        graph(
            "GPU utilization",
            f"Share of the time in which a kernel ran, per GPU; below the dashed line ({COLD:.0%}) it is not busy."
            " 100 % is no proof of work: ranks that wait for each other in a collective show it too, at low power.",
            "percentunit",
            NO_GPU,
            [over_time(held("stallwatch_gpu_utilization_ratio"), GPU)],
            most=1,
            lines=thresholds((None, "transparent"), (COLD, "orange")),
        ),
        graph(
            "GPU memory",
            "Memory in use per GPU. It climbs while weights load and stays where it is afterwards, hung or not.",
            "bytes",
            NO_GPU,
            [over_time(held("stallwatch_gpu_memory_used_bytes"), GPU)],
        ),
        graph(
            "GPU power",
            f"Power drawn per GPU. Full utilization below {LOW_POWER:.0%} of the limit is a spin: kernels that wait.",
            "watt",
            NO_GPU,
            [
                over_time(held("stallwatch_gpu_power_watts"), GPU),
                over_time(limit, "limit"),
                over_time(f"{LOW_POWER} * {limit}", f"{LOW_POWER:.0%} of the limit"),
            ],
            overrides=[limit_line("/limit$/")],
        ),
    ]


def _processes() -> Sequence[Builder[Panel]]:
    state = coded("stallwatch_process_state", "state", STATE_CODES, THIS_SERVER)
    return [
        graph(
            "Scheduler CPU",
            "CPU of each rank, 100 % being one core. An idle scheduler spins at a whole core unless it was started with"
            " --sleep-on-idle, and a deadlocked one burns about 1 %: CPU alone is no movement.",
            "percentunit",
            NO_PROCESS,
            [over_time(per_second(server("stallwatch_process_cpu_seconds_total", RANKS)), "{{process}}")],
            usual=1,
        ),
        bands(
            "State of its processes",
            "State of the main thread of each process. All asleep for minutes while work is owed is a deadlock; one"
            " that is stopped, or in the kernel for long, is the culprit.",
            NO_PROCESS,
            [over_time(state, "{{process}}")],
            PROCESS_WORDS,
            height=7,
        ),
    ]


def _ages() -> Sequence[Builder[Panel]]:
    silent = server("stallwatch_server_limit_seconds", 'limit="silent"')
    limits = server("stallwatch_server_limit_seconds", among("limit", "suspect", "stalled", "start_without_movement"))
    return [
        graph(
            "Since the last progress line of its log",
            "Lines that only a server which gets on writes: no access lines, no heartbeats. A saw while it works, a"
            " ramp from the moment at which it stalls. Dashed: the limit of InferenceServerSilent.",
            "dthms",
            NO_LOG,
            [
                over_time(server("stallwatch_log_staleness_seconds"), "progress line"),
                over_time(silent, "limit {{limit}}"),
            ],
            overrides=[limit_line("/^limit/")],
        ),
        graph(
            "Since it last moved, by signal",
            "How long ago each signal last showed that it gets on; the lowest line counts. Dashed: the limits in force"
            " now for this server.",
            "dthms",
            f"No data because none of its signals that show movement is read: {SEE}",
            [
                over_time(age("stallwatch_server_last_movement_timestamp_seconds", "signal"), "{{signal}}"),
                over_time(age("stallwatch_server_gpu_last_busy_timestamp_seconds"), "GPU busy"),
                over_time(age("stallwatch_engine_heartbeat_timestamp_seconds", "dp_rank"), "heartbeat {{dp_rank}}"),
                over_time(limits, "limit {{limit}}"),
            ],
            overrides=[limit_line("/^limit/")],
            height=7,
        ),
    ]


def _owed() -> Builder[Panel]:
    return graph(
        "Owed for",
        "Since when something is owed, by reason: it is not ready, requests are pending, its probe fails, or bytes"
        " wait in its socket. Nothing owed and nothing moving is idle; owed and nothing moving is a hang.",
        "dthms",
        f"No data because nothing is owed, or what would tell cannot be read: {SEE}",
        [over_time(age("stallwatch_server_demand_since_timestamp_seconds", "reason"), "{{reason}}")],
    )


def _health() -> Sequence[Builder[Panel]]:
    result = coded("stallwatch_health_result", "result", RESULT_CODES, THIS_SERVER)
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
            [over_time(server("stallwatch_health_latency_seconds"), "{{path}}")],
        ),
    ]


def _work() -> Sequence[Builder[Panel]]:
    return [
        graph(
            "Tokens",
            "Tokens per second by kind and data-parallel rank, as the engine counts them. No tokens while requests run"
            " is the plainest sign of a hang.",
            "cps",
            NO_ENGINE,
            [over_time(per_second(server("stallwatch_engine_tokens_total")), "{{kind}} {{dp_rank}}")],
        ),
        graph(
            "Requests",
            "Requests that run and wait, by data-parallel rank, and connections to its port that it has not accepted."
            " The engine's numbers freeze in a hang.",
            "none",
            NO_ENGINE,
            [
                over_time(server("stallwatch_engine_requests_running"), "running {{dp_rank}}"),
                over_time(server("stallwatch_engine_requests_queued"), "waiting {{dp_rank}}"),
                over_time(server("stallwatch_socket_accept_queue"), "not accepted"),
            ],
            usual=1,
        ),
    ]
