"""What is gathered of a server that stands still? Read `SOURCES`: each in its own time, each free to fail alone.

The sources of the `evidence` worker are read one after another by a child that is spawned for it and ends afterwards;
those of the `gpu` worker by the one that uses the driver anyway.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from stallwatch import aside
from stallwatch.config import Config
from stallwatch.node.procfs import Procfs
from stallwatch.redaction import told
from stallwatch.snapshot import Failure, Reading, Server
from stallwatch.sources import descriptors, environment, gpus, kernel, lines, ras, stacks, threads
from stallwatch.workers import WorkerError

LONGEST_SECONDS = 20.0
"""How long one source may take in all: the deadline of its worker, and its start."""

STACKS_SECONDS = 75.0
"""Longer than `stacks` gives itself for all processes of a server."""
RAS_SECONDS = 60.0
NOTHING_TO_GIVE = frozenset({"nothing_there", "not_listening", "other_network_namespace", "switched_off", "released"})

Outcome = tuple[Reading | None, tuple[Failure, ...]]
Ask = Callable[[str, str, type[Reading], list[dict[str, Any]]], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class Source:
    """One source that a worker reads: its name is also that of its file."""

    name: str
    worker: str
    reading: type[Reading]
    target: Callable[[Server], dict[str, Any] | None]


@dataclass(frozen=True, slots=True)
class Found:
    """What one source gave, and in how many seconds."""

    source: str
    reading: Reading | None
    failures: tuple[Failure, ...]
    seconds: float

    @property
    def broken(self) -> bool:
        """Tell whether it gave nothing although there was something to give."""
        return self.reading is None and any(one.reason not in NOTHING_TO_GIVE for one in self.failures)


SOURCES = (
    Source(threads.NAME, "evidence", threads.ThreadsReading, threads.target),
    Source(gpus.NAME, "gpu", gpus.GpuStateReading, gpus.target),
    Source(descriptors.NAME, "evidence", descriptors.DescriptorsReading, descriptors.target),
    Source(lines.NAME, "evidence", lines.LinesReading, lines.target),
    Source(kernel.NAME, "evidence", kernel.KernelLinesReading, kernel.target),
    Source(environment.NAME, "evidence", environment.EnvironmentReading, environment.target),
)


class Reader(Protocol):
    """What reads for us once, beside the daily rounds."""

    @property
    def config(self) -> Config:
        """Return the configuration that is in force."""

    async def ask(self, worker: str, name: str, reading: type[Reading], targets: list[dict[str, Any]]) -> Outcome:
        """Return what a worker reads."""

    def end_worker(self, name: str) -> None:
        """Have a worker end that is not needed for now."""


class Gatherer:
    """Asks every source about one server."""

    def __init__(self, reader: Reader, sources: Iterable[Source] = SOURCES) -> None:
        self._reader = reader
        self._sources = tuple(sources)

    async def gather(self, server: Server) -> tuple[Found, ...]:
        """Return what each source gives of this server, in their order."""
        try:
            found = [await _found(source, server, self._reader.ask) for source in self._sources]
        finally:
            self._reader.end_worker("evidence")
        if self._reader.config.evidence.stacks:
            found.append(await timed(stacks.NAME, server, _stacks(server, found), STACKS_SECONDS))
        if len(server.ranks) > 1:
            found.append(await timed(ras.NAME, server, _ras(server, found), RAS_SECONDS))
        return tuple(found)


async def _stacks(server: Server, found: Iterable[Found]) -> Outcome:
    """Return the stacks of processes of which is known that no thread is in uninterruptible sleep."""
    seen = next((one.reading for one in found if isinstance(one.reading, threads.ThreadsReading)), None)
    if seen is None:
        why = "whether a thread is in uninterruptible sleep could not be read, so py-spy was not called"
        return None, (Failure(stacks.NAME, "threads_unknown", why, server.name),)
    unseen = {process.pid for process in server.processes} - {process.pid for process in seen.processes}
    return await stacks.read(server, threads.uninterruptible(seen) | unseen)


async def _ras(server: Server, found: Iterable[Found]) -> Outcome:
    """Return what NCCL says, where one of these processes listens for such questions."""
    if server.network or server.address_absence.startswith("other_network_namespace"):
        why = "its processes are in another network namespace; what answers in ours is another's"
        return None, (Failure(ras.NAME, "other_network_namespace", why, server.name),)
    readings = [one.reading for one in found]
    held = next((one for one in readings if isinstance(one, descriptors.DescriptorsReading)), None)
    set_up = next((one for one in readings if isinstance(one, environment.EnvironmentReading)), None)
    variables = [one.variables for one in set_up.processes] if set_up else []
    address = next((each["NCCL_RAS_ADDR"] for each in variables if "NCCL_RAS_ADDR" in each), "")
    listens = bool(held) and ras.is_listened_on(held.processes if held else (), address)
    pids = [process.pid for process in server.processes]
    namespaced = await aside.begin(lambda: {pid: Procfs().namespaced_pids(pid) for pid in pids}, "ras")
    return await ras.read(server, ras.Port(listens, namespaced, address))


async def _found(source: Source, server: Server, ask: Ask) -> Found:
    target = source.target(server)
    if target is None:
        failure = Failure(source.name, "nothing_there", "this server has nothing of it to read", server.name)
        return Found(source.name, None, (failure,), 0.0)
    return await timed(source.name, server, ask(source.worker, source.name, source.reading, [target]))


async def timed(name: str, server: Server, reading: Awaitable[Outcome], within: float = LONGEST_SECONDS) -> Found:
    """Return what a source gives within its time; whatever goes wrong with it is why it is missing."""
    begun = time.monotonic()
    try:
        value, failures = await asyncio.wait_for(reading, within)
    except (asyncio.TimeoutError, TimeoutError):
        value, failures = None, (Failure(name, "timeout", f"no answer in {within:g} s", server.name),)
    except WorkerError as error:
        value, failures = None, (Failure(name, error.reason, str(error), server.name),)
    except Exception as error:  # noqa: BLE001 the one place where a source's fault becomes a failure
        value, failures = None, (Failure(name, "error", told(error), server.name),)
    return Found(name, value, failures, round(time.monotonic() - begun, 3))
