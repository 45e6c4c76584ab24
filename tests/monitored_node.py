"""A monitor over fake workers, whose readings a test sets, and the clock it goes by."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec

from readings import a_log, a_server, gpus, processes
from stallwatch.child import fields_of
from stallwatch.collectors.health import HealthReading, Probe
from stallwatch.collectors.kernel import KernelReading
from stallwatch.collectors.log import LogReading
from stallwatch.collectors.process import ProcessReading
from stallwatch.collectors.socket import SocketReading
from stallwatch.config import Config
from stallwatch.discovery import DiscoveryReading
from stallwatch.monitor import Monitor
from stallwatch.sections import HealthConfig
from stallwatch.snapshot import Moment, Process
from stallwatch.workers import WorkerState

NAME = "sglang:30000"
SERVER = a_server(ranks=1, address="127.0.0.1", log_path="/data/server.log")
QUICK = Config(interval=0.2, health=HealthConfig(interval=5.0))
START = 1000.0


class Clock:
    """A clock that a test moves; boot was long before."""

    def __init__(self):
        self.now = START
        self.unix_offset = 1_800_000_000.0

    def __call__(self):
        """Return the present moment."""
        return Moment(self.now + self.unix_offset, self.now, self.now + 5000)


class FakeWorker:
    """Answers at once with what it holds for a read: a reading, a reading with failures, an error, or a future."""

    def __init__(self, name):
        self.name = name
        self.answers = {}
        self.asked = []
        self.abandoned = 0
        self.retired = 0
        self.closed = False

    async def call(self, read, targets, skip=()):
        """Answer one request."""
        self.asked.append((read, targets, skip))
        answer = self.answers[read]
        if asyncio.isfuture(answer):
            answer = await answer
        if isinstance(answer, Exception):
            raise answer
        reading, failures = answer if isinstance(answer, tuple) else (answer, ())
        reply = {"id": 1, "reading": reading, "failures": failures}
        return json.dumps(reply, default=fields_of).encode()

    def count(self, read):
        """Tell how often this was read."""
        return sum(asked == read for asked, _, _ in self.asked)

    def state(self):
        """Tell how it fares."""
        return WorkerState(self.name, True, 0, self.abandoned)

    def retire(self):
        """Count that it was renewed."""
        self.retired += 1
        return True

    async def close(self):
        """Note that it was closed."""
        self.closed = True


class FakeHealth:
    """Answers each probe at once."""

    def __init__(self, clock):
        self._clock = clock
        self.probed = []
        self.alive = set()
        self.failures = ()
        self.result, self.takes = "ok", 0.0

    async def collect(self, server, settings):
        """Answer a probe."""
        self.probed.append(server.name)
        await asyncio.sleep(self.takes)
        now = self._clock.now
        probe = Probe("/health", self.result, "scheduler", 1.0, 200, {}, now, now, 0)
        return HealthReading(now, server.name, (probe,)), self.failures

    def forget(self, names):
        """Note who is still there."""
        self.alive = set(names)

    async def close(self):
        """Have nothing to close."""


class NoEngine:
    """Reads no engine's metrics."""

    async def collect(self, server, settings):
        """Read nothing."""
        return None, ()

    def forget(self, names):
        """Have nothing to forget."""

    async def close(self):
        """Have nothing to close."""


class Node:
    """A monitor over fake workers, whose readings a test sets, and the clock it goes by."""

    def __init__(self, config):
        self.clock = Clock()
        self.workers = {name: FakeWorker(name) for name in ("gpu", "host", "trial")}
        self.health = FakeHealth(self.clock)
        self.monitor = Monitor(config, self.workers, {"health": self.health, "engine": NoEngine()}, self.clock)
        self.gpu, self.host, self.trial = self.workers.values()
        self.trial.answers["trial"] = (None, ())
        self.show(SERVER)

    def show(self, *servers, phase="loading_weights"):
        """Have these servers found, and read, from now on."""
        now, names = self.clock.now, [server.name for server in servers]
        logs = LogReading(now, tuple(a_log(now, progress=now, phase=phase, server=name).logs[0] for name in names))
        trees = [processes(now, server=name) for name in names]
        samples = ProcessReading(
            now, tuple(s for one in trees for s in one.processes), tuple(t for one in trees for t in one.trees)
        )
        sockets = SocketReading(now, ())
        self.host.answers |= {
            "discovery": DiscoveryReading(now, servers),
            "log": logs,
            "process": samples,
            "socket": sockets,
            "kernel": KernelReading(now),
        }
        self.gpu.answers["gpu"] = gpus(now, count=1)

    async def ticks(self, count, step=1.0):
        """Let time go on, readings follow it, and look that often; return the last view."""
        for _ in range(count):
            for worker in (self.gpu, self.host):
                worker.answers = {read: self._now(answer) for read, answer in worker.answers.items()}
            await self.monitor.tick()
            await asyncio.sleep(0)  # what the look has begun gets its first turn
            self.clock.now += step
        return self.monitor.view

    def _now(self, answer):
        if isinstance(answer, tuple):
            return (self._now(answer[0]), answer[1])
        return replace(answer, at=self.clock.now) if hasattr(answer, "at") else answer

    def reasons(self, collector):
        """Return why something of a collector is missing now."""
        return {failure.reason for failure in self.monitor.view.snapshot.failures if failure.collector == collector}

    def lane(self, collector):
        """Return how the lane of a collector fares."""
        return next((lane for lane in self.monitor.view.lanes if lane.collector == collector), None)


@asynccontextmanager
async def watching():
    """Make nodes, and end what is in flight in the end."""
    nodes = []

    def make(config=QUICK, **changes):
        nodes.append(Node(msgspec.structs.replace(config, **changes)))
        return nodes[-1]

    yield make
    for node in nodes:
        await node.monitor.close()


def born(ticks, pid=100):
    """Return the server with processes of another life."""
    return replace(SERVER, processes=(Process(pid, ticks, 1.0, "launcher", "launcher"),))
