"""What else is there of one server? Closed rows: its start, GPUs, processes, log, launch, and what is kept of it."""

from collections.abc import Sequence

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from frame import Row
from parts import bands, graph, over_time
from series import growth, held, node, per_second, server
from serversignals import GPU, NO_GPU
from tables import Column, rows
from words import PHASE_WORDS

HALF = 12
EACH = "{{process}}"
NO_RIGHT = "No data because its processes are not read, or the exporter lacks the right to see this"
NO_LOG = "No data because no log of it is read: see Signals"


def details() -> Sequence[Row]:
    """Return the closed rows."""
    return [
        ("Its start", _start()),
        ("Its GPUs", _gpus()),
        ("Its processes", _processes()),
        ("Its log and its launch", [*_log(), _launch()]),
        ("What is kept of its incident", [_evidence()]),
    ]


def _half(title: str, text: str, expr: str, legend: str, *, unit: str, empty: str) -> Builder[Panel]:
    return graph(title, text, unit, empty, [over_time(expr, legend)], usual=1, width=HALF, height=6)


def _start() -> Sequence[Builder[Panel]]:
    read = per_second(server("stallwatch_process_read_bytes_total"))
    faults = per_second(server("stallwatch_process_page_faults_total"))
    return [
        bands(
            "Furthest phase of each rank",
            "The rank that stays behind its peers is the one whose stack to save first.",
            "No data because its log is not read, or names no ranks",
            [over_time(server("stallwatch_server_rank_phase"), "{{rank}}")],
            PHASE_WORDS,
            height=6,
        ),
        graph(
            "Progress of the phase",
            "How far the phase is, where the log has a progress bar.",
            "percentunit",
            "No data because its log shows no progress bar, or is not read",
            [over_time(server("stallwatch_server_phase_progress_ratio"), "progress")],
            most=1,
        ),
        _half(
            "Read from storage",
            "What each process reads from storage. Weights that lie in the page cache cost no reads.",
            read,
            EACH,
            unit="binBps",
            empty=NO_RIGHT,
        ),
        _half(
            "Page faults",
            "Faults of each process. A load, or a compile within the process, makes thousands; a spin makes none.",
            faults,
            EACH,
            unit="cps",
            empty=NO_RIGHT,
        ),
    ]


def _gpus() -> Sequence[Builder[Panel]]:
    clock, heat = held("stallwatch_gpu_sm_clock_hertz"), held("stallwatch_gpu_temperature_celsius")
    return [
        _half("Clock", "Clock of the streaming multiprocessors of each GPU.", clock, GPU, unit="hertz", empty=NO_GPU),
        _half("Temperature", "Temperature of each chip.", heat, GPU, unit="celsius", empty=NO_GPU),
        graph(
            "Xids of its node",
            "Errors that the kernel log tells of the GPUs of the node, as they come.",
            "none",
            "No data because the kernel log tells of no Xid, or may not be read",
            [over_time(growth(node("stallwatch_gpu_xid_total")), "GPU {{gpu}} Xid {{xid}}")],
        ),
    ]


def _processes() -> Sequence[Builder[Panel]]:
    switches = per_second(server("stallwatch_process_context_switches_total", 'kind="voluntary"'))
    return [
        _half(
            "Voluntary context switches",
            "Of the main thread of each process: a loop that turns, sleeps and wakes shows here.",
            switches,
            EACH,
            unit="cps",
            empty=NO_RIGHT,
        ),
        _half(
            "Resident memory",
            "Of each process. Pages that processes share count in each of them, so their sum is too high.",
            server("stallwatch_process_resident_memory_bytes"),
            EACH,
            unit="bytes",
            empty=NO_RIGHT,
        ),
        _half("Threads", "Of each process.", server("stallwatch_process_threads"), EACH, unit="none", empty=NO_RIGHT),
        _half(
            "Open file descriptors",
            "Open files and sockets of each process.",
            server("stallwatch_process_open_fds"),
            EACH,
            unit="none",
            empty=NO_RIGHT,
        ),
    ]


def _log() -> Sequence[Builder[Panel]]:
    return [
        _half(
            "Log lines",
            "Lines by kind. Access lines and heartbeats go on through many hangs; progress does not.",
            per_second(server("stallwatch_log_lines_total")),
            "{{kind}}",
            unit="cps",
            empty=NO_LOG,
        ),
        _half(
            "Errors in the log",
            "Lines that say what failed, by kind.",
            growth(server("stallwatch_log_errors_total")),
            "{{kind}}",
            unit="none",
            empty=NO_LOG,
        ),
    ]


def _evidence() -> Builder[Panel]:
    info, at = server("stallwatch_evidence_info"), server("stallwatch_evidence_last_timestamp_seconds")
    gathered = f"1000 * {info} * ignoring (bundle) group_left () {at}"
    columns = [
        Column("Bundle", "bundle", info),
        Column("Gathered", expr=gathered, unit="dateTimeFromNow"),
    ]
    text = "The latest bundle of evidence; on the node, `stallwatch evidence show` with its name says what it tells."
    empty = "No data because it has had no incident of which evidence was kept"
    return rows("Evidence", text, empty, columns, hidden=("job", "instance", "server"), height=4)


def _launch() -> Builder[Panel]:
    columns = [
        Column("Engine", "engine", server("stallwatch_server_info")),
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
    return rows("Launch", text, empty, columns, hidden=("job", "instance", "server"), height=4)
