"""An exporter that is started again goes on with what the one before it remembered."""

import asyncio
import json
from dataclasses import replace

from monitored_node import NAME, SERVER
from stallwatch.collectors.log import LogReading
from stallwatch.sections import CollectorsConfig
from stallwatch.snapshot import Failure
from stallwatch.tracks.memory import YOUNG_SECONDS


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
