"""What is read, how often, and what comes of it? The only place with tasks, clocks and deadlines.

Read `COLLECTORS` first: a new signal is one file in `collectors/` and one line there. Once per tick every collector that
is due begins its round; what has come back by then makes the snapshot, and nothing that is late is waited for.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import msgspec

from stallwatch import discovery
from stallwatch.collectors import gpu, health, log, process
from stallwatch.config import Config
from stallwatch.history import History, Past
from stallwatch.journal import Changes
from stallwatch.lanes import CollectorError, Lane, LaneState, Outcome
from stallwatch.placement import Placement
from stallwatch.roster import Roster
from stallwatch.snapshot import Failure, Family, Moment, Reading, Server, Snapshot
from stallwatch.workers import Deadlines, Quarantine, Worker, WorkerError, WorkerState

logger = logging.getLogger("stallwatch.monitor")

OFFSET_STEP = 0.05
"""Monotonic times become Unix times by an offset; it follows the clock in steps, so that a time that is published does
not tremble by microseconds from one scrape to the next."""


RENEW_AFTER = 60.0


@dataclass(frozen=True, slots=True)
class Collector:
    """One signal: what it yields, which worker reads it ("" when it is read here), how often, what is asked for."""

    name: str
    reading: type[Reading]
    families: Callable[[Sequence[Any], Moment], Iterable[Family]]
    interval: Callable[[Config], float]
    worker: str = ""
    target: Callable[[Server], dict[str, Any] | None] = lambda _server: None


COLLECTORS = (
    Collector(gpu.NAME, gpu.GpuReading, gpu.families, lambda config: config.gpu.interval, worker="gpu"),
    Collector(process.NAME, process.ProcessReading, process.families, lambda config: config.interval, "host", process.target),
    Collector(log.NAME, log.LogReading, log.families, lambda config: config.interval, "host", log.target),
    Collector(health.NAME, health.HealthReading, health.families, lambda config: config.health.interval),
)
WORKER_MODULES = {
    "gpu": ("stallwatch.collectors.gpu",),
    "host": ("stallwatch.discovery", "stallwatch.collectors.process", "stallwatch.collectors.log"),
}


@dataclass(frozen=True, slots=True)
class View:
    """All that is published at one moment: the snapshot, what history makes of it, and how the exporter itself fares."""

    snapshot: Snapshot
    pasts: Mapping[str, Past]
    lanes: tuple[LaneState, ...]
    workers: tuple[WorkerState, ...]


def start_workers(config: Config, nvml: str = "pynvml") -> dict[str, Worker]:
    """Return the workers that the collectors in use need; each starts with its first request."""
    options = {"procfs": config.path.procfs, "nvml": nvml}
    wait = config.workers
    names = ["host", *(c.worker for c in COLLECTORS if c.worker == "gpu" and c.name not in config.collectors.disabled)]
    first = {"gpu": wait.start_deadline, "host": wait.deadline}
    return {
        name: Worker(name, WORKER_MODULES[name], options, Deadlines(wait.deadline, wait.start_deadline, first[name]))
        for name in names
    }


Collect = Callable[[], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class _Plan:
    """A lane that should be there: of which collector, server and life, how often, how patient, and how it reads."""

    key: tuple[str, str, str]
    interval: float
    patience: float
    make: Callable[[], Collect]


class Monitor:
    """Looks at the node once per tick and keeps the latest view of it."""

    def __init__(
        self, config: Config, workers: Mapping[str, Worker], health_collector: health.HealthCollector | None = None
    ) -> None:
        self._config = config
        self._workers = workers
        self._health = health_collector or health.HealthCollector()
        self._trial = Worker("trial", ["stallwatch.trial"], {"procfs": config.path.procfs}, _short(config))
        self._quarantine = Quarantine()
        self._trials: set[asyncio.Task[None]] = set()
        self._roster = Roster()
        self._servers: tuple[Server, ...] = self._roster.of((), config.servers)
        self._found: discovery.DiscoveryReading | None = None
        self._placement = Placement()
        self._history = History(lambda name: self._config.limits_of(name))
        self._changes = Changes(logger)
        self._renewed = time.monotonic()
        self._offset = time.time() - time.monotonic()
        self._lanes: dict[tuple[str, str, str], Lane] = {}
        self._set_lanes()
        self.view = View(Snapshot(self._moment()), {}, (), ())
        self._watchers: list[Callable[[View], None]] = []

    def watch(self, watcher: Callable[[View], None]) -> None:
        """Have a function called with each new view."""
        self._watchers.append(watcher)

    def configure(self, config: Config) -> None:
        """Go on with another configuration; what was seen so far is kept."""
        self._config = config
        self._found = None
        self._set_lanes()

    async def run(self) -> None:
        """Tick until cancelled."""
        due = time.monotonic()
        while True:
            try:
                await self.tick()
            except Exception:  # a fault of ours in one look must not end the watch; the snapshot that ages tells of it
                logger.exception("a look failed")
            due = max(due + self._config.interval, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    async def tick(self) -> None:
        """Begin what is due, give it a moment, and publish the view of what has come back."""
        self._harvest()
        now = time.monotonic()
        begun = [task for lane in self._lanes.values() if (task := lane.start(now)) and lane.collector != health.NAME]
        if begun:
            await asyncio.wait(begun, timeout=self._config.interval / 2)
        self._harvest()
        self._try_quarantined()
        self._renew_outdated()
        self.view = self._look()
        for watcher in self._watchers:
            watcher(self.view)

    async def close(self) -> None:
        """End the workers and what is in flight, within a second, whatever is stuck."""
        for lane in self._lanes.values():
            lane.cancel()
        for trial in self._trials:
            trial.cancel()
        await asyncio.gather(*(worker.close() for worker in (*self._workers.values(), self._trial)))
        await self._health.close()

    def _set_lanes(self) -> None:
        """Have one lane per collector, and one per server for those that are asked server by server."""
        wanted = {plan.key: plan for plan in self._plans()}
        for key in set(self._lanes) - set(wanted):
            self._lanes.pop(key).cancel()
        for key, plan in wanted.items():
            if key not in self._lanes:
                self._lanes[key] = Lane(plan.key[0], plan.make(), plan.key[1])
            self._lanes[key].pace(plan.interval, plan.patience)

    def _plans(self) -> Iterable[_Plan]:
        config, patience = self._config, self._config.workers.deadline
        ask = partial(self._ask, "host", discovery.NAME, discovery.DiscoveryReading, discovery.target)
        yield _Plan((discovery.NAME, "", ""), config.discovery.interval, patience, ask)
        for collector in COLLECTORS:
            if collector.name in config.collectors.disabled:
                continue
            interval = collector.interval(config)
            if collector.worker:
                ask = partial(self._ask, collector.worker, collector.name, collector.reading, collector.target)
                yield _Plan((collector.name, "", ""), interval, patience, ask)
                continue
            for server in self._servers:
                settings = config.health_of(server.name)
                longest = settings.timeout * len(settings.paths) + patience
                key = (collector.name, server.name, server.incarnation)
                yield _Plan(key, interval, longest, partial(self._probe, server.name))

    def _probe(self, name: str) -> Collect:
        async def probe() -> Outcome:
            server = next((server for server in self._servers if server.name == name), None)
            if server is None:
                raise CollectorError("gone", "the server has gone")
            if self._config.health.when == "quiet" and self._moves(name):
                return None, (Failure(health.NAME, "quiet", "other signals move, so it is not probed", name),)
            return await self._health.collect(server, self._config.health_of(name))

        return probe

    def _moves(self, name: str) -> bool:
        past = self.view.pasts.get(name)
        if past is None or not past.moved:
            return False
        return time.monotonic() - max(past.moved.values()) < past.limits["suspect"]

    def _ask(
        self, worker: str, name: str, reading: type[Reading], target: Callable[[Server], dict[str, Any] | None]
    ) -> Collect:
        reply = msgspec.defstruct("Reply", [("reading", reading | None), ("failures", tuple[Failure, ...])])
        decoder = msgspec.json.Decoder(reply)

        async def collect() -> Outcome:
            targets = [asked for server in self._servers if (asked := target(server)) is not None]
            line = await self._workers[worker].call(name, targets, self._quarantine.notes())
            try:
                answer = decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise CollectorError("garbage", f"the {worker} worker sent no {name} reading: {error}") from error
            return answer.reading, answer.failures  # type: ignore[attr-defined]

        return collect

    def _harvest(self) -> None:
        now = time.monotonic()
        for lane in self._lanes.values():
            error = lane.harvest(now)
            if error:
                self._quarantine.add(error.stuck_in)
        found, _ = self._lanes[discovery.NAME, "", ""].outcome(now)
        # A look that fails does not make servers vanish: their own signals tell when they are gone.
        if isinstance(found, discovery.DiscoveryReading) and found is not self._found:
            self._found = found
            self._servers = self._roster.of(found.servers, self._config.servers)
            self._health.forget({server.name for server in self._servers})
            self._set_lanes()

    def _renew_outdated(self) -> None:
        """Replace a worker that holds the library of a driver which has been replaced: only a new process loads the new one."""
        now = time.monotonic()
        lane = self._lanes.get((gpu.NAME, "", ""))
        outdated = lane is not None and any(f.reason == "version_mismatch" for f in lane.outcome(now)[1])
        if outdated and now - self._renewed >= RENEW_AFTER:
            self._renewed = now
            self._workers["gpu"].retire()

    def _try_quarantined(self) -> None:
        for note in self._quarantine.due():
            if note.startswith("gpu "):
                self._retry_gpu(note)
            elif not self._trials:
                trial = asyncio.ensure_future(self._try(note))
                self._trials.add(trial)
                trial.add_done_callback(self._trials.discard)

    def _retry_gpu(self, note: str) -> None:
        """Read a GPU again only once the worker that was stuck with it has ended: two stuck ones would cost all GPUs."""
        if self._workers["gpu"].state().abandoned:
            self._quarantine.add(note)
        else:
            self._quarantine.release(note)

    async def _try(self, note: str) -> None:
        try:
            await self._trial.call("trial", [{"note": note}])
        except WorkerError as error:
            logger.info("still does not come back", extra={"reading": note, "reason": error.reason})
            self._quarantine.add(note)
        else:
            self._quarantine.release(note)
            await self._trial.close()

    def _look(self) -> View:
        moment = self._moment()
        outcomes = [lane.outcome(moment.monotonic) for lane in self._lanes.values()]
        names = {server.name for server in self._servers}
        readings = tuple(_of_present(reading, names) for reading, _ in outcomes if reading is not None)
        failures = tuple(failure for _, some in outcomes for failure in some) + tuple(self._absences())
        self._changes.see({(f.collector, f.server, f.reason): f.detail for f in failures})
        seen = Snapshot(moment, (), readings, failures)
        servers = self._placement.place(self._servers, seen.get(gpu.GpuReading))
        snapshot = Snapshot(moment, servers, readings, failures)
        lanes = tuple(lane.state(moment.monotonic) for lane in self._lanes.values())
        workers = (*self._workers.values(), self._trial)
        return View(snapshot, self._history.look(snapshot), lanes, tuple(worker.state() for worker in workers))

    def _absences(self) -> Iterable[Failure]:
        for server in self._servers:
            if server.log_path is None and log.NAME not in self._config.collectors.disabled:
                reason, _, detail = server.log_absence.partition(":")
                yield Failure(log.NAME, reason or "no_log", detail.strip(), server.name)

    def _moment(self) -> Moment:
        now = Moment.now()
        if abs(now.unix - now.monotonic - self._offset) > OFFSET_STEP:
            self._offset = now.unix - now.monotonic
        return Moment(now.monotonic + self._offset, now.monotonic, now.boottime)


def _of_present(reading: Reading, names: set[str]) -> Reading:
    """Return the reading without what it says of servers that have gone since it was asked for."""
    parts = {field.name: getattr(reading, field.name) for field in fields(reading)}
    lists = {name: part for name, part in parts.items() if isinstance(part, tuple) and part and hasattr(part[0], "server")}
    if all(item.server in names for part in lists.values() for item in part):
        return reading
    kept: dict[str, Any] = {name: tuple(item for item in part if item.server in names) for name, part in lists.items()}
    return replace(reading, **kept)


def _short(config: Config) -> Deadlines:
    return Deadlines(config.workers.deadline, config.workers.deadline, config.workers.deadline)
