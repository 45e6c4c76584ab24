"""What the files of one thread say."""

import pytest

from stallwatch.node.procfs import TICKS_PER_SECOND
from stallwatch.sources.onetask import MOST_FRAMES, Count, count_of, frames_of, manner_of, wchan_of

STATUS = b"Name:\tx\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t3\n"


def stat(name=b"x", state=b"S", user=5, system=2):
    """Return the file `stat` of a thread."""
    return b"9 (%b) %b %b %d %d 0 0" % (name, state, b" ".join([b"0"] * 10), user, system)


@pytest.mark.parametrize("name", [b"x", b") R 1 2 3 (", b"a b", b"\xff\n"])
def test_a_name_moves_no_field(name):
    """It may hold all that separates fields."""
    assert count_of(1.0, stat(name), STATUS) == Count(1.0, "S", 7, (7, 3))


def test_without_switches_nothing_is_made_up():
    """The thread may have ended between two files."""
    assert count_of(1.0, stat(), b"").switches is None


def test_what_was_used_between_two_looks_is_in_cores():
    """A clock that stands still divides by nothing, and ticks that went back are no use."""
    before, now = Count(1.0, "R", 10, (1, 2)), Count(2.0, "R", 10 + TICKS_PER_SECOND, (4, 2))
    assert now.since(before) == (1.0, (3, 0))
    assert before.since(now)[0] == 0.0
    assert Count(1.0, "R", 11, None).since(before)[1] is None


@pytest.mark.parametrize(
    ("states", "ratio", "switched", "manner"),
    [
        ({"S"}, 0.0, (0, 0), "sleeps"),
        ({"S"}, 0.0, None, "sleeps"),
        ({"S"}, 0.02, (9, 0), "wakes"),
        ({"S", "R"}, 0.0, (0, 0), "wakes"),
        ({"R"}, 1.0, (0, 9), "spins"),
        ({"R"}, 0.9, (50, 9), "works"),
        ({"D"}, 0.0, (0, 0), "uninterruptible"),
        ({"D", "S"}, 0.0, (1, 0), "wakes"),
        ({"T"}, 0.0, (0, 0), "stopped"),
        ({"Z"}, 0.0, None, "zombie"),
    ],
)
def test_each_manner_has_its_signs(states, ratio, switched, manner):
    """One word for what a thread did."""
    assert manner_of(states, ratio, switched) == manner


@pytest.mark.parametrize(("data", "told"), [(None, None), (b"", None), (b"0", None), (b"do\x1bfutex", "do?futex")])
def test_where_it_waits_is_a_clean_word_or_nothing(data, told):
    """`0` is how the kernel says that it does not wait."""
    assert wchan_of(data) == told


def test_a_kernel_stack_is_shown_without_addresses():
    """And no longer than is of use."""
    data = b"[<0>] futex_wait+0x1a/0x2b\n[<0>] nv_ioctl+0x1/0x2 [nvidia]\n[<0>] 0xffffffffffffffff\n[<0>] plain\n"
    assert frames_of(data) == ("futex_wait", "nv_ioctl [nvidia]", "plain")
    assert (frames_of(None), frames_of(b"")) == (None, ())
    assert len(frames_of(b"[<0>] f+0x1/0x2\n" * 999)) == MOST_FRAMES
