"""Server: is this one hung, and since when? All of it over one time axis, where a stall is everything going flat."""

from collections.abc import Sequence

from grafana_foundation_sdk.builders.dashboard import Dashboard, DashboardLink
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from frame import RUNBOOKS, choose, frame, lay_out, mark_alerts, mark_stalls, runbook
from parts import bands, link, now, number, over_time, thresholds
from series import OURS, THIS_NODE, THIS_SERVER, age, among, coded, node, select, server
from serverdetails import details
from serversignals import signals
from words import (
    PALE,
    PHASE_CODES,
    PHASE_WORDS,
    READ_WORDS,
    SIGNATURE_CODES,
    SIGNATURE_WORDS,
    VERDICT_CODES,
    VERDICT_WORDS,
)

NO_SERVER = "No data because this server is not seen: it is not there, or its node is not scraped"
VERDICT = coded("stallwatch_server_verdict", "verdict", VERDICT_CODES, THIS_SERVER)
SIGNATURE = coded("stallwatch_server_signature", "signature", SIGNATURE_CODES, THIS_SERVER)
PHASE = coded("stallwatch_server_phase", "phase", PHASE_CODES, THIS_SERVER)


def dashboard() -> Dashboard:
    """Return the dashboard of one server."""
    text = (
        "One inference server over one time axis. A server that works moves in every panel; when it stalls, all of them"
        " go flat at the same moment and the ages begin to climb."
    )
    page = frame("Server", text, "1h", "10s")
    page.with_variable(choose("job", "Job", "stallwatch_snapshot_timestamp_seconds", several=False))
    snapshots = select("stallwatch_snapshot_timestamp_seconds", 'job="$job"')
    page.with_variable(choose("instance", "Node", snapshots, several=False))
    page.with_variable(choose("server", "Server", node("stallwatch_server_verdict"), several=False))
    mark_alerts(page, "Alerts about it that begin to fire", OURS, *THIS_SERVER)
    mark_alerts(page, "Alerts about its node that begin to fire", OURS, *THIS_NODE, 'server=""')
    mark_stalls(page, among("verdict", "stalled", "dead"), *THIS_SERVER, while_it_lasts=True)
    return lay_out(page, [*_judged(), *_counted()], [("Does it move?", [*_bands(), *signals()])], details())


def _judged() -> Sequence[Builder[Panel]]:
    unseen = "No data because it is not seen"
    return [
        number(
            "Verdict",
            "What is judged of it now. Click for the runbook.",
            "none",
            unseen,
            now(VERDICT, "verdict"),
            words=VERDICT_WORDS,
            links=_runbooks("Stalled", "Dead", "Slow", "Suspect", "Blind"),
        ),
        number(
            "Signature",
            "Which kind of hang it is, or of what looks like one. The runbook says what to look at by signature.",
            "none",
            unseen,
            now(SIGNATURE, "signature"),
            words=SIGNATURE_WORDS,
            links=_runbooks("Stalled", "Dead", "StartupStuck", "Silent", "CrashLooping"),
        ),
        number(
            "For",
            "How long this verdict has held; of a stall, how long ago it last moved.",
            "s",
            unseen,
            now(age("stallwatch_server_verdict_start_timestamp_seconds")),
        ),
        number(
            "Phase",
            "How far its start is.",
            "none",
            "No data because no log is read",
            now(PHASE, "phase"),
            words=PHASE_WORDS,
        ),
    ]


def _runbooks(*names: str) -> Sequence[DashboardLink]:
    alerts = [f"InferenceServer{name}" for name in names]
    return [*(link(f"Runbook {alert}", runbook(alert)) for alert in alerts), link("All runbooks", RUNBOOKS)]


def _counted() -> Sequence[Builder[Panel]]:
    expected, present = (server(f"stallwatch_server_{name}") for name in ("expected_processes", "processes"))
    return [
        number(
            "Pending requests",
            "Requests that run or wait, by the engine's own metrics. They freeze when the scheduler hangs.",
            "none",
            "No data because engine not read",
            now(server("stallwatch_server_pending_requests")),
        ),
        number(
            "Schedulers missing",
            "How many schedulers its flags call for on this node and are not there.",
            "none",
            "No data because processes are not read",
            now(f"{expected} - {present}"),
            steps=thresholds((None, PALE), (1, "red")),
        ),
    ]


def _bands() -> Sequence[Builder[Panel]]:
    return [
        bands(
            "Verdict, signature, phase",
            "What was judged of it, what kind of hang that was, how far its start was. A gap: not scraped.",
            NO_SERVER,
            [over_time(VERDICT, "verdict"), over_time(SIGNATURE, "signature"), over_time(PHASE, "phase")],
            VERDICT_WORDS,
            by_query={"B": SIGNATURE_WORDS, "C": PHASE_WORDS},
        ),
        bands(
            "Signals",
            "Which of its signals can be read. One that cannot be is absent below: its panel is empty, not calm.",
            NO_SERVER,
            [over_time(server("stallwatch_signal_success"), "{{signal}}")],
            READ_WORDS,
            height=6,
        ),
    ]
