"""What does an incident look like? One played on this machine and watched by the real exporter, in about a minute.

A model is loaded over eight simulated GPUs, 76 GiB each; the log ends with the last weight shard; then nothing happens
and nothing says so. The limits are shortened from minutes to seconds; all else is what would run on a real node.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from stallwatch.assembly import exporter
from stallwatch.config import Config
from stallwatch.journal import setup
from stallwatch.monitor import Monitor
from stallwatch.notify.message import RUNBOOKS
from stallwatch.past import Past
from stallwatch.sections import DiscoveryConfig, EvidenceConfig, GpuConfig, HealthConfig, Limits, StateConfig, WebConfig
from stallwatch.simulation.livedemo import play_live, played_here
from stallwatch.simulation.pager import Page, Pager, free_port, paging, show
from stallwatch.simulation.played import PlayedGpus, PlayedServer
from stallwatch.simulation.scenario import load_scenario, scenario_file
from stallwatch.simulation.telling import say, say_evidence
from stallwatch.snapshot import Server
from stallwatch.status import sentence
from stallwatch.view import Bundle, View
from stallwatch.wording import duration

RANKS = tuple(f"sglang::scheduler_TP{rank}" for rank in range(8))
ODD = RANKS[5]
"""The rank that waits for a lock while the others wait for it."""
SHARDS = 12
STAMP = "[%Y-%m-%d %H:%M:%S"
LOOK_EVERY = 5.0
SHORTEST_ROUND = 15.0
LOOKED_AT_SECONDS = 600.0
"""So long somebody at a terminal can look at the page."""


async def demo(
    port: int, seconds: float, scenario: str | None = None, *, forever: bool = False, keep: Path | None = None
) -> int:
    """Play the incident within about so many seconds, print what the exporter sees, end with the page.

    With a scenario that one is played instead: a file, or the name of one that comes with Stallwatch. Forever means
    again and again, each round from the start, until it is told to end. Evidence stays in the directory `keep`.
    """
    plot = load_scenario(scenario_file(scenario)) if scenario else None
    if refusal := _refusal(port):
        say(f"cannot listen on port {port}: {refusal}; another one: stallwatch demo --port {free_port()}")
        return 1
    if not plot and seconds < SHORTEST_ROUND:
        say(f"a round of less than {SHORTEST_ROUND:g} s cannot be played: its limits would be shorter than a look")
        return 2
    setup(level="error")
    port = port or free_port()
    playing = asyncio.create_task(
        _rounds(lambda: play_live(plot, port, seconds, keep) if plot else _play(port, seconds, keep), forever=forever)
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, playing.cancel)
    try:
        return await playing
    except asyncio.CancelledError:
        say("ended")
        return 0


async def _rounds(play: Callable[[], Awaitable[int]], *, forever: bool) -> int:
    """Play once, or until a round goes wrong; returns the exit code of the last one."""
    while (code := await play()) == 0 and forever:
        say("that was one round; here is the next")
    return code


async def _play(port: int, seconds: float, keep: Path | None) -> int:
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stallwatch-demo-")))
        gpus = PlayedGpus(directory / "gpus", 8)
        stack.enter_context(_environ("STALLWATCH_FAKE_NVML", str(gpus.path)))
        server_port = free_port(30000)
        flags = ["--model-path", "moonshotai/Kimi-K2", "--tp-size", "8", "--port", str(server_port)]
        server = PlayedServer(directory, flags)
        stack.push_async_callback(server.stop)
        config = _config(port, seconds, keep or directory / "evidence")
        limit = duration(config.limits.start_without_movement)
        say(f"watching on http://127.0.0.1:{port}/; what takes minutes elsewhere takes {limit} here")
        running = await stack.enter_async_context(exporter(config, lambda: config, played_here()))
        pager = await paging(stack, directory, port, "what they would page is told from the same facts")
        await server.start()
        incident = asyncio.create_task(play_cold_deadlock(server, gpus, server_port, seconds / 6))
        stack.callback(incident.cancel)
        code = await _watch(running.monitor, server.pid, pager, incident, seconds)
        if code == 0 and sys.stdout.isatty():
            say(f"its page is on http://127.0.0.1:{port}/ for {duration(LOOKED_AT_SECONDS)} more; Ctrl-C ends it")
            await asyncio.sleep(LOOKED_AT_SECONDS)
        return code


async def play_cold_deadlock(server: PlayedServer, gpus: PlayedGpus, port: int, seconds: float) -> None:
    """Load weights on eight ranks for so many seconds, then rest for ever."""
    pids = await server.spawn(*RANKS, "sglang::detokenizer")
    gpus.hold(pids[title] for title in RANKS)
    await server.tell(to={title: {"cpu": 0.1} for title in RANKS})
    say("8 schedulers have started and load a model of 608 GiB")
    stamp = time.strftime(STAMP)
    await server.log(f"{stamp}] server_args=ServerArgs(model_path='moonshotai/Kimi-K2', port={port}, tp_size=8)")
    await server.log(*(f"{stamp} TP{rank}] Init torch distributed begin." for rank in range(8)))
    await server.log(*(f"{stamp} TP{rank}] Load weight begin. avail mem=94.40 GB" for rank in range(8)))
    for shard in range(1, SHARDS + 1):
        await asyncio.sleep(seconds / SHARDS)
        gpus.show(memory_mib=600 + (76 * 1024 - 600) * shard // SHARDS, utilization=3, power_watts=90)
        done, clock = 100 * shard // SHARDS, f"00:{shard:02d}<00:{SHARDS - shard:02d}"
        await server.log(
            f"Loading safetensors checkpoint shards: {done:3d}% Completed | {shard}/{SHARDS} [{clock},  1.00s/it]"
        )
    await server.tell(to={title: {"cpu": 0, "hang": "lock" if title == ODD else "peer"} for title in RANKS})
    gpus.show(utilization=2, power_watts=62)
    say("the last shard is loaded. From here on nothing happens, and nothing says so: no error, no crash")


def page_from(name: str, past: Past, now: float) -> Page | None:
    """Return the page that the shipped rules send for a start without movement, told from the same facts."""
    if not past.moved or "not_ready" not in past.demand_since or past.phase == "stopping":
        return None
    still = now - max(past.moved.values())
    if min(still, now - past.demand_since["not_ready"]) < past.limits["start_without_movement"]:
        return None
    signals = ", ".join(sorted(past.moved))
    text = (
        f"{name} is not ready and nothing has moved for {duration(still)}: all its signals that can be read are still "
        f"({signals}). Phase: {past.phase or 'unknown'}."
    )
    alert = "InferenceServerStartupStuck"
    return Page(alert, "critical", name, text, f"{RUNBOOKS}/{alert}.md")


async def _watch(
    monitor: Monitor,
    launcher: int,
    pager: Pager | None,
    incident: "asyncio.Task[None]",
    seconds: float,
) -> int:
    """Tell how the server of this launcher is doing until it pages."""
    due, end = time.monotonic() + LOOK_EVERY, time.monotonic() + 2 * seconds
    told: Bundle | None = None
    async for view in _views(monitor.watch):
        now = time.monotonic()
        if incident.done():
            incident.result()
        server = _server_of(view, launcher)
        if server and (bundle := view.evidence_of(server.name)) and bundle != told:
            told = bundle
            say_evidence(bundle, Path(monitor.config.evidence.directory or ""))
        if server and (page := _page(view, server.name, pager)):
            show(page)
            return 0
        if now >= due:
            due = now + LOOK_EVERY
            say(sentence(server, view.pasts[server.name], view.snapshot.moment) if server else "not seen yet")
        if now >= end:
            break
    say(f"nothing has paged within {duration(2 * seconds)}: is this machine too busy to play it?")
    return 1


def _server_of(view: View, launcher: int) -> Server | None:
    """Return the server that is played; by its name alone it could be another one of this machine."""
    servers = view.snapshot.servers
    return next((one for one in servers if any(process.pid == launcher for process in one.processes)), None)


def _page(view: View, name: str, pager: Pager | None) -> Page | None:
    if pager and pager.alive:
        return pager.next_page(name)  # the real one
    return page_from(name, view.pasts[name], view.snapshot.moment.monotonic)


async def _views(watch: Callable[[Callable[[View], None]], None]) -> AsyncIterator[View]:
    views: asyncio.Queue[View] = asyncio.Queue()
    watch(views.put_nowait)
    while True:
        yield await views.get()


def _config(port: int, seconds: float, evidence: Path) -> Config:
    """Return the configuration of a node, with limits that fit so many seconds."""
    longest = seconds / 4
    limits = Limits(
        suspect=longest / 4,
        evidence=longest / 2,
        stalled=longest,
        silent=longest,
        start_without_movement=longest,
        start_without_movement_partial=longest,
    )
    return msgspec.structs.replace(
        Config(),
        web=WebConfig(listen_address=f"127.0.0.1:{port}"),
        discovery=DiscoveryConfig(interval=1),
        gpu=GpuConfig(interval=1),
        health=HealthConfig(interval=3, timeout=5),
        limits=limits,
        state=StateConfig(enabled=False),
        evidence=EvidenceConfig(directory=str(evidence), stacks=True),
    )


def _refusal(port: int) -> str:
    """Say why this port cannot be listened on, nothing where it can."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            probe.listen()
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


@contextlib.contextmanager
def _environ(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value  # the workers inherit it
    try:
        yield
    finally:
        del os.environ[name]
