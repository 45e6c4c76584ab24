"""Fleet: which servers, on which nodes, are not well? Every server of every node in one look."""

from collections.abc import Sequence

from frame import (
    ANY_NODE,
    ANY_SERVER,
    OURS,
    RUNBOOKS,
    annotate,
    choose,
    choose_source,
    frame,
    lay_out,
    runbook,
    server_url,
)
from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel
from parts import among, bands, coded, graph, now, number, over_time, select, thresholds
from tables import Column, macro, rows
from words import (
    COLOURS,
    NOT_WELL,
    PALE,
    RESULT_CODES,
    RESULT_WORDS,
    SIGNATURE_CODES,
    SIGNATURE_WORDS,
    UP_WORDS,
    VERDICT_CODES,
    VERDICT_NAMES,
    VERDICT_WORDS,
)

NO_SERVER = "No data because no server is seen: none runs, or its node is not scraped (see Nodes)"
NO_GPU = "No data because no GPU is read: see Signals that cannot be read, and the Exporter dashboard"
EACH = "by (job, instance, server)"
TO_SERVER = server_url(macro("Job"), macro("Node"), macro("Server"))
ON_NODE = f"/d/stallwatch-exporter?var-datasource=${{datasource}}&var-job={macro('Job')}&var-instance={macro('Node')}"


def dashboard() -> Dashboard:
    """Return the dashboard of all servers."""
    text = "Every inference server on every node: what is judged of it, and why those that are not well are not."
    page = frame("stallwatch-fleet", "Fleet", text, "6h", "30s")
    page.with_variable(choose_source())
    page.with_variable(choose("job", "Job", "stallwatch_snapshot_timestamp_seconds", several=True))
    instance = ("stallwatch_snapshot_timestamp_seconds", 'job=~"$job"')
    page.with_variable(choose("instance", "Node", *instance, several=True, everything=".*"))
    page.with_variable(
        choose("server", "Server", "stallwatch_server_verdict", *ANY_NODE, several=True, everything=".*")
    )
    annotate(page, ANY_NODE, ANY_SERVER)
    lay_out(page, [*_counts(), _not_well(), _alerts()], [("All servers", _servers()), ("Nodes", _nodes())])
    return page


def _server(metric: str, *matchers: str) -> str:
    return select(metric, *ANY_SERVER, *matchers)


def _node(metric: str, *matchers: str) -> str:
    return select(metric, *ANY_NODE, *matchers)


def _counts() -> Sequence[Builder[Panel]]:
    """Return how many servers there are of each verdict."""
    kinds = {
        "stalled": ("stalled", "Servers that owe work and have not moved for their limit."),
        "dead": ("dead", "Servers that crashed, lost a process or lost a GPU."),
        "suspect": ("suspect", "Servers that owe work and do not move, not for long enough yet to be called stalled."),
        "slow": ("slow", "Servers that get on, but past the budget of their phase, or whose health probes fail."),
        "unknown": ("unknown", "Servers of which too little can be seen: a hang of theirs would go unseen."),
        "starting|stopping": ("starting, stopping", "Servers that load, compile, warm up or drain."),
        "busy": ("busy", "Servers that work."),
        "idle": ("idle", "Servers that owe nothing and answer."),
    }
    return [_count(verdicts, *said) for verdicts, said in kinds.items()]


def _count(verdicts: str, title: str, text: str) -> Builder[Panel]:
    colour = COLOURS[verdicts.partition("|")[0]]
    steps = thresholds((None, PALE), (1, colour))
    query = now(f"sum({_server('stallwatch_server_verdict', among('verdict', verdicts))})", title)
    return number(title.capitalize(), text, "none", "No data: no server seen", query, width=3, steps=steps)


def _not_well() -> Builder[Panel]:
    bad = _server("stallwatch_server_verdict", among("verdict", "|".join(NOT_WELL)))

    def of_bad(expr: str) -> str:
        return f"{expr} and on (job, instance, server) ({bad} == 1)"

    snapshot = _node("stallwatch_snapshot_timestamp_seconds")
    since = _server("stallwatch_server_verdict_start_timestamp_seconds")
    result = coded("stallwatch_health_result", "result", RESULT_CODES, *ANY_SERVER)
    signature = coded("stallwatch_server_signature", "signature", SIGNATURE_CODES, *ANY_SERVER)
    phase = f"max by (job, instance, server, phase) ({_server('stallwatch_server_phase')} == 1)"
    verdict = f"max by (job, instance, server, verdict) ({_server('stallwatch_server_verdict')} == 1)"
    links = [("Look at this server", TO_SERVER), ("Runbooks", RUNBOOKS)]
    columns = [
        Column("Job", "job", width=90),
        Column("Node", "instance", links=[("Exporter of this node", ON_NODE)]),
        Column("Server", "server", links=links),
        Column("Verdict", "verdict", of_bad(verdict), words=VERDICT_NAMES, links=links, width=90),
        Column("Signature", expr=of_bad(f"max {EACH} ({signature})"), words=SIGNATURE_WORDS, links=_signature_links()),
        Column("Phase", "phase", of_bad(phase)),
        Column("For", expr=of_bad(f"max {EACH} ({snapshot} - ignoring (server) group_right () {since})"), unit="s"),
        Column(
            "Busiest GPU",
            expr=of_bad(f"max {EACH} ({_server('stallwatch_server_gpu_utilization_max_ratio')})"),
            unit="percentunit",
        ),
        Column(
            "Since progress in the log",
            expr=of_bad(f"max {EACH} ({_server('stallwatch_log_staleness_seconds')})"),
            unit="s",
        ),
        Column("Pending", expr=of_bad(f"max {EACH} ({_server('stallwatch_server_pending_requests')})"), unit="none"),
        Column("Health", expr=of_bad(f"max {EACH} ({result})"), words=RESULT_WORDS),
        Column(
            "Signals missing", expr=of_bad(f"count {EACH} ({_server('stallwatch_signal_success')} == 0)"), unit="none"
        ),
    ]
    text = (
        "One row for each server that is slow, suspect, stalled, dead or unknown, with what tells why. A dash is a value"
        " that cannot be read or is not there: it is not zero. Click a server to see everything of it over time."
    )
    empty = "No data because no server is slow, suspect, stalled, dead or unknown; that holds if all nodes are up below"
    return rows("Servers that are not well", text, empty, columns, sort="Verdict", height=8)


def _signature_links() -> Sequence[tuple[str, str]]:
    alerts = ("InferenceServerStalled", "InferenceServerDead", "InferenceGPUFault", "InferenceServerSlow")
    return [(f"Runbook {alert}", runbook(alert)) for alert in alerts]


def _alerts() -> Builder[Panel]:
    firing = _node("ALERTS", 'alertstate="firing"', OURS)
    began = _node("ALERTS_FOR_STATE", OURS)
    age = f"max by (job, alertname, severity, instance, server, gpu) ((time() - {began}) and ignoring (alertstate) {firing})"
    columns = [
        Column("Alert", "alertname", links=[("Runbook", runbook(macro("Alert")))]),
        Column("Severity", "severity", width=90),
        Column("Job", "job", width=90),
        Column("Node", "instance"),
        Column("Server", "server", links=[("Look at this server", TO_SERVER)]),
        Column("GPU", "gpu", width=60),
        Column("For", expr=age, unit="s"),
    ]
    text = "What Prometheus fires now, by the rules in alerts/rules. Click an alert for its runbook."
    empty = "No data because no alert fires, or Prometheus has not loaded alerts/rules"
    return rows("Alerts that fire", text, empty, columns, sort="Severity", height=6)


def _servers() -> Sequence[Builder[Panel]]:
    verdicts = coded("stallwatch_server_verdict", "verdict", VERDICT_CODES, *ANY_SERVER)
    held = f"{_server('stallwatch_server_gpu_info')} * ignoring (server, rank) group_left () "
    parked = (
        f"{held}{_node('stallwatch_gpu_memory_used_bytes')}"
        f" and on (job, instance, server) {_server('stallwatch_server_idle')} == 1"
    )
    several = _server("stallwatch_server_info", 'nnodes!="1"')
    group = f"{verdicts} + on (job, instance, server) group_left (group) 0 * {several}"
    return [
        bands(
            "Verdicts",
            "What was judged of each server. A gap is a time in which its node was not scraped.",
            NO_SERVER,
            [over_time(verdicts, "{{server}} {{instance}}")],
            VERDICT_WORDS,
            height=8,
        ),
        graph(
            "GPU memory parked by idle servers",
            "Memory on the GPUs of servers that are known to be idle. It is no fault; it is what could be used by"
            " another one. A GPU that two servers share counts for each of them that is idle.",
            "bytes",
            "No data because no server is known to be idle, or no GPU is read: see Signals that cannot be read",
            [over_time(f"sum by (job, instance, server) ({parked})", "{{server}} {{instance}}")],
            height=6,
            stacked=True,
        ),
        bands(
            "Servers of several nodes",
            "The verdict of each node of a server that spans several, by the address where they meet. The node that"
            " differs from the others is the one to look at first.",
            "No data because no server here spans several nodes (nnodes is 1 everywhere), or none is seen",
            [over_time(group, "{{group}} {{instance}}")],
            VERDICT_WORDS,
            height=6,
        ),
    ]


def _nodes() -> Sequence[Builder[Panel]]:
    return [_node_table(), _missing()]


def _node_table() -> Builder[Panel]:
    each = "by (job, instance)"
    age = f"time() - {_node('stallwatch_snapshot_timestamp_seconds')}"
    columns = [
        Column("Job", "job", width=90),
        Column("Node", "instance", links=[("Exporter of this node", ON_NODE)]),
        Column("Exporter", expr=f"min {each} ({_node('up')})", words=UP_WORDS, width=90),
        Column("Snapshot is old", expr=f"max {each} ({age})", unit="s"),
        Column("Servers", expr=f"count {each} ({_node('stallwatch_server_verdict')} == 1)", unit="none"),
        Column("GPUs", expr=f"count {each} ({_node('stallwatch_gpu_info')})", unit="none"),
        Column("GPUs lost", expr=f"sum {each} ({_node('stallwatch_gpu_lost')})", unit="none"),
        Column("Collectors failing", expr=f"sum {each} (1 - {_node('stallwatch_collector_success')})", unit="none"),
    ]
    text = (
        "Every node that is scraped. A node whose exporter is down, or whose snapshot is old by more than 90 s, is not"
        " watched: nothing above says anything about it."
    )
    empty = "No data because Prometheus has no target of these jobs"
    return rows("Nodes", text, empty, columns, sort="Exporter", height=7, width=14)


def _missing() -> Builder[Panel]:
    missing = f"max by (job, instance, server, signal) ({_server('stallwatch_signal_success')} == 0)"
    columns = [
        Column("Job", "job", width=90),
        Column("Node", "instance", links=[("Exporter of this node", ON_NODE)]),
        Column("Server", "server", links=[("Look at this server", TO_SERVER)]),
        Column("Signal", "signal", missing),
    ]
    text = (
        "Signals that cannot be read of a server. What they would show is absent everywhere, and hangs are told by the"
        " others alone. The exporter's log and its page at / say why."
    )
    empty = "No data because every signal of every server that is seen can be read"
    return rows("Signals that cannot be read", text, empty, columns, height=7, width=10)
