"""How does a scenario look when it happens? Played by real processes, faster than life, beside the real exporter."""

import asyncio
import os
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from stallwatch.assembly import exporter
from stallwatch.config import Config
from stallwatch.sections import (
    DiscoveryConfig,
    EngineConfig,
    EvidenceConfig,
    GpuConfig,
    HealthConfig,
    Limits,
    ServerConfig,
    SocketConfig,
    StateConfig,
    WebConfig,
)
from stallwatch.simulation.live import LiveServer, gpu_state, live_servers, shortened
from stallwatch.simulation.pager import Pager, paging, show
from stallwatch.simulation.plot import Scenario
from stallwatch.simulation.telling import say
from stallwatch.view import View

STEP = 0.5


def played_here() -> dict[str, str]:
    """Return what of the node is played: its GPUs, and of all servers those that this process has started."""
    return {"nvml": "stallwatch.simulation.nvml", "below": str(os.getpid())}


async def play_live(scenario: Scenario, port: int, seconds: float, keep: Path | None = None) -> int:
    """Play a scenario in about so many seconds and say each change of a verdict; returns the exit code.

    Evidence stays in the directory `keep`, else only for as long as it is played.
    """
    speed = max(1.0, scenario.seconds / seconds)
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stallwatch-demo-")))
        servers = live_servers(scenario, directory)
        for server in servers:
            stack.push_async_callback(server.close)
        state = directory / "gpus"
        state.write_text(gpu_state(scenario.node, [], 0.0))
        os.environ["STALLWATCH_FAKE_NVML"] = str(state)
        stack.callback(os.environ.pop, "STALLWATCH_FAKE_NVML", None)
        config = _config(servers, port, speed, keep or directory / "evidence")
        say(f"{scenario.name}: {speed:.0f} times as fast as life, watched on http://127.0.0.1:{port}/")
        running = await stack.enter_async_context(exporter(config, lambda: config, played_here()))
        pager = await paging(stack, directory, port, "it tells what it judges and pages nobody")
        names, last, shown = {server.name for server in servers}, dict[str, tuple[str, str]](), set[tuple[str, str]]()
        running.monitor.watch(lambda view: _tell(view, names, last))
        running.monitor.watch(lambda _view: _page(pager, names, shown))
        await _play(scenario, servers, state, speed)
    return 0


async def _play(scenario: Scenario, servers: list[LiveServer], state: Path, speed: float) -> None:
    begin = time.monotonic()
    while (t := (time.monotonic() - begin) * speed) <= scenario.seconds:
        for server in servers:
            await server.advance(t)
        part = state.with_suffix(".part")
        part.write_text(gpu_state(scenario.node, servers, t))
        part.replace(state)
        await asyncio.sleep(STEP)


def _tell(view: View, names: set[str], last: dict[str, tuple[str, str]]) -> None:
    for name in names & view.verdicts.keys():
        verdict = view.verdicts[name]
        if last.get(name) != (verdict.state, verdict.signature):
            last[name] = (verdict.state, verdict.signature)
            word = f"{verdict.state} ({verdict.signature})" if verdict.signature else verdict.state
            say(f"{name}: {word}: {verdict.reason}")


def _page(pager: Pager | None, names: set[str], shown: set[tuple[str, str]]) -> None:
    """Show what has arrived, each alert about a server once."""
    while pager and (page := pager.next_page(*names)):
        if (page.alert, page.server) not in shown:
            shown.add((page.alert, page.server))
            show(page)


def _config(servers: list[LiveServer], port: int, speed: float, evidence: Path) -> Config:
    limits = Limits(**shortened(Limits().named(), speed))
    named = tuple(
        ServerConfig(
            name=server.name,
            engine=server.player.played.engine,  # type: ignore[arg-type]
            port=server.port,
            limits=shortened(server.player.played.limits, speed),
        )
        for server in servers
        if server.player.played.limits or server.player.played.name
    )
    fast = 1.0
    return msgspec.structs.replace(
        Config(),
        web=WebConfig(listen_address=f"127.0.0.1:{port}"),
        interval=0.5,
        discovery=DiscoveryConfig(interval=fast),
        gpu=GpuConfig(interval=fast),
        engine=EngineConfig(interval=fast),
        socket=SocketConfig(interval=fast),
        health=HealthConfig(interval=2, timeout=4),
        limits=limits,
        servers=named,
        state=StateConfig(enabled=False),
        evidence=EvidenceConfig(directory=str(evidence)),
    )
