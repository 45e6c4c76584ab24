"""Of what the kernel told of GPUs, that counts which is of this server's GPUs and of this life of it."""

from readings import BOOT, a_server, moment
from stallwatch.collectors.kernel import KernelReading, Xid
from stallwatch.past import XidPast
from stallwatch.tracks.xids import Xids


def told(*xids):
    """Return a reading of these (uuid, code, monotonic time, fault)."""
    made = (
        Xid("0000:3b:00", code, 1, BOOT + at, BOOT + at if fault else None, "9", uuid) for uuid, code, at, fault in xids
    )
    return KernelReading(100.0, tuple(made))


def test_only_its_own_gpus_and_life_count():
    """Neither another GPU, nor one without a name, nor what was logged before the server began."""
    reading = told(
        ("GPU-1", 79, 50.0, True), ("GPU-7", 79, 50.0, True), ("", 79, 50.0, True), ("GPU-0", 31, 20.0, False)
    )
    found = Xids().look(moment(100.0), a_server(ranks=2), reading, 30.0)
    assert found == (XidPast(1, 79, 50.0, 50.0),)


def test_what_was_told_stays_known():
    """A kernel log that cannot be read any more, or that has lost the line, mends no GPU."""
    track = Xids()
    first = track.look(moment(100.0), a_server(), told(("GPU-1", 79, 50.0, True)), 0.0)
    assert track.look(moment(105.0), a_server(), None, 0.0) == first
    assert track.look(moment(110.0), a_server(), told(), 0.0) == first


def test_the_last_line_of_a_kind_decides():
    """A recovery that is not asked for any more is no fault."""
    track = Xids()
    track.look(moment(100.0), a_server(), told(("GPU-1", 154, 50.0, True)), 0.0)
    assert track.look(moment(105.0), a_server(), told(("GPU-1", 154, 60.0, False)), 0.0) == (XidPast(1, 154, 60.0),)
