"""Monitor: what is read when, and what of it all is published."""

import asyncio
import logging

import msgspec
import pytest

from monitored_node import NAME, QUICK, SERVER, START, born
from readings import gpus
from stallwatch.collectors.health import HealthReading
from stallwatch.collectors.log import LogReading
from stallwatch.collectors.process import ProcessReading
from stallwatch.collectors.socket import ServerSockets, SocketReading
from stallwatch.discovery import DiscoveryReading
from stallwatch.sections import CollectorsConfig, GpuConfig, HealthConfig, ServerConfig
from stallwatch.snapshot import Failure
from stallwatch.workers import WorkerError


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
