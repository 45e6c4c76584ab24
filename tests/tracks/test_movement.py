"""How counters and levels become movement."""

import pytest

from stallwatch.tracks.movement import Ratchet, Rate, Since, Tokens


def moves(*values, probes=None, probed=True):
    """Return at which of these values, one a look, tokens have moved."""
    tokens, probes = Tokens(), probes or [0] * len(values)
    return [tokens.move(float(value), count, probed=probed) for value, count in zip(values, probes, strict=True)]


def test_the_first_value_is_no_movement():
    """A counter that is seen for the first time says nothing of when it rose."""
    assert moves(1000, 1000) == [False, False]


def test_one_token_is_movement_where_nobody_probes():
    """Without probes of ours each token is a client's."""
    assert moves(10, 11, probed=False) == [False, True]


def test_tokens_of_our_own_probes_are_none():
    """A probe makes one token or two; an hour of them is not a client's work."""
    values, probes = [], []
    for n in range(240):
        values.append(n * 2)
        probes.append(n)
    assert not any(moves(*values, probes=probes))


def test_slow_clients_move_beside_probes():
    """Half a token a second is more than a probe each 15 s makes."""
    looks = range(0, 120, 5)
    assert any(moves(*[now * 0.5 for now in looks], probes=[now // 15 for now in looks])[4:])


def test_failed_probes_do_not_pile_up_credit():
    """After an hour of probes that failed, a handful of tokens is still movement."""
    assert moves(0, 0, 10, probes=[0, 240, 241]) == [False, False, True]


def test_a_counter_that_begins_anew_is_no_movement():
    """The engine was started again."""
    assert moves(500, 3, probed=False) == [False, False]


@pytest.mark.parametrize(("per_second", "expected"), [(99.0, False), (100.0, True)])
def test_a_rate_needs_some_seconds(per_second, expected):
    """Under 5 s nothing is known; from there on the mean of the last ten."""
    rate = Rate()
    assert [rate.of(float(now), now * per_second) for now in range(5)] == [None] * 5
    assert (rate.of(5.0, 5 * per_second) >= 100) == expected


def test_a_ratchet_adds_up_small_steps():
    """However slowly it rises, it moves; a fall sets the mark anew."""
    ratchet = Ratchet(10)
    assert [ratchet.rises(value) for value in (0, 9, 10, 19, 3, 12, 13)] == [
        False,
        False,
        True,
        False,
        False,
        False,
        True,
    ]


def test_what_is_unknown_for_a_minute_is_no_break():
    """Since goes on over a short gap, and begins anew after a longer one or a true break."""
    since = Since()
    assert [since.hold(now, holds=holds) for now, holds in ((1, True), (61, None), (62, True))] == [1, 1, 1]
    assert [since.hold(now, holds=holds) for now, holds in ((123, None), (124, True), (125, False))] == [
        None,
        124,
        None,
    ]
