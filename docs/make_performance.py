"""Writes what `make bench` measured into performance.md, and its picture: `python docs/make_performance.py`.

Each part stands between `<!-- measured NAME -->` and `<!-- end -->`; what is around it is written by hand. A part whose
numbers are not there stays as it is.
"""

import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from growth_picture import picture

from tables import Played, table

HERE = Path(__file__).parent
RESULTS = HERE.parent / ".cache" / "bench"
PAGE = HERE / "performance.md"
MEASURED = re.compile(r"(<!-- measured (?P<name>[a-z_]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def compare(found: Mapping[str, Any]) -> str:
    """Return a table for each node, and what it was measured on."""
    machine, length = found["machine"], found["length"]
    told = f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, Python {machine['python']}; "
    runs = f"{length['runs']} run{'s' * (length['runs'] > 1)} of {length['run']:g} s after {length['warm']:g} s"
    told += f"{runs}: the median, and in brackets the least and the most."
    tables = [table(str(Played(node["others"], node["threads"])), node["costs"]) for node in found["nodes"]]
    return "\n\n".join((told, *tables))


def growth(found: Mapping[str, Any]) -> str:
    """Draw the curves, and return what one more of each costs."""
    of_series = [{**point, "count": point["series"]} for point in found["servers"]]
    (HERE / "growth.svg").write_text(picture({**found, "series": of_series}))
    lines = ["| one more | CPU s per 60 s | KiB |", "|---|---:|---:|"]
    for name, points in found.items():
        first, last = points[0], points[-1]
        span = last["count"] - first["count"]
        cpu, memory = ((last[key] - first[key]) / span for key in ("cpu_seconds", "memory_mib"))
        lines.append(f"| of {name} | {max(0.0, cpu):.5f} | {max(0.0, memory) * 1024:,.1f} |")
    return "\n".join(("![what one more of each costs](growth.svg)", "", *lines))


def log_flood(found: Mapping[str, Any]) -> str:
    """Say what a fast log costs, and a large one."""
    fast, large = found["flood"], found["large"]
    left_out = fast["skipped_bytes"]
    missed = f"{left_out:,} bytes were left out" if left_out else "none of its lines was missed"
    grew = f"{fast['memory_before_mib']:.0f} to {fast['memory_most_mib']:.0f} MiB"
    return (
        f"A log that grew by {fast['rate_mb']:.0f} MB/s took {fast['cores']:.2f} of a core, {missed}, and memory went "
        f"from {grew}. Of {large['size_bytes'] / 1e9:.0f} GB that were there already, "
        f"{large['read_bytes'] / 1e6:.0f} MB were read, in {large['seconds']:.2f} s."
    )


def start(found: Mapping[str, Any]) -> str:
    """Say how soon it is there."""
    complete, asked, alone = (statistics.median(found[name]) for name in ("complete", "check", "check alone"))
    return (
        f"The first complete snapshot was there {complete:.2f} s after the launch. `stallwatch check` took "
        f"{asked:.2f} s where an exporter runs, and {alone:.2f} s plus its look where none does."
    )


def watched(found: Mapping[str, Any]) -> str:
    """Say what the probes cost an engine."""
    rows = (
        ("step, median, ms", lambda steps: f"{steps['p50_ms']:.2f}"),
        ("one step in a thousand, ms", lambda steps: f"{steps['p999_ms']:.2f}"),
        ("longest step, ms", lambda steps: f"{steps['most_ms']:.2f}"),
        ("of its time not in steps", lambda steps: f"{steps['lost_ratio']:.2%}"),
        ("requests a minute", lambda steps: f"{steps['requests_per_minute']:.0f}"),
    )
    lines = [f"| {name} | {show(found['alone'])} | {show(found['watched'])} |" for name, show in rows]
    return "\n".join(("| | alone | watched |", "|---|---:|---:|", *lines))


PARTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    part.__name__: part for part in (compare, growth, log_flood, start, watched)
}


def rewritten(page: str) -> str:
    """Return the page with what is measured of each part."""

    def part(match: re.Match[str]) -> str:
        file = RESULTS / f"{match['name']}.json"
        if not file.exists():
            return match[0]
        return f"{match[1]}\n{PARTS[match['name']](json.loads(file.read_text()))}\n\n{match[3]}"

    return MEASURED.sub(part, page)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
