"""One node of a server of several: its ranks, and the exporter that watches them. Runs in namespaces of its own.

Its one argument is JSON: `address`, `rank` and `nodes` of this node, `culprit`, the node that hangs, `seconds` until it
does, `folder` for its files and `library`, where the stand-in for the GPU driver lies. It begins at a line of standard
input, and ends with it.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from nvml_library import environment
from played_fleet import FAST, GPUS, READY, WORK
from stallwatch.simulation.live import gpu_state, live_servers
from stallwatch.simulation.scenario import scenario_of

GPUS_HERE = 2
SETTINGS = {**FAST, "LIMITS__STALLED": "6s", "STATE__ENABLED": "false", "EVIDENCE__ENABLED": "false"}


def segments(rank, culprit, seconds):
    """Return what a node does: it works, and then its last rank stops before the collective, or it waits for that rank.

    Only the first node has requests, a log of batches and a health endpoint that means something.
    """
    works = {**READY, "for": f"{seconds}s", "gpu": GPUS["works"]}
    waits = {**READY, "for": "10m", "gpu": GPUS["spins"]}
    if rank == 0:
        stands = {"engine": {**WORK, "tokens_per_second": 0}, "log": "silent", "health": 503}
        return [{**works, "log": "progress", "engine": WORK}, {**waits, **stands}]
    if rank == culprit:
        still = {"gpu": {**GPUS["spins"], "utilization": [100] * (GPUS_HERE - 1) + [0]}}
        return [works, {**waits, **still, "scheduler": {"cpu": [0.1] * (GPUS_HERE - 1) + [0]}}]
    return [works, waits]


def scenario(rank, nodes, culprit, seconds, **_):
    """Return the part of one node."""
    args = ["--tp-size", str(GPUS_HERE * nodes), "--nnodes", str(nodes), "--node-rank", str(rank), "--port", "30000"]
    # Nodes are told in their own ways where they meet.
    args += ["--dist-init-addr", "10.77.0.1:5000" if rank == 0 else "tcp://10.77.0.1:5000"]
    server = {"version": "0.5.9", "args": args, "segments": segments(rank, culprit, seconds)}
    return scenario_of({"name": "part", "node": {"gpus": GPUS_HERE}, "servers": [server]})


def join_network(address):
    """Give this node its address."""
    for words in (f"addr add {address}/24 dev eth0", "link set eth0 up", "link set lo up"):
        subprocess.run(["ip", *words.split()], check=True)


async def play(part, folder, library, address):
    """Play until standard input ends."""
    players, state = live_servers(part, folder), folder / "gpus"
    show(state, part.node, [], 0.0)
    names = {f"STALLWATCH_{key}": value for key, value in SETTINGS.items()}
    names["STALLWATCH_EVIDENCE__DIRECTORY"] = str(folder / "evidence")
    serve = [sys.executable, "-m", "stallwatch", "serve", f"--web.listen-address={address}:19847"]
    with (folder / "exporter.log").open("w") as log:
        exporter = await asyncio.create_subprocess_exec(
            *serve, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, **environment(library, state), **names}
        )
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    begin = asyncio.get_running_loop().time()
    while not ended.done():
        t = asyncio.get_running_loop().time() - begin
        for player in players:
            await player.advance(t)
        show(state, part.node, players, t)
        await asyncio.wait([ended], timeout=0.5)
    exporter.kill()
    await exporter.wait()
    for player in players:
        await player.close()


def show(state, node, players, t):
    """Have the driver of this node show these GPUs."""
    fresh = state.with_suffix(".part")
    fresh.write_text(gpu_state(node, players, t))
    fresh.replace(state)


def main():
    """Wait for the network, and play."""
    told = json.loads(sys.argv[1])
    folder = Path(told["folder"])
    folder.mkdir(parents=True)
    sys.stdin.readline()
    join_network(told["address"])
    asyncio.run(play(scenario(**told), folder, Path(told["library"]), told["address"]))


if __name__ == "__main__":
    main()
