"""Whether data-parallel replicas get on."""

from stallwatch.collectors.engine import EngineRank, EngineReading
from stallwatch.tracks.replicas import Replicas


def look(track, at, *ranks):
    """Take in one reading of an engine."""
    return track.look(EngineReading(at, "sglang:30000", ranks), (), 0.0)


def rank(name="0", tokens=0.0, *, live=True, running=1.0):
    """Return what the engine says of one replica."""
    return EngineRank(name, running, 0.0, {"decode": tokens}, live)


def test_each_replica_has_its_own_stamp():
    """One that stands still does not move with the others."""
    track = Replicas()
    look(track, 1.0, rank("0", 5), rank("1", 5))
    pasts = look(track, 6.0, rank("0", 9), rank("1", 5))
    assert [past.tokens_at for past in pasts] == [6.0, 0.0]
    assert [past.pending_since for past in pasts] == [1.0, 1.0]


def test_the_same_reading_is_taken_in_once():
    """Looks are more frequent than readings."""
    track = Replicas()
    first = look(track, 1.0, rank())
    assert track.look(EngineReading(1.0, "sglang:30000", (rank(tokens=99.0),)), (), 0.0) is first


def test_counters_that_tick_as_requests_end_are_no_tokens():
    """That they rest says nothing; that they tick does."""
    track = Replicas()
    assert look(track, 1.0, rank(tokens=5, live=False))[0].finished_at is None
    past = look(track, 6.0, rank(tokens=9, live=False))[0]
    assert (past.tokens_at, past.finished_at) == (None, 6.0)


def test_what_is_counted_for_all_together_counts_for_each():
    """An older engine counts tokens under no name beside its replicas, and that is no replica."""
    track = Replicas()
    named = [EngineRank(name, 1.0, 0.0) for name in "01"]
    look(track, 1.0, *named, EngineRank("", None, None, {"generation": 5.0}))
    pasts = look(track, 6.0, *named, EngineRank("", None, None, {"generation": 9.0}))
    assert [(past.dp_rank, past.finished_at) for past in pasts] == [("0", 6.0), ("1", 6.0)]


def test_without_a_reading_nothing_is_known():
    """A gap is a gap."""
    track = Replicas()
    look(track, 1.0, rank())
    assert track.look(None, (), 0.0) == ()


def test_a_replica_goes_on_after_a_restart():
    """What it had counted and since when it had work is remembered."""
    before, after = Replicas(), Replicas()
    look(before, 1.0, rank(tokens=5))
    look(before, 6.0, rank(tokens=500))
    after.recall(before.remember(), 100.0)
    past = look(after, 100.0, rank(tokens=500))[0]
    assert (past.tokens_at, past.pending_since) == (6.0, 1.0)
