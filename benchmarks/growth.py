"""What does one more of something cost? CPU and memory over GPUs, ranks, servers, processes and log lines.

One number of the played node of `busy_node.py` grows at a time. It prints a line for each and writes all as JSON.

    PYTHONPATH=tests tests/private_python.sh benchmarks/growth.py [--quick] [--json FILE]
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from busy_node import BusyNode
from exporters import stallwatch
from measuring import Watched, scraped

from crowd import SOURCE, Server  # of tests/
from stallwatch.simulation.pager import free_port

LINES_PER_MB = 7300
FEW = {"others": 50}
NOISE = 0.5  # CPU seconds in a minute


@dataclass(frozen=True, slots=True)
class Kind:
    """What grows, through which values, and what a node with so many is made of."""

    name: str
    values: tuple[int, ...]
    node: Callable[[int], dict[str, int]]


KINDS = (
    Kind("GPUs", (1, 8, 16, 32, 64), lambda count: {**FEW, "gpus": count}),
    Kind("ranks", (1, 8, 16, 32, 64), lambda count: {**FEW, "ranks": count}),
    Kind("servers", (1, 8, 16, 32, 64), lambda _count: FEW),
    Kind("other processes", (100, 1000, 3000, 10_000), lambda count: {"others": count}),
    Kind("MB/s of log", (0, 5, 10, 25, 50), lambda count: {**FEW, "lines": count * LINES_PER_MB}),
)


@dataclass(frozen=True, slots=True)
class Point:
    """What so many of it cost."""

    count: int
    cpu_seconds: float
    memory_mib: float
    series: int
    p99_ms: float


async def point(kind: Kind, count: int, warm: float, seconds: float) -> Point:
    """Measure one value."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        async with BusyNode(folder, **kind.node(count)) as played:  # type: ignore[arg-type]
            if kind.name == "servers":
                start_servers(folder, count - 1, stack)
            exporter = stallwatch(folder, played.environ)
            stack.callback(exporter.stop)
            exporter.start(folder)
            watched = Watched(exporter)
            await watched.ready()
            await scraped([watched], warm)
            (cost,) = await scraped([watched], seconds)
    return Point(count, cost.cpu_seconds, cost.memory_mib, cost.series, cost.p99_ms)


def start_servers(folder: Path, count: int, stack: ExitStack) -> None:
    """Start so many small servers of one rank each, which end with the stack."""
    program = folder / "server"
    subprocess.run(["gcc", "-O2", "-o", str(program), str(SOURCE)], check=True)  # noqa: S607
    for number in range(count):
        server = Server(program, free_port(), folder / f"small{number}.log", ranks=1)
        stack.callback(server.stop)
        server.start()


def steepens(points: Sequence[Point]) -> bool:
    """Say whether the last step costs clearly more for each one than those before it did."""
    first, before, last = points[0], points[-2], points[-1]
    each = max(0.0, before.cpu_seconds - first.cpu_seconds) / (before.count - first.count)
    return last.cpu_seconds - before.cpu_seconds > 2 * each * (last.count - before.count) + NOISE


async def grown(warm: float, seconds: float, *, quick: bool) -> dict[str, list[Point]]:
    """Measure all of it."""
    found: dict[str, list[Point]] = {}
    for kind in KINDS:
        middle = len(kind.values) // 2
        for count in (kind.values[0], kind.values[middle], kind.values[-1]) if quick else kind.values:
            measured = await point(kind, count, warm, seconds)
            found.setdefault(kind.name, []).append(measured)
            told = f"{measured.cpu_seconds:6.2f} CPU s, {measured.memory_mib:6.1f} MiB, p99 {measured.p99_ms:5.1f} ms"
            print(f"{kind.name:>18} {count:>7,}: {told}, {measured.series:,} series", flush=True)
    return found


def main() -> int:
    """Measure, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three values of each, for a few seconds")
    parser.add_argument("--json", type=Path, help="where what was measured is written")
    arguments = parser.parse_args()
    warm, seconds = (5.0, 10.0) if arguments.quick else (12.0, 30.0)
    found = asyncio.run(grown(warm, seconds, quick=arguments.quick))
    if arguments.json:
        told = {name: [asdict(one) for one in points] for name, points in found.items()}
        arguments.json.write_text(json.dumps(told, indent=1) + "\n")
    steep = [name for name, points in found.items() if steepens(points)]
    if steep:
        print("grows faster than what is watched:", ", ".join(steep))
    return 1 if steep else 0


if __name__ == "__main__":
    sys.exit(main())
