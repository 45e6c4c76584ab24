"""Limits that are tried: which can be, and what is said of those that cannot."""

import pytest

from stallwatch.config import ConfigError
from stallwatch.settings.limit_flag import limits_to_try


def test_limits_are_read_as_a_file_has_them():
    """Names and durations are those of the configuration; the last of one name counts."""
    assert limits_to_try([]) == {}
    assert limits_to_try(["stalled=3m", "lost_process=30s"]) == {"stalled": 180.0, "lost_process": 30.0}
    assert limits_to_try(["silent=5m", " silent = 6m "]) == {"silent": 360.0}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("stalled", "--limit: expected NAME=DURATION such as stalled=3m, got 'stalled'"),
        ("stale=3m", "did you mean stalled?"),
        ("stalled=soon", "--limit: stalled: expected a duration above 0 such as 500ms, 15s or 1h30m, got 'soon'"),
        ("stalled=0s", "--limit: stalled: expected a duration above 0 such as 500ms, 15s or 1h30m, got '0s'"),
        ("stalled=2m", "--limit: limits.stalled: expected at least evidence (3m), got 2m"),
    ],
)
def test_what_cannot_be_tried_is_named(given, said):
    """The line says which limit, and what is allowed."""
    with pytest.raises(ConfigError) as refused:
        limits_to_try([given])
    assert str(refused.value).endswith(said)


def test_the_order_is_that_of_each_server():
    """A server that has another one already may have this one too; another server may not."""
    assert limits_to_try(["stalled=2m"], [{"evidence": 90.0}]) == {"stalled": 120.0}
    with pytest.raises(ConfigError, match=r"expected at least evidence \(3m\)"):
        limits_to_try(["stalled=2m"], [{"evidence": 90.0}, {}])


def test_without_a_limit_nothing_is_refused():
    """What a scenario says itself is its own affair."""
    assert limits_to_try([], [{"stalled": 10.0}]) == {}
