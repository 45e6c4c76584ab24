"""How soon is Stallwatch there? From its launch to the first complete snapshot, and how long `check` takes.

Complete is a snapshot in which every collector of the played node has succeeded, GPUs and engine included. `check` is
timed beside the running exporter, which it asks, and alone, where it looks for two seconds by itself.

    PYTHONPATH=tests tests/private_python.sh benchmarks/start.py [--runs 5] [--json FILE]
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

from busy_node import BusyNode
from exporters import Exporter, stallwatch

COLLECTORS = ("discovery", "gpu", "process", "log", "socket", "health", "engine")
LOOK_SECONDS = 2.0
COMPLETE_WITHIN, CHECK_WITHIN = 2.0, 1.0


def complete(text: str) -> bool:
    """Say whether a scrape tells that every collector has succeeded, and of a server that was judged."""
    return "stallwatch_server_verdict{" in text and all(
        f'stallwatch_collector_success{{collector="{name}"}} 1.0' in text for name in COLLECTORS
    )


async def first_complete(exporter: Exporter, folder: Path) -> float:
    """Start it, and return after how many seconds a scrape told all."""
    begin = time.monotonic()
    exporter.start(folder)
    while True:
        with suppress(OSError):
            if complete(await asyncio.to_thread(_scrape, exporter.port)):
                return time.monotonic() - begin
        await asyncio.sleep(0.02)


def _scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return str(answer.read(), "utf-8")


async def checked(*flags: str) -> float:
    """Return how long `stallwatch check` takes."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "stallwatch", "check", *flags]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    await process.wait()
    return time.monotonic() - begin


async def measured(runs: int) -> dict[str, list[float]]:
    """Return the seconds of each run."""
    found: dict[str, list[float]] = {"complete": [], "check": [], "check alone": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with BusyNode(folder) as played:
            for _ in range(runs):
                with ExitStack() as stack:
                    exporter = stallwatch(folder, played.environ)
                    stack.callback(exporter.stop)
                    found["complete"].append(await first_complete(exporter, folder))
                    found["check"].append(await checked(f"--url=http://127.0.0.1:{exporter.port}"))
                found["check alone"].append(await checked("--look", f"--for={LOOK_SECONDS:g}s") - LOOK_SECONDS)
    return found


def main() -> int:
    """Measure, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="how often (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="where what was measured is written")
    arguments = parser.parse_args()
    found = asyncio.run(measured(arguments.runs))
    for name, seconds in found.items():
        print(f"{name:>12}: {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})")
    if arguments.json:
        arguments.json.write_text(json.dumps(found) + "\n")
    late = statistics.median(found["complete"]) > COMPLETE_WITHIN or statistics.median(found["check"]) > CHECK_WITHIN
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
