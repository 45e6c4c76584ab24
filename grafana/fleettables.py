"""What stands in the tables of Fleet? Servers that are not well, alerts, nodes, signals that are missing."""

from collections.abc import Sequence

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from frame import RUNBOOKS, exporter_url, runbook, server_url
from series import ANY_SERVER, OURS, among, coded, nodes, servers
from tables import Column, macro, rows
from words import (
    NOT_WELL,
    PHASE_CODES,
    PHASE_WORDS,
    RESULT_CODES,
    RESULT_WORDS,
    SIGNATURE_CODES,
    SIGNATURE_WORDS,
    STALE,
    UP_WORDS,
    VERDICT_CODES,
    VERDICT_NAMES,
    VERDICT_WORDS,
)

OR_NONE = 'server=~"$server|"'
EACH = "by (job, instance, server)"
JOB = Column("Job", "job", width=90)
NODE = Column("Node", "instance", links=[("Exporter of this node", exporter_url(macro("Job"), macro("Node")))])
LOOK = ("Look at this server", server_url(macro("Job"), macro("Node"), macro("Server")))
SERVER = Column("Server", "server", links=[LOOK])


def not_well() -> Builder[Panel]:
    """Return the table of servers that somebody should look at, with what tells why."""
    text = (
        "One row for each server that is slow, suspect, stalled, dead or unknown, with what tells why. A - is a value"
        " that cannot be read or is not there: it is not zero. Click a server to see everything of it over time."
    )
    empty = "No data because no server is slow, suspect, stalled, dead or unknown on the nodes that are watched"
    columns = [JOB, NODE, SERVER, *_judged(), *_seen()]
    return rows("Servers that are not well", text, empty, columns, sort="Verdict", height=8)


def _of_bad(expr: str) -> str:
    bad = servers("stallwatch_server_verdict", among("verdict", *NOT_WELL))
    return f"{expr} and on (job, instance, server) ({bad} == 1)"


def _judged() -> Sequence[Column]:
    verdict = f"max by (job, instance, server, verdict) ({servers('stallwatch_server_verdict')} == 1)"
    signature = coded("stallwatch_server_signature", "signature", SIGNATURE_CODES, ANY_SERVER)
    phase = f"max by (job, instance, server, phase) ({servers('stallwatch_server_phase')} == 1)"
    since = servers("stallwatch_server_verdict_start_timestamp_seconds")
    age = f"{nodes('stallwatch_snapshot_timestamp_seconds')} - ignoring (server) group_right () {since}"
    names = [f"InferenceServer{name}" for name in ("Stalled", "Dead", "Suspect", "Slow", "Blind", "CrashLooping")]
    runbooks = [(f"Runbook {alert}", runbook(alert)) for alert in (*names, "InferenceGPUFault")]
    return [
        Column("Verdict", "verdict", _of_bad(verdict), words=VERDICT_NAMES, links=[LOOK, *runbooks], width=90),
        Column(
            "Signature", expr=_of_bad(f"max {EACH} ({signature})"), words=SIGNATURE_WORDS, links=runbooks, width=130
        ),
        Column("Phase", "phase", _of_bad(phase), width=150),
        Column("For", expr=_of_bad(f"max {EACH} ({age})"), unit="s", width=90),
    ]


def _seen() -> Sequence[Column]:
    busiest = f"max {EACH} ({servers('stallwatch_server_gpu_utilization_max_ratio')})"
    silent = f"max {EACH} ({servers('stallwatch_log_staleness_seconds')})"
    pending = f"max {EACH} ({servers('stallwatch_server_pending_requests')})"
    result = f"max {EACH} ({coded('stallwatch_health_result', 'result', RESULT_CODES, ANY_SERVER)})"
    missing_signals = f"count {EACH} ({servers('stallwatch_signal_success')} == 0)"
    return [
        Column("Busiest GPU", expr=_of_bad(busiest), unit="percentunit", width=110),
        Column("Log silent for", expr=_of_bad(silent), unit="s", width=120),
        Column("Pending", expr=_of_bad(pending), unit="none", width=80),
        Column("Health", expr=_of_bad(result), words=RESULT_WORDS, width=110),
        Column("Signals missing", expr=_of_bad(missing_signals), unit="none", width=130),
    ]


def alerts() -> Builder[Panel]:
    """Return the table of alerts that fire, each with its runbook."""
    firing = nodes("ALERTS", OR_NONE, 'alertstate="firing"', OURS)
    age = f"(time() - {nodes('ALERTS_FOR_STATE', OR_NONE, OURS)}) and ignoring (alertstate) {firing}"
    columns = [
        Column("Alert", "alertname", links=[("Runbook", f"{RUNBOOKS}/{macro('Alert')}.md")]),
        Column("Severity", "severity", width=90),
        JOB,
        NODE,
        SERVER,
        Column("GPU", "gpu", width=60),
        Column("Group", "group", width=140),
        Column("For", expr=f"max by (job, alertname, severity, instance, server, gpu, group) ({age})", unit="s"),
    ]
    text = "What Prometheus fires now for these servers and their nodes. Click an alert for its runbook."
    empty = "No data because no alert fires, or Prometheus has not loaded alerts/rules"
    return rows("Alerts that fire", text, empty, columns, sort="Severity", height=6)


def groups() -> Builder[Panel]:
    """Return the table of servers that span several nodes, a row for each node, the nodes of one server together."""
    several = servers("stallwatch_server_group_nodes")
    of_group = f"* on (job, instance, server) group_left (group, node_rank) ({several} ^ 0)"
    verdict = coded("stallwatch_server_verdict", "verdict", VERDICT_CODES, ANY_SERVER)
    signature = coded("stallwatch_server_signature", "signature", SIGNATURE_CODES, ANY_SERVER)
    phase = coded("stallwatch_server_phase", "phase", PHASE_CODES, ANY_SERVER)
    coldest = servers("stallwatch_server_gpu_utilization_min_ratio")
    hottest = servers("stallwatch_server_gpu_utilization_max_ratio")
    seen = f"count by (job, group) (count by (job, group, node_rank) ({several}))"
    lacking = f"{several} - on (job, group) group_left () {seen}"

    def of(expr: str) -> str:
        return f"max by (job, instance, server, group, node_rank) ({expr})"

    columns = [
        Column("Group", "group"),
        Column("Node rank", "node_rank", width=90),
        JOB,
        NODE,
        SERVER,
        Column("Verdict", expr=of(f"{verdict} {of_group}"), words=VERDICT_WORDS, links=[LOOK], width=90),
        Column("Signature", expr=of(f"{signature} {of_group}"), words=SIGNATURE_WORDS, width=130),
        Column("Phase", expr=of(f"{phase} {of_group}"), words=PHASE_WORDS, width=150),
        Column("Coldest GPU", expr=of(f"{coldest} {of_group}"), unit="percentunit", width=110),
        Column("Busiest GPU", expr=of(f"{hottest} {of_group}"), unit="percentunit", width=110),
        Column("Nodes", expr=of(several), unit="none", width=70),
        Column("Not seen", expr=of(lacking), unit="none", bad=1, width=90),
    ]
    text = (
        "One row for each node of a server that spans several. The node that differs from the others of its group is"
        " the one to look at first: a GPU that rests while those of the others spin, or a phase that is behind. The"
        " health endpoint of every node but the first always says 200."
    )
    empty = "No data because no server here spans several nodes (nnodes is 1 everywhere), or none is seen"
    return rows("Nodes of servers that span several", text, empty, columns, sort="Group", height=7)


def nodes_table() -> Builder[Panel]:
    """Return the table of nodes: is each of them watched at all?"""
    each = "by (job, instance)"
    judged, collectors = nodes("stallwatch_server_verdict"), nodes("stallwatch_collector_success")
    old = f"time() - {nodes('stallwatch_snapshot_timestamp_seconds')}"
    columns = [
        JOB,
        NODE,
        Column("Exporter", expr=f"min {each} ({nodes('up')})", words=UP_WORDS, width=85),
        Column("Snapshot age", expr=f"max {each} ({old})", unit="s", bad=STALE, width=120),
        Column("Servers", expr=f"count {each} ({judged} == 1)", unit="none", width=80),
        Column("GPUs", expr=f"count {each} ({nodes('stallwatch_gpu_info')})", unit="none", width=70),
        Column("GPUs lost", expr=f"sum {each} ({nodes('stallwatch_gpu_lost')})", unit="none", bad=1, width=95),
        Column("Collectors failing", expr=f"sum {each} (1 - {collectors})", unit="none", bad=1, width=150),
    ]
    text = (
        f"Every node that is scraped. One whose exporter is down, or whose snapshot is older than {STALE} s, is not"
        " watched: nothing above says anything about it."
    )
    empty = "No data because Prometheus has no target of these jobs"
    return rows("Nodes", text, empty, columns, sort="Exporter", height=7, width=14)


def missing() -> Builder[Panel]:
    """Return the table of signals that cannot be read."""
    signals = f"max by (job, instance, server, signal) ({servers('stallwatch_signal_success')} == 0)"
    text = (
        "Signals that cannot be read of a server. What they would show is absent everywhere, and hangs are told by the"
        " others alone. The exporter's log and its page at / say why."
    )
    empty = "No data because every signal of every server that is seen can be read"
    columns = [JOB, NODE, SERVER, Column("Signal", "signal", signals)]
    return rows("Signals that cannot be read", text, empty, columns, height=7, width=10)
