"""Published times stay where they are while the clock drifts."""

from monitored_node import NAME, START, Clock
from stallwatch.steady_clock import OFFSET_STEP, SteadyClock


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


def test_only_a_step_of_the_clock_moves_the_offset():
    """What trembles by less than a twentieth of a second is drift; the other clocks are told as they are."""
    clock = Clock()
    steady = SteadyClock(clock)
    first = steady()
    clock.now, clock.unix_offset = clock.now + 10, clock.unix_offset + OFFSET_STEP * 0.9
    later = steady()
    assert later.unix - first.unix == 10
    assert (later.monotonic, later.boottime) == (first.monotonic + 10, first.boottime + 10)
    clock.unix_offset += OFFSET_STEP
    assert steady() == clock()
