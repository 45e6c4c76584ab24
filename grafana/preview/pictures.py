"""How do the dashboards look when something happens? Plays a small fleet and draws each of them.

Each node has processes of its own, watched by the real exporter and scraped by a real Prometheus with the shipped
rules. All of it happens in namespaces of its own, so that nothing else on this machine is in the pictures.
"""

import asyncio
import fcntl
import json
import os
import re
import shutil
import socket
import struct
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from browser import DrawError
from draw import draw, job_for

from stallwatch.config import ConfigError
from stallwatch.simulation.scenario import load_scenario, scenario_file

ROOT = Path(__file__).parents[2]
NODES = {"gpu-node-1": "shared_node", "gpu-node-2": "two_servers_one_hangs"}
SPEED = 3.0
"""How much faster than life; more would crowd a small machine."""
MOMENT = 9 * 60.0
"""When the pictures are taken, in the time of the scenarios."""
WIDTH = 1600
EXPORTER_PORT = 19847
PROMETHEUS_PORT = 9090
INSIDE = "STALLWATCH_PICTURES_INSIDE"
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture: of which dashboard, of what, and how far down."""

    dashboard: str
    height: int
    variables: dict[str, list[str]] = field(default_factory=dict)


SHOTS = (
    Shot("fleet", 1500),
    Shot("server", 1500, {"instance": ["gpu-node-1"], "server": ["sglang:30003"]}),
    Shot("exporter", 1600),
)


async def main(folder: Path) -> int:
    """Play, draw, end what was started."""
    with tempfile.TemporaryDirectory(prefix="stallwatch-pictures-", ignore_cleanup_errors=True) as name:
        directory, running = Path(name), list[Process]()
        try:
            running.append(await _prometheus(directory))
            for number, scenario in enumerate(NODES.values()):
                running.append(await _node(number, scenario, directory))
            print(f"playing for {MOMENT / SPEED:.0f} s", flush=True)
            await asyncio.sleep(MOMENT / SPEED)
            _all_run(running, directory)
            await _draw_all(folder)
        except (DrawError, ConfigError) as error:
            print(error, file=sys.stderr)
            return 1
        finally:
            await _end(running)
    return 0


async def _end(running: Sequence[Process]) -> None:
    for process in running:
        if process.returncode is None:
            process.kill()  # unshare takes no other signal; what it started ends with it
    await asyncio.gather(*(process.wait() for process in running))


def _all_run(running: Sequence[Process], directory: Path) -> None:
    if any(process.returncode is not None for process in running):
        ends = "\n".join(f"{log.stem}: {log.read_text()[-1000:]}" for log in sorted(directory.glob("*.log")))
        raise DrawError(f"a part has ended: {ends}")


async def _draw_all(folder: Path) -> None:
    end = time.time()
    for shot in SHOTS:
        picture = folder / f"dashboard_{shot.dashboard}.png"
        job = job_for(
            ROOT / "grafana" / "dashboards" / f"{shot.dashboard}.json",
            f"http://127.0.0.1:{PROMETHEUS_PORT}",
            begin=end - MOMENT / SPEED,
            end=end,
            scrape_interval=1,
            variables=shot.variables,
        )
        drawing = await draw(job, WIDTH, shot.height)
        picture.write_bytes(drawing.png)
        for problem in drawing.problems:
            print(f"{shot.dashboard}: {problem}", flush=True)
        print(f"{picture}: {picture.stat().st_size // 1024} KiB", flush=True)


async def _prometheus(directory: Path) -> Process:
    """Scrape and evaluate each second, by the shipped rules."""
    rules = directory / "rules"
    rules.mkdir()
    for source in (ROOT / "alerts" / "rules").glob("*.yml"):
        (rules / source.name).write_text(re.sub(r"(?m)^(\s+)interval: \S+", r"\1interval: 1s", source.read_text()))
    targets = [
        {"targets": [f"127.0.0.1:{EXPORTER_PORT + number}"], "labels": {"instance": node}}
        for number, node in enumerate(NODES)
    ]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules / "*.yml")],
        "scrape_configs": [{"job_name": "stallwatch", "static_configs": targets}],
    }
    file = directory / "prometheus.yml"
    file.write_text(json.dumps(config))  # JSON is YAML
    return await _start(
        [
            "prometheus",
            f"--config.file={file}",
            f"--storage.tsdb.path={directory / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}",
        ],
        directory / "prometheus.log",
    )


async def _node(number: int, scenario: str, directory: Path) -> Process:
    """Play a scenario among processes that no other node sees, on ports that no other node uses."""
    file = directory / f"{scenario}.yml"
    file.write_text(re.sub(r'(?<=[":])30(?=\d{3}")', f"3{number}", scenario_file(scenario).read_text()))
    seconds = load_scenario(file).seconds / SPEED
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    play = [sys.executable, "-m", "stallwatch", "demo", str(file), "--seconds", f"{seconds:.0f}"]
    return await _start([*alone, *play, "--port", str(EXPORTER_PORT + number)], directory / f"{scenario}.log")


async def _start(command: Sequence[str], log: Path) -> Process:
    with log.open("wb") as output:
        return await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=output, stderr=output)


def enter_namespaces() -> None:
    """Start this script again where it sees no other process and no network but a loopback interface of its own."""
    if shutil.which("unshare") is None:
        raise DrawError("unshare (of util-linux) is needed")
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *user, "--net", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, *sys.argv]
    os.execvpe(command[0], command, {**os.environ, INSIDE: "1"})


def raise_loopback() -> None:
    """Bring the loopback interface up."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))


if __name__ == "__main__":
    if INSIDE not in os.environ:
        enter_namespaces()
    raise_loopback()
    sys.exit(asyncio.run(main(Path(sys.argv[1]))))
