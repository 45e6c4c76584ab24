"""Exporter: does the watcher itself still see, and what does it cost?"""

from collections.abc import Sequence

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from frame import choose, frame, lay_out, mark_alerts, runbook
from owncost import EMPTY, cost, scrapes, whole_cpu, whole_memory
from parts import bands, graph, link, now, number, over_time, thresholds
from series import ANY_NODE, growth, nodes, per_second, select
from words import FAILING_WORDS, PALE, STALE, UP_WORDS

NONE = "No data because it is not scraped"
OWN_ALERTS = 'alertname=~"Stallwatch.*"'


def dashboard() -> Dashboard:
    """Return the dashboard of the exporters themselves."""
    text = "Stallwatch itself: whether it still looks, which of its collectors and workers fail, and what it costs."
    page = frame("Exporter", text, "3h", "30s")
    page.with_variable(choose("job", "Job", "stallwatch_snapshot_timestamp_seconds", several=True))
    snapshots = select("stallwatch_snapshot_timestamp_seconds", 'job=~"$job"')
    page.with_variable(choose("instance", "Node", snapshots, several=True, everything=".*"))
    mark_alerts(page, "Alerts about it that begin to fire", OWN_ALERTS, *ANY_NODE)
    sees = [*_collectors(), *_workers(), _signals()]
    return lay_out(
        page, _now(), [("Does it see?", sees), ("What it costs", cost()), ("Scrapes and configuration", scrapes())]
    )


def _alarm(title: str, text: str, expr: str, *, alert: str, bad: float = 1, unit: str = "none") -> Builder[Panel]:
    links = [link(f"Runbook {alert}", runbook(alert))]
    return number(title, text, unit, NONE, now(expr), steps=thresholds((None, PALE), (bad, "red")), links=links)


def _now() -> Sequence[Builder[Panel]]:
    return [
        _alarm(
            "Exporters that are down",
            "Exporters that Prometheus cannot scrape. Nothing on their nodes is watched.",
            f"sum(1 - {nodes('up')})",
            alert="StallwatchDown",
        ),
        _alarm(
            "Oldest snapshot",
            f"Age of the oldest snapshot that a scrape showed. From {STALE} s on the exporter no longer looks.",
            f"max(time() - {nodes('stallwatch_snapshot_timestamp_seconds')})",
            alert="StallwatchSnapshotStale",
            bad=STALE,
            unit="s",
        ),
        _alarm(
            "Collectors that fail",
            "Collectors whose last round gave no reading.",
            f"sum(1 - {nodes('stallwatch_collector_success')})",
            alert="StallwatchCollectorFailing",
        ),
        _alarm(
            "Workers left behind",
            "Workers that are stuck in a read which never returned, and have not ended yet.",
            f"sum({nodes('stallwatch_worker_abandoned')})",
            alert="StallwatchWorkerStuck",
        ),
        number(
            "Highest CPU",
            "What the most expensive exporter uses with its workers, 100 % being one core.",
            "percentunit",
            NONE,
            now(f"max({whole_cpu()})"),
        ),
        number(
            "Highest memory",
            "Resident memory of the largest exporter with its workers; pages that they share count in each.",
            "bytes",
            NONE,
            now(f"max({whole_memory()})"),
        ),
    ]


def _collectors() -> Sequence[Builder[Panel]]:
    last = nodes("stallwatch_collector_last_success_timestamp_seconds")
    age = f"{nodes('stallwatch_snapshot_timestamp_seconds')} - ignoring (collector) group_right () {last}"
    failures = per_second(nodes("stallwatch_collector_failures_total"))
    each = "{{collector}} {{instance}}"
    return [
        bands(
            "Collectors",
            "Whether the last round of each collector gave a reading, on all chosen nodes; Nodes in the Fleet dashboard"
            " says on which one it did not. What a collector that fails would show is absent.",
            EMPTY,
            [over_time(f"min by (collector) ({nodes('stallwatch_collector_success')})", "{{collector}}")],
            FAILING_WORDS,
            height=7,
        ),
        graph(
            "Rounds that missed something",
            "By collector and reason; the exporter's log says it in words. Not every miss makes a collector fail.",
            "cps",
            "No data because no collector has missed anything yet, or it is not scraped",
            [over_time(failures, "{{collector}} {{reason}} {{instance}}")],
            width=8,
            height=7,
        ),
        graph(
            "Duration of a round",
            "How long the last round of each collector took. Health probes take as long as the server lets them wait.",
            "s",
            EMPTY,
            [over_time(nodes("stallwatch_collector_duration_seconds"), each)],
            width=8,
            height=7,
        ),
        graph(
            "Since the last reading",
            "How long ago each collector last gave a reading. A saw as high as its interval is normal, a ramp is not.",
            "s",
            EMPTY,
            [over_time(age, each)],
            width=8,
            height=7,
        ),
    ]


def _workers() -> Sequence[Builder[Panel]]:
    restarts = growth(nodes("stallwatch_worker_restarts_total"))
    return [
        bands(
            "Workers",
            "Whether its workers live, on all chosen nodes: gpu asks the driver, host reads /proc and the logs.",
            EMPTY,
            [over_time(f"min by (worker) ({nodes('stallwatch_worker_up')})", "{{worker}}")],
            UP_WORDS,
            height=4,
        ),
        graph(
            "Workers started anew, and left behind",
            "Workers started in place of one that ended or got stuck, and those that are still stuck in a read.",
            "none",
            EMPTY,
            [
                over_time(restarts, "{{worker}} started anew {{instance}}"),
                over_time(nodes("stallwatch_worker_abandoned"), "{{worker}} left behind {{instance}}"),
            ],
            usual=1,
            width=12,
            height=6,
        ),
    ]


def _signals() -> Builder[Panel]:
    missing = f"sum by (job, instance, signal) (1 - {nodes('stallwatch_signal_success')})"
    return graph(
        "Servers without a signal",
        "Of how many servers each signal cannot be read; which ones they are stands in the Fleet dashboard.",
        "none",
        "No data because no server is seen, or the exporter is not scraped",
        [over_time(missing, "{{signal}} {{instance}}")],
        usual=1,
        width=12,
        height=6,
    )
