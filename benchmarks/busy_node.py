"""What is watched when costs are measured? A busy server of titled ranks, its GPUs, log and port, beside a crowd.

Call it among processes of its own (tests/private_python.sh): all that runs on the node is then what is played.
"""

import asyncio
import random
import re
import subprocess
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from nvml_library import build  # of tests/
from stallwatch.simulation.pager import free_port
from stallwatch.simulation.played import PlayedGpus, PlayedServer

HERE = Path(__file__).parent
ENGINE_PAGE = HERE.parent / "tests" / "data" / "engine" / "sglang_0.5.9_busy.http"
READY = "[2026-01-01 00:00:00] The server is fired up and ready to roll!"
DECODE = (
    "[2026-01-01 00:00:00 TP{rank}] Decode batch. #running-req: {n}, #token: {tokens}, token usage: 0.05, "
    "cuda graph: True, gen throughput (token/s): 412.08, #queue-req: 0,"
)
PREFILL = "[2026-01-01 00:00:00 TP0] Prefill batch. #new-seq: 1, #new-token: {n}, #cached-token: 0, #queue-req: 0,"
ACCESS = '[2026-01-01 00:00:00] INFO:     127.0.0.1:{n} - "POST /v1/chat/completions HTTP/1.1" 200 OK'
WRITES_PER_SECOND = 10


def lines_of(dice: random.Random, count: int) -> list[str]:
    """Return what a busy server logs: mostly decode batches, some prefills, an access line for each request."""
    kinds = dice.choices((DECODE, PREFILL, ACCESS), (6, 2, 2), k=count)
    return [
        kind.format(rank=dice.randrange(8), n=dice.randrange(1, 60000), tokens=dice.randrange(90000)) for kind in kinds
    ]


class BusyNode:
    """A node on which one server of so many ranks works; `threads` are those of each rank."""

    def __init__(  # noqa: PLR0913 each is a number of the node
        self, folder: Path, *, ranks: int = 8, gpus: int = 8, others: int = 500, threads: int = 1, lines: int = 200
    ) -> None:
        self.port, self._folder, self._ranks, self._others = free_port(), folder, ranks, others
        self._held = gpus
        self._threads, self._lines, self._dice = threads, lines, random.Random(1)  # noqa: S311 dice
        self.gpus = PlayedGpus(folder / "gpus", gpus)
        library = build(folder)
        self.environ = {"LD_LIBRARY_PATH": str(library), "STALLWATCH_FAKE_NVML": str(folder / "gpus")}
        sizes = ["--tp-size", str(ranks), "--model-path", "/models/large", "--enable-metrics"]
        self.server = PlayedServer(folder, [*sizes, "--port", str(self.port)])
        self._page = ENGINE_PAGE.read_bytes().partition(b"\r\n\r\n")[2].decode()
        self._tokens = 0
        self._stack = AsyncExitStack()

    @property
    def log(self) -> Path:
        """Return where the server logs."""
        return self.server.log_path

    async def __aenter__(self):  # noqa: ANN204 itself
        """Start all of it."""
        self._stack.push_async_callback(self.server.stop)
        await self.server.start()
        titles = [f"sglang::scheduler_TP{rank}" for rank in range(self._ranks)]
        pids = await self.server.spawn(*titles, "sglang::detokenizer")
        if self._threads > 1:
            await self.server.tell(to={title: {"threads": self._threads - 1} for title in titles})
        self.gpus.hold([pids[title] for title in titles][: self._held])
        await self.server.tell(listen=self.port, health=200)
        await self.server.log(READY)
        if self._others:
            self._stack.callback(ended, bystanders(self._folder, self._others))
        for work in (self._write(), self._work()):
            self._stack.push_async_callback(_cancelled, asyncio.create_task(work))
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all of it."""
        await self._stack.aclose()

    async def _write(self) -> None:
        share = self._lines // WRITES_PER_SECOND
        texts = ["".join(f"{line}\n" for line in lines_of(self._dice, share)) for _ in range(3)]  # made before: cheap
        with self.log.open("a") as log:
            while share:
                log.write(self._dice.choice(texts))
                log.flush()
                await asyncio.sleep(1 / WRITES_PER_SECOND)

    async def _work(self) -> None:
        """Have the GPUs and the engine's counters move each second."""
        while True:
            self._tokens += self._dice.randrange(300, 500)
            page = re.sub(r"(?m)^(sglang:realtime_tokens_total\{.*\}) .*$", rf"\1 {self._tokens}", self._page)
            await self.server.tell(metrics=page)
            self.gpus.show(utilization=self._dice.randrange(60, 100), power_watts=self._dice.randrange(350, 600))
            await asyncio.sleep(1)


def bystanders(folder: Path, count: int) -> "subprocess.Popen[bytes]":
    """Start so many processes that have nothing to do with any server."""
    program = folder / "bystanders"
    if not program.exists():
        subprocess.run(["gcc", "-O2", "-Wall", "-Werror", "-o", program, HERE / "bystanders.c"], check=True)  # noqa: S607
    process = subprocess.Popen([program, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    if process.stdout is None or process.stdout.readline() != b"ready\n":
        raise RuntimeError(f"{count} processes could not be started")
    return process


def ended(process: "subprocess.Popen[bytes]") -> None:
    """End a process that does with its input."""
    process.communicate(b"")


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
