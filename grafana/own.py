"""Exporter: does the watcher itself still see, and what does it cost?"""

from collections.abc import Sequence

from frame import ANY_NODE, annotate, choose, choose_source, frame, lay_out, runbook
from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel
from parts import bands, graph, link, now, number, over_time, select, thresholds
from tables import Column, rows
from words import FAILING_WORDS, GREY, READ_WORDS, UP_WORDS, Word

STALE = 90
"""Seconds after which a snapshot is called old, as in alerts/rules."""

EMPTY = "No data because this exporter is not scraped: see Up"
RELOAD_WORDS = (Word("0", "failed", "red"), Word("1", "in force", "green"))
AT = "{{instance}}"


def dashboard() -> Dashboard:
    """Return the dashboard of the exporters themselves."""
    text = "Stallwatch itself: whether it still looks, which of its collectors and workers fail, and what it costs."
    page = frame("stallwatch-exporter", "Exporter", text, "3h", "30s")
    page.with_variable(choose_source())
    page.with_variable(choose("job", "Job", "stallwatch_snapshot_timestamp_seconds", several=True))
    instance = ("stallwatch_snapshot_timestamp_seconds", 'job=~"$job"')
    page.with_variable(choose("instance", "Node", *instance, several=True, everything=".*"))
    annotate(page, ANY_NODE, ANY_NODE)
    open_rows = [
        ("Does it see?", [*_collectors(), *_workers(), _signals()]),
        ("What it costs", _cost()),
        ("Scrapes and configuration", _scrapes()),
    ]
    lay_out(page, _now(), open_rows)
    return page


def _own(metric: str, *matchers: str) -> str:
    return select(metric, *ANY_NODE, *matchers)


def _rate(metric: str) -> str:
    return f"rate({_own(metric)}[$__rate_interval])"


def _now() -> Sequence[Builder[Panel]]:
    age = f"max(time() - {_own('stallwatch_snapshot_timestamp_seconds')})"
    red = thresholds((None, GREY), (1, "red"))
    return [
        number(
            "Nodes that are down",
            "Exporters that Prometheus cannot scrape. Nothing on their nodes is watched.",
            "none",
            "No data: no target",
            now(f"sum(1 - {_own('up')})"),
            steps=red,
            links=[link("Runbook StallwatchDown", runbook("StallwatchDown"))],
        ),
        number(
            "Oldest snapshot",
            f"Age of the oldest snapshot that a scrape showed. Above {STALE} s the exporter answers but no longer looks.",
            "s",
            "No data: not scraped",
            now(age),
            steps=thresholds((None, GREY), (STALE, "red")),
            links=[link("Runbook StallwatchSnapshotStale", runbook("StallwatchSnapshotStale"))],
        ),
        number(
            "Collectors that fail",
            "Collectors whose last round gave no reading.",
            "none",
            "No data: not scraped",
            now(f"sum(1 - {_own('stallwatch_collector_success')})"),
            steps=red,
            links=[link("Runbook StallwatchCollectorFailing", runbook("StallwatchCollectorFailing"))],
        ),
        number(
            "Workers left behind",
            "Workers that are stuck in a read which never returned, and have not ended yet.",
            "none",
            "No data: not scraped",
            now(f"sum({_own('stallwatch_worker_abandoned')})"),
            steps=red,
            links=[link("Runbook StallwatchWorkerStuck", runbook("StallwatchWorkerStuck"))],
        ),
        number(
            "CPU",
            "Cores that the most expensive exporter uses, its workers included.",
            "percentunit",
            "No data: not scraped",
            now(f"max({_whole_cpu()})"),
        ),
        number(
            "Memory",
            "Resident memory of the largest exporter, its workers included.",
            "bytes",
            "No data: not scraped",
            now(f"max({_whole_memory()})"),
        ),
    ]


def _whole_cpu() -> str:
    workers = f"sum without (worker) ({_rate('stallwatch_worker_cpu_seconds_total')})"
    return f"{_rate('process_cpu_seconds_total')} + {workers}"


def _whole_memory() -> str:
    workers = f"sum without (worker) ({_own('stallwatch_worker_resident_memory_bytes')})"
    return f"{_own('process_resident_memory_bytes')} + {workers}"


def _collectors() -> Sequence[Builder[Panel]]:
    last = _own("stallwatch_collector_last_success_timestamp_seconds")
    age = f"{_own('stallwatch_snapshot_timestamp_seconds')} - ignoring (collector) group_right () {last}"
    failures = _rate("stallwatch_collector_failures_total")
    return [
        bands(
            "Collectors",
            "Whether the last round of each collector gave a reading. What one that fails would show is absent everywhere.",
            EMPTY,
            [over_time(_own("stallwatch_collector_success"), f"{{{{collector}}}} {AT}")],
            FAILING_WORDS,
            height=6,
        ),
        graph(
            "Rounds that missed something",
            "Failures per second by collector and reason; the exporter's log says them in words.",
            "cps",
            "No data because no collector has missed anything yet, or it is not scraped",
            [over_time(failures, f"{{{{collector}}}} {{{{reason}}}} {AT}")],
            width=8,
            height=6,
        ),
        graph(
            "Duration of a round",
            "How long the last round of each collector took. Health probes take as long as the server lets them wait.",
            "s",
            EMPTY,
            [over_time(_own("stallwatch_collector_duration_seconds"), f"{{{{collector}}}} {AT}")],
            width=8,
            height=6,
        ),
        graph(
            "Since the last reading",
            "How long ago each collector last gave a reading. A saw as high as its interval is normal, a ramp is not.",
            "s",
            EMPTY,
            [over_time(age, f"{{{{collector}}}} {AT}")],
            width=8,
            height=6,
        ),
    ]


def _workers() -> Sequence[Builder[Panel]]:
    restarts = f"increase({_own('stallwatch_worker_restarts_total')}[$__rate_interval])"
    return [
        bands(
            "Workers",
            "Whether each worker process lives: gpu asks the driver, host reads /proc and the logs.",
            EMPTY,
            [over_time(_own("stallwatch_worker_up"), f"{{{{worker}}}} {AT}")],
            UP_WORDS,
            height=4,
        ),
        graph(
            "Workers started anew, and left behind",
            "Workers started in place of one that ended or got stuck, and those that are stuck in a read still.",
            "none",
            EMPTY,
            [
                over_time(restarts, f"{{{{worker}}}} started anew {AT}"),
                over_time(_own("stallwatch_worker_abandoned"), f"{{{{worker}}}} left behind {AT}"),
            ],
        ),
    ]


def _signals() -> Builder[Panel]:
    return bands(
        "Signals of each server",
        "Which signals of each server can be read.",
        "No data because no server is seen, or the exporter is not scraped",
        [over_time(_own("stallwatch_signal_success"), f"{{{{server}}}} {{{{signal}}}} {AT}")],
        READ_WORDS,
        height=8,
    )


def _cost() -> Sequence[Builder[Panel]]:
    return [
        graph(
            "CPU",
            "Cores that the exporter and each of its workers use.",
            "percentunit",
            EMPTY,
            [
                over_time(_rate("process_cpu_seconds_total"), f"exporter {AT}"),
                over_time(_rate("stallwatch_worker_cpu_seconds_total"), f"{{{{worker}}}} {AT}"),
            ],
            width=12,
            height=6,
        ),
        graph(
            "Resident memory",
            "Of the exporter and of each of its workers. Pages that they share count in each.",
            "bytes",
            EMPTY,
            [
                over_time(_own("process_resident_memory_bytes"), f"exporter {AT}"),
                over_time(_own("stallwatch_worker_resident_memory_bytes"), f"{{{{worker}}}} {AT}"),
            ],
            width=12,
            height=6,
        ),
    ]


def _scrapes() -> Sequence[Builder[Panel]]:
    skipped = f"sum without (server) ({_rate('stallwatch_log_skipped_bytes_total')})"
    return [
        graph(
            "Duration of a scrape",
            "As Prometheus measures it. A scrape reads nothing of the node, so it stays short whatever hangs there.",
            "s",
            EMPTY,
            [over_time(_own("scrape_duration_seconds"), AT)],
            width=8,
        ),
        graph(
            "Samples in a scrape",
            "Series that the exporter shows; they grow with servers, GPUs and ranks.",
            "none",
            EMPTY,
            [over_time(_own("scrape_samples_scraped"), AT)],
            width=8,
        ),
        graph(
            "Open file descriptors",
            "Of the exporter. They do not grow.",
            "none",
            EMPTY,
            [over_time(_own("process_open_fds"), AT)],
            width=8,
        ),
        bands(
            "Configuration",
            "Whether the configuration that is there could be read; where not, the one before is in force.",
            EMPTY,
            [over_time(_own("stallwatch_config_last_reload_successful"), AT)],
            RELOAD_WORDS,
            height=4,
        ),
        graph(
            "Log bytes left out",
            "Bytes per second of servers' logs that were skipped because the reader was too far behind.",
            "binBps",
            "No data because no log is read",
            [over_time(skipped, AT)],
            width=12,
        ),
        _builds(),
    ]


def _builds() -> Builder[Panel]:
    since = f"1000 * max by (instance) ({_own('process_start_time_seconds')})"
    version = f"max by (instance, version, python_version) ({_own('stallwatch_build_info')})"
    columns = [
        Column("Node", "instance"),
        Column("Version", "version", version),
        Column("Python", "python_version"),
        Column("Runs since", expr=since, unit="dateTimeFromNow"),
    ]
    return rows("Versions", "What runs where, and since when.", EMPTY, columns, height=5, width=12)
