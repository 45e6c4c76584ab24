"""What comes of what is read? The loop, and the only place with tasks, clocks and deadlines.

Once per tick every collector of `signals.py` that is due begins its round; what has come back by then makes the
snapshot, and nothing that is late is waited for.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from stallwatch import discovery
from stallwatch.collectors import engine, gpu, health, log
from stallwatch.config import Config
from stallwatch.expense import own_expense
from stallwatch.lanes import Collect, Lanes, Outcome, Plan, Rest, decoder, rest_after
from stallwatch.mending import Mending
from stallwatch.news import News, no_log
from stallwatch.recollection import Recollection
from stallwatch.release import Release, Released
from stallwatch.roster import Roster
from stallwatch.signals import COLLECTORS, ON_DEMAND, Collector, Direct
from stallwatch.snapshot import Failure, Moment, Reading, Server, Snapshot
from stallwatch.steady_clock import SteadyClock
from stallwatch.view import Kept, View
from stallwatch.watcher import Judged, Watcher
from stallwatch.workers import Worker, WorkerError

logger = logging.getLogger("stallwatch.monitor")


class Monitor:
    """Looks at the node once per tick and keeps the latest view of it."""

    def __init__(
        self,
        config: Config,
        workers: Mapping[str, Worker],
        direct: Mapping[str, Direct] | None = None,
        clock: Callable[[], Moment] = Moment.now,
    ) -> None:
        self._config = config
        self._workers = workers
        self._direct = direct or {health.NAME: health.HealthCollector(), engine.NAME: engine.EngineCollector()}
        self._clock = clock
        self._mending = Mending(workers["gpu"], workers["trial"], lambda: clock().monotonic)
        self._release = Release(workers["gpu"], clock)
        self._roster = Roster()
        self._found: tuple[Server, ...] = ()
        self._servers: tuple[Server, ...] = ()
        self._gone: tuple[Server, ...] = ()
        self._watcher = Watcher(lambda name: self._config.limits_of(name))  # noqa: PLW0108 reloads replace the config
        self._news = News()
        self._recollection = Recollection()
        self._moment = SteadyClock(clock)
        self._lanes = Lanes()
        self._enlist()
        self.view = View(Snapshot(self._moment()), {}, (), ())
        self._watchers: list[Callable[[View], None]] = []
        self.kept: Callable[[], Kept | None] = lambda: None

    @property
    def config(self) -> Config:
        """Return the configuration that is in force."""
        return self._config

    def watch(self, watcher: Callable[[View], None]) -> None:
        """Have a function called with each new view."""
        self._watchers.append(watcher)

    def configure(self, config: Config) -> None:
        """Go on with another configuration; what was seen so far is kept."""
        self._config = config
        self._enlist()
        for name in self._workers.keys() - self._used():
            self._workers[name].retire()

    async def ask(self, worker: str, name: str, reading: type[Reading], targets: list[dict[str, Any]]) -> Outcome:
        """Return what a worker reads for once, beside the rounds; raises WorkerError, CollectorError."""
        try:
            return await self._asked(worker, name, targets, decoder(name, reading))
        except WorkerError as error:
            self._mending.stuck(error.stuck_in)
            raise

    async def _asked(
        self, worker: str, name: str, targets: list[dict[str, Any]], decode: Callable[[bytes], Outcome]
    ) -> Outcome:
        if worker == "gpu" and (absence := self._gpu_absence()):
            return None, (absence,)
        return decode(await self._workers[worker].call(name, targets, self._mending.left_alone()))

    def end_worker(self, name: str) -> None:
        """Have a worker end that is not needed for now; the next request starts another."""
        self._workers[name].retire()

    def _gpu_absence(self) -> Failure | None:
        if gpu.NAME in self._config.collectors.disabled:
            return Failure(gpu.NAME, "switched_off", "GPUs are not to be read")
        return self._release.failure()

    async def release_gpu(self, seconds: float) -> Released:
        """Let go of the GPUs for so long, so that their driver can be unloaded, and return what still holds them."""
        self._release.begin(seconds)
        if lane := self._lanes.of_node(gpu.NAME):
            lane.begin_anew()
        return await self._release.carry_out()

    def remember(self, now: float) -> Any:
        """Return what an exporter that is started again can go on with."""
        return self._recollection.waiting(now) or self._watcher.remember(now)

    def recall(self, remembered: Any) -> None:
        """Go on with what an exporter before this one remembered, once it is seen which servers are still there."""
        self._recollection = Recollection(remembered, self._clock().monotonic)

    async def run(self) -> None:
        """Tick until cancelled."""
        due, fault = time.monotonic(), ""
        while True:
            try:
                await self.tick()
                fault = ""
            except Exception as error:  # a fault of ours in one look must not end the watch; the snapshot gets old
                if fault != (fault := repr(error)):
                    logger.exception("a look failed")
            due = max(due + self._config.interval, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    async def tick(self) -> None:
        """Begin what is due, give it a moment, and publish the view of what has come back."""
        self._harvest()
        now = self._clock().monotonic
        begun = [task for lane in self._lanes if (task := lane.start(now, self._lives)) and not lane.server]
        if begun:
            await asyncio.wait(begun, timeout=self._config.interval / 2)
        self._harvest()
        self._mend()
        self.view = self._look()
        for watcher in self._watchers:
            watcher(self.view)

    async def close(self) -> None:
        """End the workers and what is in flight, within a second, whatever is stuck."""
        for lane in self._lanes:
            lane.cancel()
        self._mending.cancel()
        await asyncio.gather(*(worker.close() for worker in self._workers.values()))
        await asyncio.gather(*(collector.close() for collector in self._direct.values()))

    def _enlist(self) -> None:
        """Watch the servers that were found and are configured, and have a lane for all that is to be read."""
        present = self._roster.of(self._found, self._config.servers)
        names = {server.name for server in present}
        # The log of a server that has gone is read on: it tells whether that was meant.
        self._gone = tuple(server for server in self._gone if server.name not in names)
        self._present, self._servers = present, (*present, *self._gone)
        self._lives = frozenset((server.name, server.incarnation) for server in self._servers)
        self._present_lives = frozenset((server.name, server.incarnation) for server in present)
        for collector in self._direct.values():
            collector.forget(names)
        self._lanes.have(self._plans())

    def _plans(self) -> Iterator[Plan]:
        config, patience = self._config, self._config.workers.deadline
        ask = partial(self._ask, "host", discovery.NAME, discovery.DiscoveryReading, discovery.target)
        yield Plan((discovery.NAME, "", ""), config.discovery.interval, patience, ask)
        for collector in self._enabled():
            interval = collector.interval(config)
            if collector.worker:
                ask = partial(self._ask, collector.worker, collector.name, collector.reading, collector.target)
                yield Plan((collector.name, "", ""), interval, patience, ask)
                continue
            for server in self._present:
                longest = collector.settings(config, server.name).longest + patience
                key = (collector.name, server.name, server.incarnation)
                read = partial(self._read, collector, server.name)
                yield Plan(key, interval, longest, read, self._rests(collector, server.name))

    def _enabled(self) -> tuple[Collector, ...]:
        return tuple(collector for collector in COLLECTORS if collector.name not in self._config.collectors.disabled)

    def _used(self) -> set[str]:
        given_up = set() if self._release.until is None else {"gpu"}
        return {"host", *ON_DEMAND, *(collector.worker for collector in self._enabled())} - given_up

    def _read(self, collector: Collector, name: str) -> Collect:
        async def read() -> Outcome:
            server = next(server for server in self._servers if server.name == name)
            if collector.name == health.NAME and self._config.health.when == "quiet" and self._moves(name):
                return None, (Failure(health.NAME, "quiet", "other signals move, so it is not probed", name),)
            return await self._direct[collector.name].collect(server, collector.settings(self._config, name))

        return read

    def _rests(self, collector: Collector, name: str) -> Rest:
        """Ask a server that answers slowly less often, yet often enough to judge it; one that fails, as ever."""
        most = self._config.limits_of(name).suspect / 2

        def rest(reading: Reading, took: float) -> float:
            return rest_after(took, most) if collector.answered(reading) else 0.0

        return rest

    def _moves(self, name: str) -> bool:
        past = self.view.pasts.get(name)
        if past is None or not past.moved:
            return False
        return self._clock().monotonic - max(past.moved.values()) < past.limits["suspect"]

    def _ask(
        self, worker: str, name: str, reading: type[Reading], target: Callable[[Server], dict[str, Any] | None]
    ) -> Collect:
        decode = decoder(name, reading)

        async def collect() -> Outcome:
            targets = [asked for server in self._servers if (asked := target(server)) is not None]
            return await self._asked(worker, name, targets, decode)

        return collect

    def _harvest(self) -> None:
        now = self._clock().monotonic
        for lane in self._lanes:
            if error := lane.harvest(now):
                self._mending.stuck(error.stuck_in)
        found, failures = self._outcome(discovery.NAME)
        # A look that fails does not make servers vanish: their own signals tell when they are gone.
        if not isinstance(found, discovery.DiscoveryReading):
            return
        unseen = [failure.reason for failure in failures if not failure.server]
        self._roster.recall(self._recollection.take(found.servers, unseen, now, self._watcher))
        if found.servers is not self._found:
            self._found = found.servers
            self._enlist()

    def _mend(self) -> None:
        self._mending.try_again()
        if any(failure.reason == "version_mismatch" for failure in self._outcome(gpu.NAME)[1]):
            self._mending.renew()

    def _outcome(self, collector: str) -> Outcome:
        lane = self._lanes.of_node(collector)
        return lane.outcome(self._clock().monotonic) if lane else (None, ())

    def _look(self) -> View:
        moment = self._moment()
        now = moment.monotonic
        # A round that was under way when a server went may still tell of it; only the log of one that has gone counts.
        outcomes = [
            lane.outcome_for(self._lives if lane.collector == log.NAME else self._present_lives, now)
            for lane in self._lanes
        ]
        readings = tuple(reading for reading, _ in outcomes if reading is not None)
        failures = tuple(failure for _, some in outcomes for failure in some) + self._without_log()
        lanes = self._lanes.states(moment.monotonic)
        names = frozenset(server.name for server in self._present)
        judged = self._watcher.look(moment, self._present, readings, failures)
        self._news.tell(names, failures, lanes, {name for name, past in judged.pasts.items() if not past.ready})
        self._bury(judged, names)
        used = self._used()
        workers = tuple(
            state for worker in self._workers.values() if (state := worker.state()).name in used or state.abandoned
        )
        return View(
            judged.snapshot,
            judged.pasts,
            lanes,
            workers,
            judged.verdicts,
            judged.not_ready_seconds,
            own_expense(),
            self._release.until,
            self.kept(),
        )

    def _bury(self, judged: Judged, present: Collection[str]) -> None:
        """Have the logs of those read on that have gone, but of those that had when we began: it was done then."""
        ends = {name: past.ending.gone_since for name, past in judged.pasts.items()}
        gone = tuple(
            server
            for server in judged.snapshot.servers
            if server.name not in present and (ends[server.name] or 0.0) >= self._recollection.since
        )
        if gone != self._gone:
            self._gone = gone
            self._enlist()

    def _without_log(self) -> tuple[Failure, ...]:
        if log.NAME in self._config.collectors.disabled:
            return ()
        return tuple(no_log(server) for server in self._servers if server.log_path is None)
