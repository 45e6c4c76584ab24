"""What does an incident look like? One played on this machine and watched by the real exporter, in about a minute.

A model is loaded over eight simulated GPUs, 76 GiB each; the log ends with the last weight shard; then nothing happens and
nothing says so. The limits are shortened from minutes to seconds; all else is what would run on a real node.
"""

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from stallwatch.config import Config, GpuConfig, HealthConfig, Limits, WebConfig
from stallwatch.history import Past
from stallwatch.monitor import View
from stallwatch.serve import exporter
from stallwatch.simulation.pager import Pager, free_port, programs
from stallwatch.simulation.played import PlayedGpus, PlayedServer
from stallwatch.status import duration, sentence

RANKS = tuple(f"sglang::scheduler_TP{rank}" for rank in range(8))
SHARDS = 12
STAMP = "[%Y-%m-%d %H:%M:%S"
SHORTENED = Limits(suspect=5, evidence=10, stalled=12, silent=15, start_without_movement=15, start_without_movement_partial=15)


async def demo(port: int, seconds: float) -> int:
    """Play the incident for so many seconds and print what the exporter sees; returns the exit code."""
    try:
        import setproctitle  # noqa: F401, PLC0415 an extra that only the demo needs
    except ImportError:
        say("the demo titles its processes: pip install 'stallwatch[demo]'")
        return 2
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stallwatch-demo-")))
        gpus = PlayedGpus(directory / "gpus", 8)
        stack.enter_context(_environ("STALLWATCH_FAKE_NVML", str(gpus.path)))
        server_port = free_port()
        server = PlayedServer(directory, ["--model-path", "moonshotai/Kimi-K2", "--tp-size", "8", "--port", str(server_port)])
        stack.push_async_callback(server.stop)
        config = _config(port)
        say(f"watching this machine on http://127.0.0.1:{port}/ (metrics at /metrics); limits are seconds, not minutes")
        running = await stack.enter_async_context(exporter(config, lambda: config, nvml="stallwatch.simulation.nvml"))
        pager = await _pager(stack, directory, port)
        incident = asyncio.create_task(play_cold_deadlock(server, gpus, server_port))
        stack.callback(incident.cancel)
        async for view in _looks(running.monitor.watch, seconds):
            _tell(view, f"sglang:{server_port}", pager)
            if incident.done():
                incident.result()
    return 0


async def play_cold_deadlock(server: PlayedServer, gpus: PlayedGpus, port: int) -> None:
    """Load weights on eight ranks for a quarter of a minute, then rest for ever."""
    await server.start()
    pids = await server.spawn(*RANKS, "sglang::detokenizer")
    gpus.hold(pids[title] for title in RANKS)
    await server.tell(to={title: {"cpu": 0.1} for title in RANKS})
    say("8 schedulers have started and load a model of 608 GiB")
    stamp = time.strftime(STAMP)
    await server.log(f"{stamp}] server_args=ServerArgs(model_path='moonshotai/Kimi-K2', port={port}, tp_size=8)")
    await server.log(*(f"{stamp} TP{rank}] Init torch distributed begin." for rank in range(8)))
    await server.log(*(f"{stamp} TP{rank}] Load weight begin. avail mem=94.40 GB" for rank in range(8)))
    for shard in range(1, SHARDS + 1):
        await asyncio.sleep(1)
        gpus.show(memory_mib=600 + (76 * 1024 - 600) * shard // SHARDS, utilization=3, power_watts=90)
        done = 100 * shard // SHARDS
        await server.log(f"Loading safetensors checkpoint shards: {done:3d}% Completed | {shard}/{SHARDS} [00:{shard:02d}<00:{SHARDS - shard:02d},  1.00s/it]")
    await server.tell(to={title: {"cpu": 0} for title in RANKS})
    gpus.show(utilization=2, power_watts=62)
    say("the last shard is loaded. From here on nothing happens, and nothing says so: no error, no crash")


def pages(name: str, past: Past, now: float) -> Iterator[tuple[str, str]]:
    """Yield the alerts that the shipped raw rules would page for this server, each with its sentence."""
    if past.phase == "stopping" or not past.demand_since or not past.moved or past.idle:
        return
    still = now - max(past.moved.values())
    owed = now - min(past.demand_since.values())
    if "not_ready" in past.demand_since and min(still, owed) >= past.limits["start_without_movement"]:
        yield "InferenceServerStartupStuck", f"{name} is not ready and nothing has moved for {duration(still)}"
    if past.holding.loaded and past.busy_at is not None:
        silent = min(still, owed, now - past.busy_at)
        if silent >= past.limits["silent"]:
            yield "InferenceServerSilent", f"{name} holds GPU memory, and GPUs, log and all else rest for {duration(silent)}"


def say(text: str) -> None:
    """Print one line of the demo, with the time."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)  # noqa: T201 what the demo is for


def _tell(view: View, name: str, pager: Pager | None) -> None:
    past = view.pasts.get(name)
    server = next((server for server in view.snapshot.servers if server.name == name), None)
    if past is None or server is None:
        say(f"{name}: not seen yet")
        return
    say(sentence(server, past, view.snapshot.moment))
    for alert, text in pages(name, past, view.snapshot.moment.monotonic):
        say(f"PAGE  {alert} (critical): {text}")
    while pager and not pager.pages.empty():
        page = pager.pages.get_nowait()
        for alert in page["alerts"]:
            say(f"Alertmanager pages ({alert['status']}): {json.dumps(alert['labels'])}")
            say(f"  {alert['annotations'].get('description', '')}")


async def _looks(watch: object, seconds: float) -> AsyncIterator[View]:
    """Yield a view every five seconds for so long."""
    views: asyncio.Queue[View] = asyncio.Queue()
    watch(views.put_nowait)  # type: ignore[operator]
    end, due = time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        view = await views.get()
        if time.monotonic() >= due:
            due = time.monotonic() + 5
            yield view


async def _pager(stack: AsyncExitStack, directory: Path, port: int) -> Pager | None:
    found = programs()
    if found is None:
        say("Prometheus and Alertmanager are not installed here: what they would page is told from the same facts")
        return None
    pager = Pager(directory / "pager", port)
    stack.push_async_callback(pager.close)
    await pager.start(found)
    say(f"Prometheus scrapes on http://127.0.0.1:{pager.prometheus_port}/, Alertmanager pages to this terminal")
    return pager


def _config(port: int) -> Config:
    health = HealthConfig(interval=3, timeout=5)
    web = WebConfig(listen_address=f"127.0.0.1:{port}")
    return msgspec.structs.replace(Config(), web=web, gpu=GpuConfig(interval=1), health=health, limits=SHORTENED)


@contextlib.contextmanager
def _environ(name: str, value: str) -> Iterator[None]:
    import os  # noqa: PLC0415

    os.environ[name] = value  # the workers inherit it
    try:
        yield
    finally:
        del os.environ[name]
