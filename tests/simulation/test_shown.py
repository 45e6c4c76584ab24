"""What the page would show of a scenario: the view at a moment, and the half hour before it."""

import pytest

from stallwatch.simulation.scenario import load_scenario, scenario_file
from stallwatch.simulation.shown import shown
from stallwatch.trends import POINTS

SCENARIO = load_scenario(scenario_file("split_ranks"))


def test_it_shows_what_is_known_at_that_moment():
    """The verdict of that time with the points up to it, and nothing of what comes after."""
    early, late = shown(SCENARIO, 100.0), shown(SCENARIO, 900.0)
    states = [node.view.verdicts["sglang:30000"].state for node in (early, late)]
    assert states == ["busy", "stalled"]
    points = [node.trends.of("sglang:30000").trends["utilization"].points for node in (early, late)]
    assert [sum(point is not None for point in some) for some in points] == [11, 91]
    assert points[0][POINTS - 1] == pytest.approx((0.88, 0.88))
    assert points[1][POINTS - 1] == (0.0, 1.0)


def test_a_moment_before_the_first_look_is_an_error():
    """Nothing can be shown of it."""
    with pytest.raises(ValueError, match="split ranks: nothing is looked at in the first -1 s"):
        shown(SCENARIO, -1.0)
