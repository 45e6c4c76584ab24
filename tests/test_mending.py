"""What is done about what gets stuck: it is left alone, tried in a process of its own, and read again."""

import asyncio
from dataclasses import replace

import pytest

from monitored_node import START
from readings import gpus
from stallwatch.mending import RENEW_AFTER, RETRY_AFTER, Quarantine
from stallwatch.sections import GpuConfig
from stallwatch.snapshot import Failure
from stallwatch.workers import WorkerError


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
