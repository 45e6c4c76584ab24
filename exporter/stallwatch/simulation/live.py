"""How is a scenario played by real processes? Titled ranks, a log that is written, a port that answers or refuses.

Time goes by faster than in the scenario, and the limits are shortened as much, so that an hour is over in a minute.
GPUs are the state file of the stand-in for the driver. What a machine cannot be made to show (disk reads of gigabytes a
second, unread bytes in sockets, Xids) is left out.
"""

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stallwatch.simulation import cast, livelog
from stallwatch.simulation.pager import free_port
from stallwatch.simulation.played import PlayedServer
from stallwatch.simulation.player import Player
from stallwatch.simulation.plot import Node, Scenario

MODULES = {"sglang": "sglang.launch_server", "vllm": "vllm.entrypoints.openai.api_server"}
TITLES = {"sglang": "sglang::{}", "vllm": "VLLM::{}"}
METRICS = {
    "sglang": (
        'sglang:num_running_reqs{{dp_rank="{replica}",tp_rank="0"}} {running}',
        'sglang:num_queue_reqs{{dp_rank="{replica}",tp_rank="0"}} {queued}',
        'sglang:realtime_tokens_total{{mode="decode",dp_rank="{replica}",tp_rank="0"}} {tokens}',
    ),
    "vllm": (
        'vllm:num_requests_running{{engine="{replica}",model_name="played"}} {running}',
        'vllm:num_requests_waiting{{engine="{replica}",model_name="played"}} {queued}',
        'vllm:generation_tokens_total{{engine="{replica}",model_name="played"}} {tokens}',
    ),
}
GPU_WORDS = {
    "utilization": "utilization",
    "memory_gib": "memory_mib",
    "power_watts": "power_watts",
    "sm_clock_mhz": "sm_clock_mhz",
}
SIGNALS = {"gone": signal.SIGKILL, "zombie": signal.SIGKILL, "stopped": signal.SIGSTOP, "running": signal.SIGCONT}
LARGEST_CPU = 0.2
"""Eight ranks that burn a whole core each would leave a small machine none for the exporter."""


class LiveServer:
    """One server of a scenario, played by real processes on a port of its own."""

    def __init__(self, player: Player, directory: Path) -> None:
        self.player = player
        self.port = free_port(player.server.launch.port or 30000)
        self.name = player.played.name or f"{player.played.engine}:{self.port}"
        self.pids: dict[str, int] = {}
        self._directory = directory
        self._played: PlayedServer | None = None
        self._life = 0
        self._told: dict[str, Any] = {}
        self._log = livelog.LogLines(player)
        self._titles = {role.name: TITLES[player.played.engine].format(role.name) for role in cast.roles(player.server)}

    async def advance(self, t: float) -> None:
        """Show what the scenario says of this time."""
        self.player.advance(t)
        state = self.player.state
        if self._played and (not state.there or state.life != self._life):
            await self._end()
        if state.there and not self._played:
            await self._start()
        if self._played:
            await self._show(self._played, t)

    async def close(self) -> None:
        """End its processes."""
        if self._played:
            await self._played.stop()

    async def _start(self) -> None:
        self._life = self.player.state.life
        args = [*_without_port(self.player.played.args), "--port", str(self.port)]
        folder = self._directory / f"{self.player.number}-{self._life}"
        self._played = PlayedServer(folder, args, module=MODULES[self.player.played.engine])
        await self._played.start()
        titles = [title for name, title in self._titles.items() if name != "launcher"]
        by_title = await self._played.spawn(*titles)
        self.pids = {name: by_title[title] for name, title in self._titles.items() if title in by_title}
        self._told = {}

    async def _end(self) -> None:
        if self._played and self.player.state.ended == "orderly":
            await self._played.log(*self._log.last_words())
            await self._played.stop()
        elif self._played:
            await self._played.crash()
        self._played = None

    async def _show(self, played: PlayedServer, t: float) -> None:
        command: dict[str, Any] = {"to": dict(self._behaviours(t)), "log": [f"{line}\n" for line in self._log.lines(t)]}
        command |= self._answers(t)
        await played.tell(**command)

    def _behaviours(self, t: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what changes for each process: its CPU, or a signal."""
        words = self.player.processes()
        schedulers = [role.name for role in cast.roles(self.player.server) if role.role == "scheduler"]
        for name, title in self._titles.items():
            if name == "launcher":
                continue
            word = words.get(name, "running")
            if self._told.get(name, "running") != word:
                self._told[name] = word
                yield title, {"signal": int(SIGNALS[word])}
            cpu = self.player.state.level("scheduler.cpu", schedulers.index(name), t) if name in schedulers else None
            cores = min(LARGEST_CPU, cpu or 0.0)
            if word == "running" and self._told.get(f"cpu {name}") != cores:
                self._told[f"cpu {name}"] = cores
                yield title, {"cpu": cores}

    def _answers(self, t: float) -> dict[str, Any]:
        answers = self.player.state.word("health") or {}
        answer = answers.get("/health", next(iter(answers.values()), "refused"))
        if answer in {"refused", None}:
            return {"close": True}
        return {"health": answer, "listen": self.port, "metrics": self._metrics(t)}

    def _metrics(self, t: float) -> str | None:
        """Return the engine's own metrics, in its own words."""
        state = self.player.state
        if not state.has("engine"):
            return None
        lines = []
        for index in range(self.player.server.launch.dp_size):
            running, queued = (state.level(f"engine.{key}", index, t) or 0.0 for key in ("running", "queued"))
            rate = state.level("engine.tokens_per_second", index, t) or 0.0
            last = self.player.totals.get(("live", index), t)
            self.player.totals["live", index] = t
            tokens = self.player.totals.get(("live tokens", index), 0.0) + rate * (t - last)
            self.player.totals["live tokens", index] = tokens
            values = {"replica": index, "running": running, "queued": queued, "tokens": tokens}
            lines += [line.format(**values) for line in METRICS[self.player.played.engine]]
        return "\n".join(lines) + "\n"


def gpu_state(node: Node, servers: list[LiveServer], t: float) -> str:
    """Return the state file of the driver's stand-in at this time."""
    lines = ["driver 580.95.05", f"gpus {node.gpus}"]
    lines += [
        f"gpu * memory_total_mib {node.gpu_memory_gib * 1024:g}",
        f"gpu * power_limit_watts {node.power_limit_watts:g}",
    ]
    for server in (server for server in servers if server.player.state.there):
        for number, place in enumerate(server.player.server.gpus):
            lines += _gpu_lines(server, number, place.index, t)
    return "\n".join(lines) + "\n"


def _gpu_lines(server: LiveServer, number: int, index: int, t: float) -> Iterator[str]:
    state = server.player.state
    lost = state.word("gpu.lost") or ()
    if index in lost:
        yield f"gpu {index} lost"
    for word, statement in GPU_WORDS.items():
        value = state.level(f"gpu.{word}", number, t)
        if value is not None:
            yield f"gpu {index} {statement} {value * 1024 if word == 'memory_gib' else value:g}"
    memory = state.level("gpu.memory_gib", number, t) or 0.0
    schedulers = [role.name for role in cast.roles(server.player.server) if role.role == "scheduler"]
    if number < len(schedulers) and schedulers[number] in server.pids:
        yield f"gpu {index} process {server.pids[schedulers[number]]} {memory * 1024:.0f}"


def live_servers(scenario: Scenario, directory: Path) -> list[LiveServer]:
    """Return the servers of a scenario, not yet started."""
    players = [Player.of(played, number, scenario.node) for number, played in enumerate(scenario.servers)]
    return [LiveServer(player, directory) for player in players]


def _without_port(args: tuple[str, ...]) -> list[str]:
    kept, skip = [], False
    for arg in args:
        if skip:
            skip = False
        elif arg == "--port":
            skip = True
        elif not arg.startswith("--port="):
            kept.append(arg)
    return kept


def shortened(limits: Mapping[str, float], speed: float) -> dict[str, float]:
    """Return limits for time that goes by this much faster; none is shorter than a look or two."""
    return {name: max(2.0, seconds / speed) for name, seconds in limits.items()}
