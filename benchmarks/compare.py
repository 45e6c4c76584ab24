"""What does Stallwatch cost beside the exporters that it replaces? All of them at once, on one played node.

Eight titled ranks on eight GPUs of the simulated driver, a log at 200 lines a second, a port that answers health
probes and an engine's metrics of real size, and many other processes; each exporter is scraped once a second as
Prometheus does it. It prints a table for each node and writes what was measured as JSON.

    PYTHONPATH=tests tests/private_python.sh benchmarks/compare.py [--quick] [--json FILE]
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from busy_node import BusyNode
from exporters import peers, stallwatch
from measuring import Cost, Watched, scraped

from tables import ROWS, STALLWATCH, TOGETHER, Played, table

MERGED = {
    "p50_ms": max,
    "p99_ms": max,
}  # of peers together: all else adds up, and the slowest scrape is the last one in


NODES = (Played(500, 1), Played(3000, 1), Played(10_000, 1), Played(500, 64))


@dataclass(frozen=True, slots=True)
class Length:
    """How long is measured, in seconds."""

    warm: float
    run: float
    runs: int


FULL, QUICK = Length(130.0, 60.0, 3), Length(8.0, 20.0, 1)

Run = Mapping[str, Cost]


async def measured(node: Played, length: Length) -> list[Run]:
    """Return what each exporter cost on such a node, run by run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with BusyNode(folder, others=node.others, threads=node.threads) as played:
            exporters = [stallwatch(folder, played.environ), *peers(folder, played.environ, played.port, played.log)]
            with ExitStack() as stack:
                for exporter in exporters:
                    stack.callback(exporter.stop)
                    exporter.start(folder)
                watched = [Watched(exporter) for exporter in exporters]
                for one in watched:
                    await one.ready()
                await scraped(watched, length.warm)
                return [_run(watched, await scraped(watched, length.run)) for _ in range(length.runs)]


def _run(watched: Sequence[Watched], costs: Sequence[Cost]) -> Run:
    named = {one.exporter.name: cost for one, cost in zip(watched, costs, strict=True)}
    return {**named, TOGETHER: together([cost for name, cost in named.items() if name != STALLWATCH])}


def together(costs: Sequence[Cost]) -> Cost:
    """Return what several exporters cost together."""
    return Cost(**{name: MERGED.get(name, sum)([getattr(cost, name) for cost in costs]) for name in ROWS})


def summary(runs: Sequence[Run]) -> dict[str, dict[str, dict[str, float]]]:
    """Return of each exporter and row the median of all runs, the least and the most."""
    return {
        name: {row.name: _spread([getattr(run[name], row.name) for run in runs]) for row in fields(Cost)}
        for name in runs[0]
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def ahead(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> bool:
    """Tell whether Stallwatch costs less than the others together: CPU, memory and the time of a scrape."""
    rows = ("cpu_seconds", "memory_mib", "p50_ms", "p99_ms")
    return all(found[STALLWATCH][row]["median"] < found[TOGETHER][row]["median"] for row in rows)


def machine() -> dict[str, Any]:
    """Describe what it was measured on."""
    model = next(
        (line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "name" in line), ""
    )
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}


async def compare(length: Length, nodes: Sequence[Played]) -> dict[str, Any]:
    """Return all that is measured."""
    found = []
    for node in nodes:
        costs = summary(await measured(node, length))
        print(table(str(node), costs), end="\n\n", flush=True)
        found.append({**asdict(node), "costs": costs, "ahead": ahead(costs)})
    return {"machine": machine(), "length": asdict(length), "nodes": found}


def main() -> int:
    """Compare, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short run of each node, about three minutes in all")
    parser.add_argument("--node", type=int, action="append", choices=range(len(NODES)), help="only this one, from 0")
    parser.add_argument("--json", type=Path, help="where what was measured is written")
    arguments = parser.parse_args()
    nodes = [NODES[number] for number in arguments.node or range(len(NODES))]
    found = asyncio.run(compare(QUICK if arguments.quick else FULL, nodes))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(node["ahead"] for node in found["nodes"]) else 1


if __name__ == "__main__":
    sys.exit(main())
