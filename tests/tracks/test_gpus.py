"""What the GPUs of a server show, and since when."""

from dataclasses import replace

import pytest

from readings import GIB, a_server, gpus
from stallwatch.tracks.gpus import Gpus


def look(track, now, reading):
    """Look once."""
    return track.look(now, a_server(), reading, 0.0)


def mixed(now, *shares):
    """Return GPUs of these utilizations."""
    reading = gpus(now, power_watts=100.0, power_limit_watts=400.0)
    each = zip(reading.gpus, shares, strict=False)
    return replace(reading, gpus=tuple(replace(gpu, utilization=share) for gpu, share in each))


def test_hot_cold_and_split_have_an_age():
    """Each holds since the first look at which it was so."""
    track = Gpus()
    assert look(track, 1.0, mixed(1.0, 0.9, 0.99)).hot_since == 1.0
    assert look(track, 2.0, mixed(2.0, 1.0, 1.0)).hot_since == 1.0
    assert look(track, 3.0, mixed(3.0, 1.0, 0.09)).split_since == 3.0
    past = look(track, 4.0, mixed(4.0, 0.04, 0.0))
    assert (past.cold_since, past.hot_since, past.split_since) == (4.0, None, None)


def test_a_gap_in_the_reading_breaks_nothing():
    """A lost GPU stays lost while the driver cannot be read for some seconds."""
    track = Gpus()
    look(track, 1.0, gpus(1.0, lost=True, utilization=None, memory_used=None))
    assert look(track, 2.0, None).lost_since == 1.0


@pytest.mark.parametrize(
    ("action", "fault"), [("none", False), (None, False), ("drain_p2p", False), ("gpu_reset", True)]
)
def test_what_the_driver_asks_for(action, fault):
    """A reset or a reboot is a fault; a drain of its links leaves the GPU computing."""
    assert (look(Gpus(), 1.0, gpus(1.0, recovery_action=action)).lost_since is not None) == fault


def test_power_is_that_of_the_busiest_gpu():
    """Of the limit; unknown where the driver does not say."""
    assert look(Gpus(), 1.0, mixed(1.0, 1.0)).power_ratio == 0.25
    assert look(Gpus(), 1.0, gpus(1.0)).power_ratio is None


@pytest.mark.parametrize(
    ("utilization", "watts", "may"),
    [(0.0, 200.0, False), (0.5, 200.0, True), (1.0, 100.0, False), (1.0, None, True), (0.5, None, False)],
)
def test_whether_gpus_may_compute(utilization, watts, may):
    """Busy and above idle power, or hot at a power that nobody knows; and so it was when they were last seen."""
    track = Gpus()
    reading = gpus(1.0, utilization=utilization, power_watts=watts, power_limit_watts=400.0)
    assert look(track, 1.0, reading).may_compute == may
    assert look(track, 2.0, None).may_compute == may


def test_memory_that_rises_from_what_was_remembered():
    """A restart of the exporter hides no rise."""
    before, after = Gpus(), Gpus()
    before.memory_rises(a_server(), gpus(1.0, memory=GIB))
    after.recall(before.remember())
    assert after.memory_rises(a_server(), gpus(9.0, memory=2 * GIB)) is True
