"""Monitor: what is read when, what is done about what gets stuck, and what of it all is published."""

import asyncio
import json
import logging
import os
from dataclasses import replace

import msgspec
import pytest

from readings import a_log, a_server, gpus, processes
from stallwatch import trial
from stallwatch.child import fields_of
from stallwatch.collectors.health import HealthReading, Probe
from stallwatch.collectors.kernel import KernelReading
from stallwatch.collectors.log import LogReading
from stallwatch.collectors.process import ProcessReading
from stallwatch.collectors.socket import ServerSockets, SocketReading
from stallwatch.config import Config
from stallwatch.discovery import DiscoveryReading
from stallwatch.mending import RENEW_AFTER, RETRY_AFTER, Quarantine
from stallwatch.monitor import Monitor
from stallwatch.sections import CollectorsConfig, GpuConfig, HealthConfig, ServerConfig
from stallwatch.snapshot import Failure, Moment, Process
from stallwatch.tracks.memory import YOUNG_SECONDS
from stallwatch.workers import WorkerError, WorkerState

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


@pytest.fixture
async def watch():
    """Make nodes and end what is in flight after the test."""
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


async def test_rounds_keep_their_intervals(watch):
    """Processes and logs are read each second, GPUs and servers each five, health as often as it says."""
    node = watch(interval=1.0)
    await node.ticks(20)
    assert 18 <= node.host.count("process") <= 21
    assert 18 <= node.host.count("log") <= 21
    assert 4 <= node.host.count("discovery") <= 5
    assert 4 <= node.gpu.count("gpu") <= 5
    assert 3 <= len(node.health.probed) <= 5


async def test_one_view_holds_all_of_one_moment(watch):
    """Servers, all readings and what history makes of them stand in one view, and watchers get it."""
    node, seen = watch(), []
    node.monitor.watch(seen.append)
    view = await node.ticks(4)
    assert [server.name for server in view.snapshot.servers] == [NAME]
    assert {type(reading).__name__ for reading in view.snapshot.readings} == {
        "DiscoveryReading",
        "GpuReading",
        "ProcessReading",
        "LogReading",
        "SocketReading",
        "KernelReading",
        "HealthReading",
    }
    assert view.verdicts[NAME].state == "idle"
    assert view.pasts[NAME].phase == "ready"
    assert seen[-1] is view
    assert [worker.name for worker in view.workers] == ["gpu", "host", "trial"]
    assert all(lane.success for lane in view.lanes)


async def test_what_is_late_is_not_waited_for(watch):
    """A call that does not return leaves its signal missing with the reason, and all others are there."""
    node = watch()
    node.gpu.answers["gpu"] = asyncio.get_running_loop().create_future()
    view = await node.ticks(4)
    assert node.reasons("gpu") == {"starting"}
    assert view.snapshot.get(LogReading)
    assert view.snapshot.get(ProcessReading)
    node.gpu.answers["gpu"].set_result(gpus(node.clock.now, count=1))
    await node.ticks(1)
    assert node.reasons("gpu") == set()


@pytest.mark.parametrize(("read", "note"), [("process", "pid 4242"), ("log", "log /mnt/dead/a.log")])
async def test_what_a_read_was_stuck_in_is_left_alone_until_a_trial_succeeds(watch, read, note):
    """A pid or path is skipped for a minute, tried in a child of its own, again after a failure, then read again."""
    node = watch()
    await node.ticks(2)
    good = node.host.answers[read]
    node.host.answers[read] = WorkerError("timeout", "no answer in 5 s", note)
    await node.ticks(1)
    node.host.answers[read] = good
    await node.ticks(2)
    assert node.host.asked[-1][2] == (note,)
    assert node.trial.asked == []
    node.trial.answers["trial"] = WorkerError("timeout", "no answer in 5 s", note)
    await node.ticks(2, step=RETRY_AFTER)
    assert node.trial.asked == [("trial", [{"note": note}], ())]
    node.trial.answers["trial"] = (None, ())
    await node.ticks(2, step=RETRY_AFTER)
    await node.ticks(2)
    assert len(node.trial.asked) == 2
    assert node.trial.retired == 1
    assert node.host.asked[-1][2] == ()


async def test_trials_are_made_one_at_a_time(watch):
    """While one path is being tried, the next waits, and it is not tried twice."""
    node = watch()
    await node.ticks(1)
    for note in ("pid 1", "pid 2"):
        node.monitor._mending.stuck(note)
    first = asyncio.get_running_loop().create_future()
    node.trial.answers["trial"] = first
    node.clock.now += RETRY_AFTER
    await node.ticks(3)
    assert [targets[0]["note"] for _, targets, _ in node.trial.asked] == ["pid 1"]
    first.set_result((None, ()))
    node.trial.answers["trial"] = (None, ())
    await node.ticks(3)
    assert [targets[0]["note"] for _, targets, _ in node.trial.asked] == ["pid 1", "pid 2"]


async def test_a_gpu_is_read_again_only_when_nothing_is_abandoned(watch):
    """As long as the worker that was stuck with it has not ended, a GPU stays left alone, and no trial is made."""
    node = watch(gpu=GpuConfig(interval=1.0))
    await node.ticks(2)
    good, note = node.gpu.answers["gpu"], "gpu 3 nvmlDeviceGetPowerUsage"
    node.gpu.answers["gpu"] = WorkerError("timeout", "no answer in 5 s", note)
    node.gpu.abandoned = 1
    await node.ticks(2)
    node.gpu.answers["gpu"] = good
    await node.ticks(3, step=RETRY_AFTER)
    assert node.gpu.asked[-1][2] == (note,)
    node.gpu.abandoned = 0
    await node.ticks(3, step=RETRY_AFTER)
    assert node.gpu.asked[-1][2] == ()
    assert node.trial.asked == []


async def test_a_new_driver_needs_a_new_worker(watch):
    """Where the library is that of the driver before, the worker is renewed, once a minute at most."""
    node = watch(gpu=GpuConfig(interval=1.0))
    await node.ticks(2)
    node.gpu.answers["gpu"] = (replace(gpus(START), gpus=()), (Failure("gpu", "version_mismatch"),))
    await node.ticks(5)
    assert node.gpu.retired == 0
    node.clock.now += RENEW_AFTER
    await node.ticks(5)
    assert node.gpu.retired == 1


async def test_of_a_server_that_has_gone_only_its_tombstone_is_told(watch):
    """What a round brings of a server that has gone since it began is not in the view; its log is read on."""
    node = watch()
    await node.ticks(4)
    stale = {read: node.host.answers[read] for read in ("process", "log")}
    node.show()
    node.host.answers |= stale
    for _ in range(7):
        view = await node.ticks(1)
        if not view.snapshot.servers[0].processes:
            break
    (tomb,) = view.snapshot.servers
    assert (tomb.name, tomb.processes) == (NAME, ())
    assert view.pasts[NAME].ending.gone_since is not None
    assert view.snapshot.get(ProcessReading).processes == view.snapshot.get(ProcessReading).trees == ()
    assert view.snapshot.all(HealthReading) == ()
    assert node.health.alive == set()
    assert [target["server"] for target in [read for read in node.host.asked if read[0] == "log"][-1][1]] == [NAME]


async def test_a_crashed_server_is_dead_for_a_quarter_of_an_hour(watch):
    """A server that went without a word in its log is dead, and is forgotten in the end."""
    node = watch()
    await node.ticks(4)
    logs = node.host.answers["log"]
    node.show()
    node.host.answers["log"] = logs
    view = await node.ticks(40)
    assert (view.verdicts[NAME].state, view.verdicts[NAME].signature) == ("dead", "crashed")
    view = await node.ticks(30, step=35.0)
    assert view.snapshot.servers == ()


async def test_a_server_that_drained_leaves_no_tombstone(watch):
    """Drain lines in its log make its end an orderly one."""
    node = watch()
    await node.ticks(4)
    node.show(SERVER, phase="stopping")
    await node.ticks(3)
    logs = node.host.answers["log"]
    node.show()
    node.host.answers["log"] = logs
    assert (await node.ticks(8)).snapshot.servers == ()


async def test_nothing_of_the_life_before_is_told_of_a_new_one(watch):
    """A server that is started again is not ready because its log said so in the life before."""
    node = watch(collectors=CollectorsConfig(health=False))
    node.show(born(1), phase="ready")
    view = await node.ticks(4)
    assert view.pasts[NAME].ready
    before = view.snapshot.servers[0].incarnation
    node.host.answers["discovery"] = DiscoveryReading(node.clock.now, (born(2, pid=200),))
    for _ in range(7):
        view = await node.ticks(1)
        if view.snapshot.servers[0].incarnation != before:
            break
    assert view.snapshot.servers[0].incarnation != before
    assert view.snapshot.get(LogReading).logs == ()
    assert not view.pasts[NAME].ready


async def test_a_round_that_ends_after_a_server_has_gone_tells_nothing_of_it(watch):
    """What was asked while it was there is not published once it is known to have gone, but for its log."""
    node = watch()
    await node.ticks(3)
    late = SocketReading(node.clock.now + 6, (ServerSockets(NAME, True, 0, 0),))
    answer = node.host.answers["socket"] = asyncio.get_running_loop().create_future()
    await node.ticks(6)
    read = node.host.answers["log"]
    node.show()
    node.host.answers |= {"log": read, "socket": answer}
    await node.ticks(6)
    answer.set_result(late)
    view = await node.ticks(1)
    assert view.pasts[NAME].ending.gone_since is not None
    assert [one for reading in view.snapshot.all(SocketReading) for one in reading.sockets] == []
    assert [one.server for reading in view.snapshot.all(LogReading) for one in reading.logs] == [NAME]


def kept(node):
    """Return what a node remembers, as it is when it was written and read."""
    return json.loads(json.dumps(node.monitor.remember(node.clock.now)))


async def restarted(watch):
    """Return a node that was watched for a while, and one that goes on with what that one remembered."""
    before, after = watch(), watch()
    await before.ticks(3)
    after.clock.now = before.clock.now
    after.show(SERVER)
    after.monitor.recall(kept(before))
    return before, after


async def test_a_server_that_ends_while_the_exporter_restarts_is_missed(watch):
    """It is told of as gone once servers are looked for, not before: until then nobody knows."""
    before, after = await restarted(watch)
    pending = after.host.answers["discovery"] = asyncio.get_running_loop().create_future()
    view = await after.ticks(2)
    assert view.pasts == {}
    assert kept(after) == kept(before)
    after.show()
    pending.set_result(after.host.answers["discovery"])
    view = await after.ticks(2)
    assert view.pasts[NAME].ending.gone_since is not None
    assert view.pasts[NAME].server.incarnation == view.snapshot.servers[0].incarnation == "100.1"


async def test_of_a_server_that_had_gone_before_nothing_is_made_up(watch, caplog):
    """Its phase is what its log said then, and its log, which may be gone or another server's by now, is left alone."""
    before, after = watch(collectors=CollectorsConfig(health=False)), watch()
    await before.ticks(3)
    logs = before.host.answers["log"]
    before.show()
    before.host.answers["log"] = logs
    known = (await before.ticks(8)).pasts[NAME]
    assert (known.phase, known.ready) == ("loading_weights", False)
    after.clock.now = before.clock.now
    after.show()
    after.host.answers["log"] = (LogReading(0.0, ()), (Failure("log", "not_found", "/data/server.log", NAME),))
    after.monitor.recall(kept(before))
    view = await after.ticks(8)
    past = view.pasts[NAME]
    assert (past.phase, past.phase_since, past.started) == (known.phase, known.phase_since, known.started)
    assert [targets for read, targets, _ in after.host.asked if read == "log" and targets] == []
    assert view.verdicts[NAME].signature == "crashed"
    assert "missing" not in caplog.text


async def test_a_server_that_went_meanwhile_is_read_from_its_start_on(watch):
    """Its log tells whether that was meant, and what another life wrote before does not count."""
    before, after = await restarted(watch)
    after.show()
    await after.ticks(4)
    asked = [targets for read, targets, _ in after.host.asked if read == "log" and targets]
    assert asked[-1][0]["started"] == before.monitor.view.snapshot.servers[0].processes[0].started


def missing(caplog):
    """Return what was logged as missing, and as back."""
    return [
        (record.getMessage(), record.collector, record.reason) for record in caplog.records if "signal" in record.msg
    ]


class Refused(NoEngine):
    """An engine whose port refuses."""

    async def collect(self, server, settings):
        """Be refused."""
        return None, (Failure("engine", "refused", "", server.name),)


async def test_a_port_that_opens_last_is_no_news(watch, caplog):
    """While a server starts, its port refuses; once it was ready that is said, and when it has gone nothing is back."""
    node = watch(collectors=CollectorsConfig(health=False))
    node.monitor._direct["engine"] = Refused()
    with caplog.at_level("INFO", logger="stallwatch.monitor"):
        await node.ticks(12)
        assert missing(caplog) == []
        node.show(SERVER, phase="ready")
        await node.ticks(2)
        assert missing(caplog) == [("signal missing", "engine", "refused")]
        node.show()
        await node.ticks(12)
        assert missing(caplog) == [("signal missing", "engine", "refused")]


async def test_a_server_without_its_launcher_stays_the_same_over_a_restart(watch):
    """Name and life are those of before, though the process that they came from has gone."""
    _, after = await restarted(watch)
    after.show(replace(SERVER, name="sglang:embedded", processes=SERVER.processes[1:]))
    view = await after.ticks(3)
    [server] = view.snapshot.servers
    assert (server.name, server.incarnation) == (NAME, "100.1")
    assert view.pasts[NAME].ending.restarts == 0


async def test_a_discovery_that_fails_at_the_start_tells_of_no_end(watch):
    """Not to see is not to see that all are gone, also right after a restart of the exporter."""
    _, after = await restarted(watch)
    found = after.host.answers["discovery"]
    after.host.answers["discovery"] = (None, (Failure("discovery", "procfs_unreadable", "/proc"),))
    assert (await after.ticks(6)).pasts == {}
    after.host.answers["discovery"] = found
    assert (await after.ticks(6)).pasts[NAME].ending.gone_since is None


async def test_a_process_that_hangs_hides_nobody_but_itself(watch):
    """A hang does not look young after a restart of the exporter because some process of the node hangs too."""
    before, after = await restarted(watch)
    reading = after.host.answers["discovery"]
    after.host.answers["discovery"] = (reading, (Failure("discovery", "quarantined", "pid 77"),))
    past = (await after.ticks(3)).pasts[NAME]
    assert past.moved["compile"] == before.monitor.view.pasts[NAME].moved["compile"] < after.clock.now - 2
    assert past.ending.gone_since is None


async def test_whoever_a_process_that_hangs_may_hide_is_not_told_of_as_gone(watch):
    """A server that was there before the restart and of which nothing is seen now may be what hangs."""
    _, after = await restarted(watch)
    after.show()
    reading = after.host.answers["discovery"]
    after.host.answers["discovery"] = (reading, (Failure("discovery", "quarantined", "pid 77"),))
    assert (await after.ticks(3)).pasts == {}


async def test_what_can_never_be_recalled_does_not_keep_newer_memories_out(watch):
    """Where it cannot be seen who is there, that must not cost the memory of the next restart."""
    _, after = await restarted(watch)
    reading = after.host.answers["discovery"]
    after.host.answers["discovery"] = (reading, (Failure("discovery", "processes_hidden", "/proc"),))
    await after.ticks(3)
    at = kept(after)["at"]
    after.clock.now += YOUNG_SECONDS
    await after.ticks(3)
    assert kept(after)["at"] > at + YOUNG_SECONDS


async def test_a_discovery_that_fails_keeps_the_servers(watch):
    """Not to see is not to see that all are gone."""
    node = watch()
    await node.ticks(2)
    node.host.answers["discovery"] = WorkerError("worker_died", "the worker ended")
    view = await node.ticks(12)
    assert node.reasons("discovery") == {"worker_died"}
    assert [server.name for server in view.snapshot.servers] == [NAME]
    assert view.pasts[NAME].first_seen < START + 2


async def test_another_configuration_loses_nothing(watch):
    """New intervals hold from the next round on; what was seen, counted and left alone stays."""
    node = watch()
    node.host.answers["process"] = WorkerError("worker_died", "the worker ended")
    await node.ticks(3)
    before = node.monitor.view
    node.monitor._mending.stuck("pid 7")
    node.monitor.configure(msgspec.structs.replace(QUICK, gpu=GpuConfig(interval=1.0)))
    asked = node.gpu.count("gpu")
    view = await node.ticks(12)
    assert node.gpu.count("gpu") - asked >= 6
    assert view.pasts[NAME].first_seen == before.pasts[NAME].first_seen
    assert dict(node.lane("process").failures)["worker_died"] > 3
    assert node.host.asked[-1][2] == ("pid 7",)


async def test_a_configured_server_is_there_at_once(watch):
    """A reload names a server that no process is seen of, even while discovery fails."""
    node = watch()
    node.host.answers["discovery"] = WorkerError("worker_died", "the worker ended")
    await node.ticks(1)
    node.monitor.configure(msgspec.structs.replace(QUICK, servers=(ServerConfig(name="mine", port=1),)))
    view = await node.ticks(1)
    assert [server.name for server in view.snapshot.servers] == ["mine"]


async def test_a_collector_can_be_switched_off_and_on(watch):
    """What is switched off has no lane, asks for nothing and keeps no worker; switched on again it is back."""
    off = CollectorsConfig(gpu=False, health=False, engine=False, socket=False, kernel=False)
    node = watch(collectors=off)
    view = await node.ticks(3)
    assert node.gpu.asked == node.health.probed == []
    assert {lane.collector for lane in view.lanes} == {"discovery", "process", "log"}
    assert [worker.name for worker in view.workers] == ["host", "trial"]
    node.monitor.configure(QUICK)
    view = await node.ticks(3)
    assert {"gpu", "health"} <= {lane.collector for lane in view.lanes}
    assert [worker.name for worker in view.workers] == ["gpu", "host", "trial"]
    node.monitor.configure(msgspec.structs.replace(QUICK, collectors=off))
    assert node.gpu.retired == 1


async def test_a_worker_that_is_left_behind_is_told_of(watch):
    """Switching a collector off does not hide that its worker is stuck."""
    node = watch(collectors=CollectorsConfig(gpu=False))
    node.gpu.abandoned = 1
    assert "gpu" in [worker.name for worker in (await node.ticks(1)).workers]


async def test_counts_of_failures_never_fall(watch):
    """What went wrong with a server stays counted when the server has gone."""
    node = watch()
    node.health.failures = (Failure("health", "no_memory", "", NAME),)
    await node.ticks(12)
    counted = dict(node.lane("health").failures)["no_memory"]
    assert counted >= 2
    node.show()
    view = await node.ticks(7)
    assert view.snapshot.servers[0].processes == ()
    assert sum(dict(lane.failures).get("no_memory", 0) for lane in view.lanes) >= counted


async def test_quiet_probes_only_what_does_not_move(watch):
    """`when: quiet` leaves a server alone that moves, and probes it once it has not moved for a while."""
    node = watch(health=HealthConfig(interval=1.0, when="quiet"))
    await node.ticks(1)
    node.health.probed.clear()  # at first sight nothing is known to move
    await node.ticks(5)
    assert node.health.probed == []
    assert node.reasons("health") == {"quiet"}
    await node.ticks(5, step=node.monitor._config.limits.suspect)
    assert node.health.probed


@pytest.mark.parametrize(("result", "probes"), [("ok", 1), ("timeout", 2)])
async def test_who_answers_slowly_is_probed_less_often_and_who_fails_as_ever(watch, result, probes):
    """After a good answer that took a second, ten go by until the next probe; a bad one earns no rest."""
    node = watch(interval=1.0)
    node.health.result, node.health.takes = result, 1.01
    await node.ticks(2)
    assert node.health.probed == [NAME]
    await asyncio.sleep(1.1)
    await node.ticks(8)
    assert len(node.health.probed) == probes
    assert "stale" not in node.reasons("health")
    await asyncio.sleep(1.1)
    await node.ticks(10)
    assert len(node.health.probed) > probes


async def test_published_times_follow_the_clock_in_steps(watch):
    """A small drift of the clock moves no published time; a step moves them all."""
    node = watch()
    moment = (await node.ticks(1)).snapshot.moment
    assert moment.unix_of(START) == START + 1_800_000_000
    node.clock.unix_offset += 0.03
    assert (await node.ticks(1)).snapshot.moment.unix_of(START) == START + 1_800_000_000
    node.clock.unix_offset -= 360
    assert (await node.ticks(1)).snapshot.moment.unix_of(START) == START + 1_800_000_000 - 359.97
    assert node.monitor.view.pasts[NAME].first_seen >= START


@pytest.fixture
def errors():
    """Collect what the monitor logs as an error."""
    messages = []

    class Handler(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())

    logger, handler = logging.getLogger("stallwatch.monitor"), Handler(logging.ERROR)
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)


async def test_a_watcher_that_fails_does_not_end_the_watch(watch, errors):
    """It is logged once, not each second, and the next look is made."""
    node, again = watch(interval=0.01), asyncio.Event()
    faults = [ValueError("no"), ValueError("no"), ValueError("no")]

    def watcher(_view):
        if faults:
            raise faults.pop()
        again.set()

    node.monitor.watch(watcher)
    running = asyncio.create_task(node.monitor.run())
    await asyncio.wait_for(again.wait(), 20)
    running.cancel()
    assert errors == ["a look failed"]


class BrokenWatcher:
    """Fails some looks and then none."""

    def __init__(self, watcher):
        self._watcher = watcher
        self._faults = [KeyError("one"), KeyError("another")]

    def look(self, *seen):
        """Fail, or look."""
        if self._faults:
            raise self._faults.pop()
        return self._watcher.look(*seen)


async def test_a_fault_in_judging_does_not_end_the_watch(watch, errors):
    """A look that fails leaves the old view, whose age tells of it; then looks go on."""
    node, again = watch(interval=0.01), asyncio.Event()
    node.monitor._watcher = BrokenWatcher(node.monitor._watcher)
    first = node.monitor.view
    node.monitor.watch(lambda _view: again.set())
    running = asyncio.create_task(node.monitor.run())
    await asyncio.wait_for(again.wait(), 20)
    running.cancel()
    assert node.monitor.view is not first
    assert errors == ["a look failed", "a look failed"]


async def test_closing_ends_every_worker(watch):
    """All workers are closed, though calls are in flight."""
    node = watch()
    node.gpu.answers["gpu"] = asyncio.get_running_loop().create_future()
    await node.ticks(1)
    await node.monitor.close()
    assert all(worker.closed for worker in node.workers.values())


def test_a_trial_takes_nothing_out_of_a_pipe(tmp_path):
    """That a pipe answers is enough to know: what is in it is for its reader."""
    path, notes = tmp_path / "pipe", []
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    os.write(descriptor, b"x")
    _, failures = trial.reader({}, notes.append)([{"note": f"log {path}"}], frozenset())
    assert os.read(descriptor, 2) == b"x"
    os.close(descriptor)
    assert (failures, notes) == ((), [f"log {path}"])


def test_a_trial_of_what_has_gone_comes_back():
    """A process that has ended while it was left alone is a failure, and no reason to wait."""
    _, failures = trial.reader({}, print)([{"note": "pid 999999999"}], frozenset())
    assert [failure.reason for failure in failures] == ["error"]


def test_quarantine_tries_again_after_a_while():
    """What was stuck is left alone, tried again after a minute, and read again once it has come back."""
    now = [100.0]
    quarantine = Quarantine(lambda: now[0])
    quarantine.add("log /mnt/dead/a.log")
    quarantine.add("")
    assert quarantine.notes() == ("log /mnt/dead/a.log",)
    assert quarantine.due() == ()
    now[0] += RETRY_AFTER
    assert quarantine.due() == ("log /mnt/dead/a.log",)
    quarantine.release("log /mnt/dead/a.log")
    assert quarantine.notes() == ()
