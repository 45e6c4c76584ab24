"""Tests of when a scheduler's loop is taken to have turned."""

from stallwatch.engines.metrics import RankMetrics
from stallwatch.heartbeats import Heartbeats
from stallwatch.loads import Load

WALL = 1_000_000.0


def rank(name="0", **beats):
    """Build what a page says of one rank."""
    return RankMetrics(name, 0.0, 0.0, None, {}, live=True, beats={key: float(value) for key, value in beats.items()})


def beats_of(*looks):
    """Return the heartbeats of rank 0 at looks that are 5 s apart, from 100 s on."""
    heartbeats = Heartbeats("1")
    return [heartbeats.of_counters([look], 100.0 + 5 * at).get("0") for at, look in enumerate(looks)]


def test_a_counter_beats_when_it_changes():
    """The first look tells nothing, each change is a beat, and a standing counter keeps the last one."""
    assert beats_of(rank(a=7), rank(a=7), rank(a=8), rank(a=8), rank(a=9)) == [None, None, 110.0, 110.0, 120.0]


def test_a_counter_that_begins_anew_beats():
    """A lower value is a change like any other."""
    assert beats_of(rank(a=7), rank(a=1)) == [None, 105.0]


def test_the_scheduler_that_is_behind_counts():
    """One scheduler of a rank that stops while the others turn is not hidden by them."""
    assert beats_of(rank(a=1, b=1), rank(a=2, b=2), rank(a=3, b=2)) == [None, 105.0, 105.0]


def test_a_scheduler_that_never_moved_does_not_count():
    """Numbers that an earlier life has left behind stop nobody's heartbeat."""
    assert beats_of(rank(a=1, old=9), rank(a=2, old=9)) == [None, 105.0]


def test_a_scheduler_that_was_away_begins_anew():
    """After a page without its counter, a scheduler has to be seen to move again."""
    assert beats_of(rank(a=1), rank(a=2), rank(), rank(a=3), rank(a=4)) == [None, 105.0, None, None, 120.0]


def test_ranks_beat_apart():
    """One rank's heartbeat says nothing of another's."""
    heartbeats = Heartbeats("1")
    heartbeats.of_counters([rank("0", a=1), rank("1", a=1)], 100.0)
    assert heartbeats.of_counters([rank("0", a=2), rank("1", a=1)], 105.0) == {"0": 105.0}


def load_beats(*looks):
    """Return the heartbeats of rank 0 at looks given as (monotonic, wall, timestamp)."""
    heartbeats = Heartbeats("1")
    found = [heartbeats.of_loads([Load("0", timestamp, 0.0, 0.0)], now, wall) for now, wall, timestamp in looks]
    return [beats["0"] for beats in found]


def test_a_load_beats_when_it_was_written():
    """The age of the first load is known at once, however old it is."""
    assert load_beats((100.0, WALL, WALL - 3600)) == [-3500.0]
    assert load_beats((100.0, WALL, WALL - 2), (105.0, WALL + 5, WALL - 2)) == [98.0, 98.0]


def test_a_load_of_the_future_is_of_now():
    """A timestamp ahead of the clock cannot make a heartbeat that lasts."""
    assert load_beats((100.0, WALL, WALL + 3600), (160.0, WALL + 60, WALL + 3600)) == [100.0, 100.0]


def test_a_clock_that_is_set_moves_no_heartbeat():
    """What changed between two looks was written between them, and what did not change keeps its time."""
    assert load_beats((100.0, WALL, WALL), (105.0, WALL + 7200, WALL)) == [100.0, 100.0]
    assert load_beats((100.0, WALL, WALL), (105.0, WALL + 7200, WALL + 3)) == [100.0, 100.0]
    assert load_beats((100.0, WALL, WALL), (105.0, WALL - 7200, WALL + 3)) == [100.0, 105.0]
