"""What does watching cost: CPU, memory, files, and the scrapes themselves?"""

from collections.abc import Sequence

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from parts import bands, graph, over_time
from series import growth, nodes, per_second
from tables import Column, rows
from words import RELOAD_WORDS

EMPTY = "No data because this exporter is not scraped: see Exporters that are down"
NODE = "{{instance}}"


def whole_cpu() -> str:
    """Return the cores that each exporter uses with its workers."""
    workers = f"sum without (worker) ({per_second(nodes('stallwatch_worker_cpu_seconds_total'))})"
    return f"{per_second(nodes('process_cpu_seconds_total'))} + {workers}"


def whole_memory() -> str:
    """Return the resident memory of each exporter with its workers."""
    workers = f"sum without (worker) ({nodes('stallwatch_worker_resident_memory_bytes')})"
    return f"{nodes('process_resident_memory_bytes')} + {workers}"


def cost() -> Sequence[Builder[Panel]]:
    """Return what the processes of the exporter use."""
    return [
        graph(
            "CPU",
            "What the exporter and each of its workers use, 100 % being one core.",
            "percentunit",
            EMPTY,
            [
                over_time(per_second(nodes("process_cpu_seconds_total")), "exporter {{instance}}"),
                over_time(per_second(nodes("stallwatch_worker_cpu_seconds_total")), "{{worker}} {{instance}}"),
            ],
            width=8,
            height=7,
        ),
        graph(
            "Resident memory",
            "Of the exporter and of each of its workers. Pages that they share count in each.",
            "bytes",
            EMPTY,
            [
                over_time(nodes("process_resident_memory_bytes"), "exporter {{instance}}"),
                over_time(nodes("stallwatch_worker_resident_memory_bytes"), "{{worker}} {{instance}}"),
            ],
            width=8,
            height=7,
        ),
        graph(
            "Open file descriptors",
            "Of the exporter. They do not grow.",
            "none",
            EMPTY,
            [over_time(nodes("process_open_fds"), NODE)],
            width=8,
            height=7,
        ),
    ]


def scrapes() -> Sequence[Builder[Panel]]:
    """Return what Prometheus gets, and from which version and configuration."""
    skipped = f"sum without (server) ({per_second(nodes('stallwatch_log_skipped_bytes_total'))})"
    return [
        graph(
            "Duration of a scrape",
            "As Prometheus measures it. A scrape reads nothing of the node, so it stays short whatever hangs there.",
            "s",
            EMPTY,
            [over_time(nodes("scrape_duration_seconds"), NODE)],
            width=8,
            height=6,
        ),
        graph(
            "Samples in a scrape",
            "Series that the exporter shows; they grow with servers, GPUs and ranks.",
            "none",
            EMPTY,
            [over_time(nodes("scrape_samples_scraped"), NODE)],
            width=8,
            height=6,
        ),
        graph(
            "Log bytes left out",
            "What was skipped of the servers' logs because the reader was too far behind.",
            "binBps",
            "No data because no log is read",
            [over_time(skipped, NODE)],
            usual=1,
            width=8,
            height=6,
        ),
        graph(
            "Left out as too much",
            "Servers, processes, ranks and series beyond the bounds of a collector.",
            "none",
            EMPTY,
            [over_time(growth(nodes("stallwatch_collector_dropped_total")), "{{collector}} {{instance}}")],
            width=12,
            height=6,
        ),
        graph(
            "Bundles of evidence",
            "How many are kept, and the sources that gave nothing of what they were asked for.",
            "none",
            "No data because no evidence is to be kept",
            [
                over_time(nodes("stallwatch_evidence_bundles"), "kept {{instance}}"),
                over_time(growth(nodes("stallwatch_evidence_failures_total")), "failed: {{source}} {{instance}}"),
            ],
            width=12,
            height=6,
        ),
        bands(
            "Configuration",
            "Whether the configuration that is there could be read; where not, the one before is in force.",
            EMPTY,
            [over_time(nodes("stallwatch_config_last_reload_successful"), NODE)],
            RELOAD_WORDS,
            axis=None,
        ),
        _versions(),
    ]


def _versions() -> Builder[Panel]:
    version = f"max by (job, instance, version, python_version) ({nodes('stallwatch_build_info')})"
    since = f"1000 * max by (job, instance) ({nodes('process_start_time_seconds')})"
    columns = [
        Column("Job", "job", width=90),
        Column("Node", "instance"),
        Column("Version", "version", version),
        Column("Python", "python_version"),
        Column("Started", expr=since, unit="dateTimeFromNow"),
    ]
    return rows("Versions", "What runs where, and since when.", EMPTY, columns, height=5)
