"""Fleet: which servers, on which nodes, are not well? Every server of every node in one look."""

from collections.abc import Sequence

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from fleettables import alerts, groups, missing, nodes_table, not_well
from frame import choose, frame, lay_out, mark_alerts, mark_stalls, runbook
from parts import bands, graph, link, now, number, over_time, thresholds, tiles
from series import ANY_NODE, ANY_SERVER, OURS, among, coded, equal, nodes, select, servers
from words import COLOURS, PALE, STALE, VERDICT_CODES, VERDICT_WORDS

NO_SERVER = "No data because no server is seen: none runs, or its node is not scraped (see Nodes)"
KINDS = ("stalled", "dead", "suspect", "slow", "unknown", "starting", "stopping", "busy", "idle")


def dashboard() -> Dashboard:
    """Return the dashboard of all servers."""
    text = "Every inference server on every node: what is judged of it, and why those that are not well are not."
    page = frame("Fleet", text, "6h", "30s")
    page.with_variable(choose("job", "Job", "stallwatch_snapshot_timestamp_seconds", several=True))
    snapshots = select("stallwatch_snapshot_timestamp_seconds", 'job=~"$job"')
    page.with_variable(choose("instance", "Node", snapshots, several=True, everything=".*"))
    page.with_variable(choose("server", "Server", nodes("stallwatch_server_verdict"), several=True, everything=".*"))
    mark_alerts(page, "Alerts that begin to fire", OURS, *ANY_NODE)
    mark_stalls(page, among("verdict", "stalled", "dead"), *ANY_SERVER, while_it_lasts=False)
    top = [_counts(), _unwatched(), _parked_now(), not_well(), alerts()]
    folded = [("Servers of several nodes", [groups(), _several_nodes()])]
    return lay_out(page, top, [("All servers", _servers()), ("Nodes", [nodes_table(), missing()])], folded)


def _counts() -> Builder[Panel]:
    counts = [f"sum({servers('stallwatch_server_verdict', equal('verdict', verdict))})" for verdict in KINDS]
    text = (
        "How many servers have each verdict. Stalled: work is owed and nothing has moved for its limit; suspect:"
        " not for that long yet; dead: crashed, or a process or GPU is lost; slow: past the budget of its phase, or its"
        " probes fail; unknown: too little can be seen, so that a hang would go unseen."
    )
    empty = "No data because no server is seen: none runs, or no node is scraped"
    asked = [now(expr, verdict) for expr, verdict in zip(counts, KINDS, strict=True)]
    return tiles("Servers by verdict", text, empty, asked, [COLOURS[verdict] for verdict in KINDS], width=16)


def _unwatched() -> Builder[Panel]:
    fresh = f"time() - {nodes('stallwatch_snapshot_timestamp_seconds')} < {STALE}"
    watched = f"count({nodes('up')} == 1 and on (job, instance) ({fresh}))"
    text = (
        f"Nodes whose exporter cannot be scraped, or shows a snapshot of more than {STALE} s ago. Nothing here says"
        " anything about their servers."
    )
    return number(
        "Nodes not watched",
        text,
        "none",
        "No data because there is no target",
        now(f"count({nodes('up')}) - ({watched} or vector(0))"),
        steps=thresholds((None, PALE), (1, "red")),
        links=[link(f"Runbook {alert}", runbook(alert)) for alert in ("StallwatchDown", "StallwatchSnapshotStale")],
    )


def _parked() -> str:
    """Return the memory of each GPU of servers that are idle."""
    info = servers("stallwatch_server_gpu_info")
    memory = f"{info} * ignoring (server, rank) group_left () {nodes('stallwatch_gpu_memory_used_bytes')}"
    return f"{memory} and on (job, instance, server) {servers('stallwatch_server_idle')} == 1"


def _parked_now() -> Builder[Panel]:
    return number(
        "Parked by idle servers",
        "GPU memory of all servers that are known to be idle; a GPU that two of them share counts once.",
        "bytes",
        "No data because none is idle, or no GPU is read",
        now(f"sum(max by (job, instance, uuid) ({_parked()}))"),
    )


def _servers() -> Sequence[Builder[Panel]]:
    verdicts = coded("stallwatch_server_verdict", "verdict", VERDICT_CODES, ANY_SERVER)
    return [
        bands(
            "Verdicts",
            "What was judged of each server. A gap is a time in which its node was not scraped.",
            NO_SERVER,
            [over_time(verdicts, "{{server}} {{instance}}")],
            VERDICT_WORDS,
            height=10,
            axis=None,
        ),
        graph(
            "GPU memory parked by idle servers",
            "Memory on the GPUs of servers that are known to be idle. It is no fault; it is what another one could use."
            " A GPU that two servers share counts for each of them that is idle.",
            "bytes",
            "No data because no server is known to be idle, or no GPU is read: see Signals that cannot be read",
            [over_time(f"sum by (job, instance, server) ({_parked()})", "{{server}} {{instance}}")],
            height=6,
            stacked=True,
        ),
    ]


def _several_nodes() -> Builder[Panel]:
    verdicts = coded("stallwatch_server_verdict", "verdict", VERDICT_CODES, ANY_SERVER)
    several = servers("stallwatch_server_info", 'nnodes!="1"')
    group = f"{verdicts} + on (job, instance, server) group_left (group) 0 * {several}"
    return bands(
        "Servers of several nodes",
        "The verdict of each node of a server that spans several, by the address where they meet. The node that"
        " differs from the others is the one to look at first.",
        "No data because no server here spans several nodes (nnodes is 1 everywhere), or none is seen",
        [over_time(group, "{{group}} {{instance}}")],
        VERDICT_WORDS,
        height=6,
        axis=None,
    )
