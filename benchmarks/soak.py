"""Does the exporter stay as it is over a week of churn and faults?

First a week in virtual time: servers that are deployed, crash, hang and come under ever new names, reads that fail and
exporters that are started again. Then some minutes of real processes: the exporter, servers that are restarted, workers
that are killed, logs that are rotated. What is held at the end is compared with what was held when all had been seen
once: memory, objects, descriptors, threads, series. It prints a table, and exits with 1 when anything has grown or an
exception was not handled.

    python benchmarks/soak.py [--days 7] [--minutes 5]
"""

import argparse
import asyncio
import gc
import random
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from real_exporter import soak_real
from virtual_exporter import VirtualExporter

from stallwatch.expense import own_expense
from stallwatch.simulation.plot import Scenario
from stallwatch.simulation.scenario import scenario_of

DAY, STEP = 86_400.0, 30.0
FAULTY = 0.002
ALLOWED = {"series a server": 60, "objects": 20_000, "memory KiB": 12_288, "descriptors": 0, "threads": 2, "tasks": 4}
WARM, COMPARED = 0.35, 0.3  # parts of the time


@dataclass(frozen=True, slots=True)
class Row:
    """One number that must not grow: the most of it early on, the most of it late, and how much more is allowed."""

    name: str
    early: float
    late: float
    allowed: float

    @property
    def grew(self) -> bool:
        """Tell whether it grew."""
        return self.late > self.early + self.allowed

    def __str__(self) -> str:
        """Return a line of the table."""
        numbers = f"{self.early:>12,.0f}{self.late:>12,.0f}{self.allowed:>12,.0f}"
        return f"{self.name:<32}{numbers}  {'GREW' if self.grew else 'ok'}"


def rows(samples: list[dict[str, float]], allowed: dict[str, float]) -> list[Row]:
    """Compare the numbers of the samples, those early on (once warm) with those at the end."""
    count = len(samples)
    early = samples[int(count * (WARM - COMPARED)) : max(1, int(count * WARM))]
    late = samples[int(count * (1 - COMPARED)) :]
    return [
        Row(name, max(one[name] for one in early), max(one[name] for one in late), more)
        for name, more in allowed.items()
    ]


def week(seconds: float, seed: int = 1) -> Scenario:
    """Return four servers that live for half an hour or so, two of them on the same GPUs, and many short ones."""
    dice = random.Random(seed)  # noqa: S311 dice
    servers = [_server(dice, 30_000 + number, seconds) for number in range(4)]
    times = enumerate(_times(dice, seconds, 1800.0))
    servers += [_server(dice, 31_000 + number, 600.0, start=at) for number, at in times]
    return scenario_of({"name": "a week", "node": {"gpus": 4}, "servers": servers})


def _times(dice: random.Random, seconds: float, mean: float) -> Iterable[float]:
    at = dice.expovariate(1 / mean)
    while at < seconds - 600.0:
        yield round(at)
        at += max(1.0, dice.expovariate(1 / mean))


def _server(dice: random.Random, port: int, seconds: float, start: float = 0.0) -> dict[str, Any]:
    segments: list[dict[str, Any]] = []
    while sum(segment["for"] for segment in segments) < seconds:
        segments += _life(dice)
    args = ["--tp-size", "2", "--port", str(port), "--base-gpu-id", str(2 * (port % 2))]
    return {"version": "0.5.9", "args": args, "start": start, "segments": segments}


def _life(dice: random.Random) -> list[dict[str, Any]]:
    cold, loaded = {"utilization": 0, "memory_gib": 20, "power_watts": 60}, {"memory_gib": 40}
    quiet = {"log": "silent", "engine": {"running": 2, "queued": 1, "tokens_per_second": 0}}
    load = {"phase": "loading_weights", "gpu": cold, "log": "progress", "health": "refused", "engine": None}
    serve = {
        "phase": "ready",
        "gpu": {**loaded, "utilization": 80, "power_watts": 300},
        "log": "progress",
        "health": "ok",
    }
    serve |= {"engine": {"running": 5, "queued": 0, "tokens_per_second": 500}}
    hang = dice.choice(
        (
            {},
            {**quiet, "health": "timeout", "gpu": {**loaded, "utilization": 100, "power_watts": 120}},
            {**quiet, "processes": {"scheduler_TP1": dice.choice(("gone", "zombie", "stopped"))}},
            {"gpu": None, "log": None, "health": None, "engine": None},
        )
    )
    segments = [
        {"for": float(dice.randint(30, 200)), "scheduler": {"cpu": 1.0, "read_mib_per_second": 500}, **load},
        {"for": float(dice.randint(60, 1800)), "scheduler": {"cpu": 1.0}, **serve},
        {"for": float(dice.randint(30, 900)), "scheduler": {"cpu": 0.5}, **hang},
    ]
    segments = segments[: dice.choice((1, 2, 3, 3))]
    segments[-1]["exit"] = dice.choice(("crash", "orderly"))
    return segments


async def soak_virtual(seconds: float, seed: int = 1) -> tuple[list[Row], list[str], str]:
    """Return what was held, the exceptions that nobody handled, and what was seen, of so many seconds of a node."""
    samples: list[dict[str, float]] = []
    dice, begin = random.Random(seed), time.monotonic()  # noqa: S311 dice
    t, restarts, series = 0.0, 0, 0.0
    every = max(1, int(seconds / STEP / 60))
    with tempfile.TemporaryDirectory() as folder:
        exporter = VirtualExporter(week(seconds, seed), Path(folder) / "memory.json", faulty=FAULTY, seed=seed)
        for number in range(int(seconds / STEP)):
            t += STEP
            await exporter.look(t)
            series = max(series, exporter.series())
            if number % 20 == 0:
                await exporter.page.rendered()
            if dice.random() < STEP / (6 * 3600):
                restarts += 1
                await exporter.restart()
            if number % every == 0:
                samples.append({**_held(), "series a server": series})
                series = 0.0
        await exporter.close()
    told = f"{seconds / DAY:.2g} days in {time.monotonic() - begin:.0f} s, {restarts} restarts of the exporter; "
    told += ", ".join(f"{state} {count}" for state, count in sorted(exporter.states.items()))
    return rows(samples, ALLOWED), exporter.faults.texts, told


def _held() -> dict[str, float]:
    gc.collect()
    expense = own_expense()
    return {
        "objects": len(gc.get_objects()),
        "memory KiB": expense.resident_bytes / 1024 if expense else 0,
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "tasks": len(asyncio.all_tasks()),
    }


def report(title: str, told: str, table: list[Row], faults: list[str]) -> bool:
    """Print a table, and return whether all is well."""
    print(f"{title}: {told}\n{'':<34}{'early':>12}{'late':>12}{'allowed':>12}")
    for row in table:
        print(f"  {row}")
    print(f"  exceptions that nobody handled: {len(faults)}", *faults[:5], sep="\n    ")
    return not faults and not any(row.grew for row in table)


def main() -> int:
    """Soak, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=7.0, help="virtual time (default: %(default)g)")
    parser.add_argument("--minutes", type=float, default=5.0, help="real time (default: %(default)g)")
    arguments = parser.parse_args()
    good = True
    if arguments.days:
        table, faults, told = asyncio.run(soak_virtual(arguments.days * DAY))
        good = report("virtual", told, table, faults)
    if arguments.minutes:
        samples, faults, told, allowed = asyncio.run(soak_real(arguments.minutes * 60.0))
        good = report("real", told, rows(samples, allowed), faults) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
