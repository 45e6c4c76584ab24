"""Busy seconds are what the driver sampled, neither invented nor lost nor taken back."""

import pytest

from stallwatch.gpus.busy import Busy, Questions
from stallwatch.gpus.nvml import CallError

PERIOD = 139_000


class Ring:
    """A GPU whose ring is kept here: `rate` is the plain rate, None stands for "not supported"."""

    def __init__(self, rate=0.0, clock=10**9, *, supported=True) -> None:
        self.rate = rate
        self.clock = clock
        self.supported = supported
        self.ring = []
        self.asked = []

    def run(self, seconds, share) -> None:
        """Let the driver take samples for so long."""
        for _ in range(round(seconds * 1e6 / PERIOD)):
            self.clock += PERIOD
            self.ring = [*self.ring[-71:], (self.clock, share)]

    def samples(self, since):
        """Return what the ring holds after `since`."""
        self.asked.append(since)
        return [sample for sample in self.ring if sample[0] > since] if self.supported else None

    def utilization(self):
        """Return the plain rate."""
        if isinstance(self.rate, CallError):
            raise self.rate
        return self.rate


def looked(busy, ring, at):
    """Look once, with new questions, as each reading does."""
    return busy.look(ring, Questions(), at)


def test_first_look_counts_nothing():
    """The ring tells of the time before the first look: the plain rate says how busy it is, no second is counted."""
    ring = Ring(rate=0.2)
    ring.run(10, 1.0)
    assert looked(Busy(), ring, 100.0) == (0.2, 0.0)


def test_first_look_without_a_plain_rate_tells_the_mean_of_the_ring():
    """Where only the ring is supported its history says how busy the GPU is."""
    ring = Ring(rate=None)
    ring.run(10, 1.0)
    assert looked(Busy(), ring, 100.0) == (1.0, 0.0)


def test_burst_between_two_looks_is_counted_in_full():
    """Samples between two looks count with their length, whatever the plain rate says at the look."""
    ring, busy = Ring(), Busy()
    ring.run(10, 0.0)
    looked(busy, ring, 100.0)
    ring.run(2, 0.0)
    ring.run(0.278, 1.0)
    ring.run(2.7, 0.0)
    mean, seconds = looked(busy, ring, 105.0)
    assert seconds == pytest.approx(0.278)
    assert mean == pytest.approx(0.278 / 4.865)


def test_steady_load_adds_up_over_many_looks():
    """Where looks fall between samples nothing is counted twice and nothing is left out."""
    ring, busy = Ring(), Busy()
    ring.run(10, 0.5)
    looked(busy, ring, 0.0)
    begin = ring.clock
    for look in range(1, 25):
        ring.run(5.0 if look % 2 else 4.8, 0.5)
        _, seconds = looked(busy, ring, look * 4.9)
    assert seconds == pytest.approx((ring.clock - begin) / 1e6 * 0.5)


def test_long_gap_counts_only_what_the_ring_still_holds():
    """After a minute away the ten seconds of the ring are counted and nothing is made up for the rest."""
    ring, busy = Ring(), Busy()
    ring.run(10, 1.0)
    looked(busy, ring, 0.0)
    ring.run(60, 1.0)
    mean, seconds = looked(busy, ring, 60.0)
    assert mean == 1.0
    assert 9.9 < seconds < 10.3


def test_pause_between_samples_is_not_busy():
    """The driver takes no samples while the GPU idles: the first one after a pause does not stand for the pause."""
    ring, busy = Ring(), Busy()
    ring.run(2, 1.0)
    looked(busy, ring, 0.0)
    ring.clock += 4_000_000
    ring.run(1, 1.0)
    _, seconds = looked(busy, ring, 5.0)
    assert 0.9 < seconds < 1.3


def test_empty_ring_is_idle_when_the_plain_rate_agrees():
    """A ring that is empty while the plain rate says zero is an idle GPU."""
    ring, busy = Ring(), Busy()
    looked(busy, ring, 0.0)
    assert looked(busy, ring, 5.0) == (0.0, 0.0)


def test_empty_ring_is_not_idle_when_the_plain_rate_disagrees():
    """A ring that stays empty while the plain rate says busy is replaced by the plain rate."""
    ring, busy = Ring(rate=0.5), Busy()
    looked(busy, ring, 0.0)
    assert looked(busy, ring, 5.0) == (0.5, 2.5)


def test_empty_ring_without_a_plain_rate_is_unknown():
    """A ring that is empty says nothing where nothing confirms it."""
    ring, busy = Ring(rate=None), Busy()
    assert looked(busy, ring, 0.0) == (None, None)
    assert looked(busy, ring, 5.0) == (None, None)


def test_two_looks_within_one_sample_count_once():
    """A look that comes before the next sample leaves that time to the next look."""
    ring, busy = Ring(rate=1.0), Busy()
    ring.run(10, 1.0)
    looked(busy, ring, 0.0)
    assert looked(busy, ring, 0.1) == (1.0, 0.0)
    ring.run(0.139, 1.0)
    _, seconds = looked(busy, ring, 0.2)
    assert seconds == pytest.approx(0.139)


def test_plain_rate_is_summed_up_where_there_is_no_ring():
    """Without a ring the plain rate counts for the time since the last look, of ten seconds at most."""
    ring, busy = Ring(rate=0.5, supported=False), Busy()
    assert looked(busy, ring, 0.0) == (0.5, 0.0)
    assert looked(busy, ring, 5.0) == (0.5, 2.5)
    assert looked(busy, ring, 1000.0) == (0.5, 7.5)


def test_nothing_supported_is_unknown():
    """With neither ring nor rate, as under MIG, nothing is said."""
    ring, busy = Ring(rate=None, supported=False), Busy()
    assert [looked(busy, ring, at) for at in (0.0, 5.0)] == [(None, None)] * 2


def test_clock_that_begins_anew_neither_stops_nor_turns_back_the_count():
    """A driver clock that falls is found out by a plain rate that contradicts the silent ring."""
    ring, busy = Ring(rate=1.0), Busy()
    ring.run(10, 1.0)
    looked(busy, ring, 0.0)
    ring.run(5, 1.0)
    _, before = looked(busy, ring, 5.0)
    ring.clock, ring.ring = 1000, []
    ring.run(5, 1.0)
    mean, after = looked(busy, ring, 10.0)
    assert mean == 1.0
    assert after - before == pytest.approx(5, abs=0.3)
    ring.run(5, 1.0)
    assert looked(busy, ring, 15.0)[1] - after == pytest.approx(5, abs=0.15)


def test_new_handle_is_asked_for_its_whole_ring():
    """A GPU found again after a restart of the library may have a new clock, even if it idles at this moment."""
    old, busy = Ring(), Busy()
    old.run(10, 0.0)
    looked(busy, old, 0.0)
    new = Ring(clock=0)
    new.run(3, 0.0)
    new.run(0.278, 1.0)
    new.run(1, 0.0)
    _, seconds = looked(busy, new, 5.0)
    assert new.asked == [0]
    assert seconds == pytest.approx(0.278)


def test_new_handle_with_the_same_clock_counts_nothing_twice():
    """A restart of the library alone leaves the count as it was."""
    old, busy = Ring(), Busy()
    old.run(10, 1.0)
    looked(busy, old, 0.0)
    new = Ring(clock=old.clock)
    new.ring = old.ring
    new.run(5, 1.0)
    _, seconds = looked(busy, new, 5.0)
    assert seconds == pytest.approx((new.clock - old.clock) / 1e6)


def test_clock_that_jumps_ahead_does_not_add_what_was_before():
    """After a jump forward only what the ring holds of the time since the last look is counted."""
    ring, busy = Ring(), Busy()
    ring.run(10, 1.0)
    looked(busy, ring, 0.0)
    ring.clock, ring.ring = ring.clock + 3_600_000_000, []
    ring.run(10, 1.0)
    _, seconds = looked(busy, ring, 5.0)
    assert 4.9 < seconds < 5.4


def test_samples_that_cannot_be_true_are_left_out():
    """A sample without a value counts neither as busy nor as idle."""
    ring, busy = Ring(), Busy()
    ring.run(10, 0.0)
    looked(busy, ring, 0.0)
    ring.run(1, None)
    ring.run(1, 0.5)
    mean, seconds = looked(busy, ring, 2.0)
    assert (mean, seconds) == (pytest.approx(0.5), pytest.approx(0.4865))


def test_time_without_an_answer_is_made_up_for_by_the_ring():
    """A rate that could not be read says nothing, and the count goes on from where it was."""
    ring, busy = Ring(), Busy()
    ring.run(10, 1.0)
    looked(busy, ring, 0.0)
    ring.supported, ring.rate = False, CallError("nvml_error", "not ready", 27)
    assert looked(busy, ring, 5.0) == (None, None)
    ring.supported = True
    ring.run(8, 1.0)
    _, seconds = looked(busy, ring, 8.0)
    assert seconds == pytest.approx(8, abs=0.15)


def test_questions_keep_what_was_refused_unless_it_ends_all_asking():
    """A refusal is kept and the next question asked; one after which nothing can be learnt is raised."""
    ask = Questions()
    ring = Ring(rate=CallError("nvml_error", "not ready", 27))
    assert ask(ring.utilization) is None
    assert ([error.code for error in ask.refused], ask.answered) == ([27], False)
    assert ask(lambda: 5) == 5
    assert ask.answered
    ring.rate = CallError("gpu_lost", "lost", 15)
    with pytest.raises(CallError):
        ask(ring.utilization)
