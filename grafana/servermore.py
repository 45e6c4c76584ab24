"""What else is there of one server? Rows that are closed until somebody asks: its start, its GPUs, its processes, its log."""

from collections.abc import Callable, Sequence

from frame import Rows
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel
from parts import bands, graph, over_time
from tables import Column
from tables import rows as rows_of
from words import PHASE_WORDS

Select = Callable[..., str]

NO_RANKS = "No data because its log is not read, or names no ranks"
NO_RIGHT = "No data because its processes are not read, or the exporter lacks the right to see this"
NO_GPU = "No data because no GPU of this server is read: see Signals above, and the Exporter dashboard"
GPU = "GPU {{gpu}} {{rank}}"


def rows(one: Select, node: Select, held: Select) -> Rows:
    """Return the closed rows."""
    return [
        ("Its start", _start(one)),
        ("Its GPUs", _gpus(one, node, held)),
        ("Its processes", _processes(one)),
        ("Its log and its launch", [*_log(one), _info(one)]),
    ]


def _start(one: Select) -> Sequence[Builder[Panel]]:
    return [
        bands(
            "Furthest phase of each rank",
            "The rank that stays behind its peers is the one whose stack to save first.",
            NO_RANKS,
            [over_time(one("stallwatch_server_rank_phase"), "{{rank}}")],
            PHASE_WORDS,
            height=6,
        ),
        graph(
            "Progress of the phase",
            "How far the phase is, where the log has a progress bar.",
            "percentunit",
            "No data because the log shows no progress bar, or is not read",
            [over_time(one("stallwatch_server_phase_progress_ratio"), "progress")],
            most=1,
        ),
        graph(
            "Read from storage",
            "Bytes per second that each process reads from storage. Weights that lie in the page cache cost none.",
            "binBps",
            NO_RIGHT,
            [over_time(f"rate({one('stallwatch_process_read_bytes_total')}[$__rate_interval])", "{{process}}")],
            width=12,
        ),
        graph(
            "Page faults",
            "Faults per second of each process. A load or a compile in the process makes thousands, a spin makes none.",
            "cps",
            NO_RIGHT,
            [over_time(f"rate({one('stallwatch_process_page_faults_total')}[$__rate_interval])", "{{process}}")],
            width=12,
        ),
    ]


def _gpus(one: Select, node: Select, held: Select) -> Sequence[Builder[Panel]]:
    return [
        graph(
            "Clock",
            "Clock of the streaming multiprocessors of each GPU.",
            "hertz",
            NO_GPU,
            [over_time(held("stallwatch_gpu_sm_clock_hertz"), GPU)],
            width=12,
        ),
        graph(
            "Temperature",
            "Temperature of each chip.",
            "celsius",
            NO_GPU,
            [over_time(held("stallwatch_gpu_temperature_celsius"), GPU)],
            width=12,
        ),
    ]


def _processes(one: Select) -> Sequence[Builder[Panel]]:
    voluntary = one("stallwatch_process_context_switches_total", 'kind="voluntary"')
    switches = f"rate({voluntary}[$__rate_interval])"
    return [
        graph(
            "Voluntary context switches",
            "Per second, of the main thread of each process: a loop that turns, sleeps and wakes shows here.",
            "cps",
            NO_RIGHT,
            [over_time(switches, "{{process}}")],
            width=12,
        ),
        graph(
            "Resident memory",
            "Of each process. Pages that processes share count in each of them, so the sum is too high.",
            "bytes",
            NO_RIGHT,
            [over_time(one("stallwatch_process_resident_memory_bytes"), "{{process}}")],
            width=12,
        ),
        graph(
            "Threads",
            "Threads of each process.",
            "none",
            NO_RIGHT,
            [over_time(one("stallwatch_process_threads"), "{{process}}")],
            width=12,
        ),
        graph(
            "Open file descriptors",
            "Open files and sockets of each process.",
            "none",
            NO_RIGHT,
            [over_time(one("stallwatch_process_open_fds"), "{{process}}")],
            width=12,
        ),
    ]


def _log(one: Select) -> Sequence[Builder[Panel]]:
    lines = f"rate({one('stallwatch_log_lines_total')}[$__rate_interval])"
    errors = f"increase({one('stallwatch_log_errors_total')}[$__rate_interval])"
    empty = "No data because no log of it is read: see Signals above"
    return [
        graph(
            "Log lines",
            "Lines per second by kind. Access lines and heartbeats go on through many hangs; progress does not.",
            "cps",
            empty,
            [over_time(lines, "{{kind}}")],
            width=12,
        ),
        graph(
            "Errors in the log",
            "Lines that say what failed, by kind.",
            "none",
            empty,
            [over_time(errors, "{{kind}}")],
            width=12,
        ),
    ]


def _info(one: Select) -> Builder[Panel]:
    columns = [
        Column("Engine", "engine", one("stallwatch_server_info")),
        Column("Version", "engine_version"),
        Column("Model", "model"),
        Column("Port", "port"),
        Column("TP", "tp_size"),
        Column("PP", "pp_size"),
        Column("DP", "dp_size"),
        Column("Nodes", "nnodes"),
        Column("Node rank", "node_rank"),
        Column("Group", "group"),
        Column("Container", "container_id"),
        Column("Pod", "pod_uid"),
    ]
    text = "What its command line and its surroundings say of it."
    empty = "No data because this server is not seen"
    hidden = ("job", "instance", "server")
    return rows_of("Launch", text, empty, columns, hidden=hidden, height=4)
