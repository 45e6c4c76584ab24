"""What does a log cost that grows fast, or is large already? Read by the code that the worker runs, in here.

A writer of its own appends so many megabytes a second of what a busy server logs, and the log is looked at each second,
as `stallwatch serve` does. Then a log of 20 GB, a hole but for its last lines, is opened.

    python benchmarks/log_flood.py [--rate 100] [--seconds 30] [--json FILE]
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from busy_node import READY, lines_of
from measuring import memory_of

from stallwatch.collectors import log
from stallwatch.collectors.log import Log

WRITER = """
import sys, time
path, rate, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
block = sys.stdin.buffer.read()
pause, begin = len(block) / rate, time.monotonic()
with open(path, "ab", buffering=0) as file:
    for number in range(int(seconds / pause)):
        file.write(block)
        time.sleep(max(0.0, begin + (number + 1) * pause - time.monotonic()))
"""
MIB, GIB = 1024**2, 1024**3
BLOCK_LINES = 40_000


@dataclass(frozen=True, slots=True)
class Flood:
    """What a fast log cost: CPU as cores, memory in MiB, bytes that were left out, and whether every line counted."""

    rate_mb: float
    cores: float
    longest_look_seconds: float
    memory_before_mib: float
    memory_most_mib: float
    skipped_bytes: int
    lines_written: int
    lines_counted: int


@dataclass(frozen=True, slots=True)
class Large:
    """What the first look at a large log cost, in seconds and in bytes of it that were read."""

    size_bytes: int
    seconds: float
    read_bytes: int
    phase: str | None


class Looker:
    """Looks at one log as the worker does."""

    def __init__(self, path: Path) -> None:
        self._read = log.reader({}, lambda _note: None)
        self._target = {"server": "sglang:1", "engine": "sglang", "path": str(path), "root": "", "incarnation": "1-1"}
        self._target["started"] = None  # type: ignore[assignment]

    def look(self) -> Log:
        """Return what the log tells now."""
        reading, failures = self._read([self._target], frozenset())
        if failures:
            raise RuntimeError(f"the log could not be read: {failures}")
        return reading.logs[0]


def flooded(folder: Path, rate_mb: float, seconds: float) -> Flood:
    """Return what a log costs that grows by so many MB each second."""
    path = folder / "fast.log"
    path.write_text(f"{READY}\n")
    block = "".join(f"{line}\n" for line in lines_of(random.Random(1), BLOCK_LINES)).encode()  # noqa: S311 dice
    looker = Looker(path)
    looker.look()
    begun, memory, most = time.process_time(), memory_of([_self()]), 0.0
    words = [sys.executable, "-c", WRITER, str(path), str(rate_mb * 1e6), str(seconds)]
    looks: list[float] = []
    begin = time.monotonic()
    with subprocess.Popen(words, stdin=subprocess.PIPE) as writer:
        if writer.stdin:
            writer.stdin.write(block)
            writer.stdin.close()
        while writer.poll() is None:
            time.sleep(1.0 - (time.monotonic() - begin) % 1.0)
            looks.append(_timed(looker))
            most = max(most, memory_of([_self()]))
    passed, spent = time.monotonic() - begin, time.process_time() - begun
    seen, size = looker.look(), -1
    while seen.size_bytes != size:  # what the last look left
        seen, size = looker.look(), seen.size_bytes
    written = (path.stat().st_size - len(READY) - 1) // len(block) * BLOCK_LINES + 1
    rate = path.stat().st_size / passed / 1e6
    return Flood(rate, spent / passed, max(looks), memory, most, seen.skipped_bytes, written, sum(seen.lines.values()))


def opened(folder: Path, size: int = 20 * GIB) -> Large:
    """Return what the first look at a log of this size costs, whose last lines alone are there."""
    path = folder / "large.log"
    last = "".join(f"{line}\n" for line in [READY, *lines_of(random.Random(1), 200)]).encode()  # noqa: S311 dice
    with path.open("wb") as file:
        file.truncate(size - len(last))
        file.seek(0, 2)
        file.write(last)
    looker, before, begin = Looker(path), _read_so_far(), time.monotonic()
    seen = looker.look()
    return Large(size, time.monotonic() - begin, _read_so_far() - before, seen.phase)


def _timed(looker: Looker) -> float:
    begin = time.monotonic()
    looker.look()
    return time.monotonic() - begin


def _self() -> int:
    return int(Path("/proc/self").resolve().name)


def _read_so_far() -> int:
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def main() -> int:
    """Measure, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=100.0, help="MB a second (default: %(default)g)")
    parser.add_argument("--seconds", type=float, default=30.0, help="for how long (default: %(default)g)")
    parser.add_argument("--json", type=Path, help="where what was measured is written")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        fast = flooded(Path(name), arguments.rate, arguments.seconds)
        large = opened(Path(name))
    found: dict[str, Any] = {"flood": asdict(fast), "large": asdict(large)}
    print(json.dumps(found, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    all_counted = fast.skipped_bytes == 0 and fast.lines_counted == fast.lines_written
    return 0 if fast.cores < 1.0 and all_counted and large.read_bytes < 64 * MIB else 1


if __name__ == "__main__":
    sys.exit(main())
