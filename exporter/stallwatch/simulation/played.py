"""How is a server played by real processes on this machine?

A launcher with the real command line, one titled process per rank, a real log file, a real port or a closed one, and a
GPU driver that is a state file (see `simulation/nvml.py`). All of them end when whoever plays them does.
"""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

STUB = "from stallwatch.simulation.launcher import main\n\nif __name__ == '__main__':\n    main()\n"


class PlayedGpus:
    """The state file that the stand-in for the driver reads at each call."""

    def __init__(self, path: Path, count: int, *, total_gib: int = 96) -> None:
        self.path = path
        self._count = count
        self._levels: dict[str, object] = {"memory_total_mib": total_gib * 1024, "power_limit_watts": 600}
        self._processes: list[tuple[int, int]] = []
        self.show(memory_mib=600, utilization=0, power_watts=60)

    def show(self, **levels: float) -> None:
        """Set levels of all GPUs, by the words of the state file."""
        self._levels |= levels
        lines = ["driver 580.95.05", f"gpus {self._count}"]
        lines += [f"gpu * {word} {value:g}" for word, value in self._levels.items() if isinstance(value, (int, float))]
        memory = int(float(str(self._levels["memory_mib"])))
        lines += [f"gpu {index} process {pid} {memory}" for index, pid in self._processes]
        part = self.path.with_suffix(".part")
        part.write_text("\n".join(lines) + "\n")
        part.replace(self.path)

    def hold(self, pids: Iterable[int]) -> None:
        """Have the i-th pid hold memory on GPU i."""
        self._processes = list(enumerate(pids))
        self.show()


class PlayedServer:
    """One played server: start it, tell it what to do, end it."""

    def __init__(
        self,
        directory: Path,
        arguments: Iterable[str],
        environ: Mapping[str, str] | None = None,
        module: str = "sglang.launch_server",
    ) -> None:
        self.log_path = directory / "server.log"
        self._directory = directory
        self._module = module
        self._arguments = list(arguments)
        self._environ = dict(os.environ if environ is None else environ)
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        """Return the pid of the launcher."""
        return self._running.pid

    @property
    def _running(self) -> Process:
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process

    async def start(self) -> None:
        """Start the main process, its output in the log."""
        stub = self._directory.joinpath(*self._module.split(".")).with_suffix(".py")
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_text(STUB)
        ours = str(Path(__file__).parents[2])
        path = os.pathsep.join((str(self._directory), ours, self._environ.get("PYTHONPATH", "")))
        arguments = [sys.executable, "-m", self._module, *self._arguments]
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                env={**self._environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C reaches the player, who ends it in order
            )

    async def tell(self, **command: Any) -> dict[str, int]:
        """Have the launcher obey one command, and return its children's pids by title once it has."""
        process = self._running
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the server has no pipes")
        process.stdin.write(json.dumps(command).encode() + b"\n")
        reply = await process.stdout.readline()
        if not reply:
            raise RuntimeError(f"the played server ended: {self.log_path.read_text()[-500:]}")
        return dict(json.loads(reply))

    async def spawn(self, *titles: str) -> dict[str, int]:
        """Start child processes of these titles and return their pids."""
        pids = await self.tell(spawn=list(titles))
        return {title: pids[title] for title in titles}

    async def log(self, *lines: str) -> None:
        """Write lines to the log, a newline after each."""
        await self.tell(log=[f"{line}\n" for line in lines])

    async def crash(self) -> None:
        """Kill all its processes at once."""
        if self._process and self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        self._process = None

    async def stop(self) -> None:
        """End all its processes."""
        if self._process is None:
            return
        if self._process.stdin:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except asyncio.TimeoutError:
            self._process.kill()
            await self._process.wait()
