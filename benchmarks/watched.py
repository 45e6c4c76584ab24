"""What does the watching cost the watched? How much longer the steps of a busy engine's loop get by our probes.

The engine of `busy_engine.py` works for a while with nobody there, and then with Stallwatch beside it, which probes it
as often as it usually does. Steps are counted in CPU time of the engine's thread, so that what else runs here does not
show. No stack is read, and no memory map: that is never done without being asked for.

    PYTHONPATH=tests tests/private_python.sh benchmarks/watched.py [--seconds 60] [--json FILE]
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from busy_engine import STEP_SECONDS
from busy_node import ENGINE_PAGE
from exporters import stallwatch
from measuring import Watched, scraped

from stallwatch.simulation.pager import free_port

STUB = "from busy_engine import main\n\nif __name__ == '__main__':\n    main()\n"


@dataclass(frozen=True, slots=True)
class Steps:
    """How an engine's steps went: milliseconds, and how much of its time did not go into them."""

    p50_ms: float
    p999_ms: float
    most_ms: float
    lost_ratio: float
    requests_per_minute: float


async def started(folder: Path, port: int) -> Process:
    """Start the engine under the name of SGLang's launcher."""
    (folder / "sglang").mkdir()
    (folder / "sglang" / "launch_server.py").write_text(STUB)
    path = os.pathsep.join((str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    words = ["-m", "sglang.launch_server", "--port", str(port), "--enable-metrics", "--model-path", str(ENGINE_PAGE)]
    environ = {**os.environ, "PYTHONPATH": path}
    return await asyncio.create_subprocess_exec(
        sys.executable, *words, stdin=PIPE, stdout=PIPE, env=environ, limit=1 << 26
    )


async def told(engine: Process, seconds: float) -> Steps:
    """Let so much time go by, and return how the engine's steps went meanwhile."""
    await _line(engine)
    await asyncio.sleep(seconds)
    answer = json.loads(await _line(engine))
    steps = sorted(1000 * step for step in answer["steps"])
    lost = 1 - len(steps) * STEP_SECONDS * 1000 / sum(steps)
    places = (steps[len(steps) // 2], steps[int(len(steps) * 0.999)], steps[-1])
    return Steps(*places, lost, answer["asked"] * 60 / seconds)


async def _line(engine: Process) -> bytes:
    if engine.stdin is None or engine.stdout is None:
        raise RuntimeError("the engine has no pipes")
    engine.stdin.write(b"\n")
    return await engine.stdout.readline()


async def measured(seconds: float) -> dict[str, Steps]:
    """Return how the steps went without and with Stallwatch."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, port = Path(name), free_port()
        engine = await started(folder, port)
        try:
            alone = await told(engine, seconds)
            exporter = stallwatch(folder, {})
            stack.callback(exporter.stop)
            exporter.start(folder)
            watched = Watched(exporter)
            await watched.ready()
            await scraped([watched], 10.0)
            scraping = asyncio.create_task(scraped([watched], seconds))
            beside = await told(engine, seconds)
            await scraping
        finally:
            if engine.stdin:
                engine.stdin.close()
            await engine.wait()
    return {"alone": alone, "watched": beside}


def main() -> int:
    """Measure, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each (default: %(default)g)")
    parser.add_argument("--json", type=Path, help="where what was measured is written")
    arguments = parser.parse_args()
    found = {name: asdict(steps) for name, steps in asyncio.run(measured(arguments.seconds)).items()}
    print(json.dumps(found, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if found["watched"]["lost_ratio"] - found["alone"]["lost_ratio"] < 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
