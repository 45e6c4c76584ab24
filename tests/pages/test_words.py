"""Times and amounts as a person reads them."""

import pytest

from stallwatch.pages import words

NOON = 1_767_268_800.0  # 2026-01-01 12:00 UTC


def test_a_time_of_today_is_a_time_of_day():
    """Within the last hours the date says nothing."""
    assert words.clock(NOON - 60, NOON) == '<time datetime="2026-01-01T11:59:00+00:00">11:59:00 UTC</time>'


def test_a_time_of_another_day_has_its_date():
    """Yesterday's noon is not today's."""
    assert ">2025-12-31 12:00 UTC</time>" in words.clock(NOON - 86_400, NOON)


@pytest.mark.parametrize("unix", [1e18, -1e18, 9e300])
def test_a_time_that_no_calendar_has_stays_a_number(unix):
    """A clock or a recording may say anything, and the page still opens."""
    assert words.clock(unix, NOON) == f"{unix:g}"
