"""What a played server writes: the lines of the real engine, with progress that goes on as its segment does."""

import pytest

from stallwatch.simulation.livelog import LogLines
from stallwatch.simulation.player import Player
from stallwatch.simulation.scenario import scenario_of

LOADING = {"for": "100s", "phase": "loading_weights", "log": "progress", "health": "refused"}


@pytest.fixture
def player():
    """Return a server that loads for a hundred seconds."""
    scenario = scenario_of({"servers": [{"segments": [LOADING]}]})
    return Player.of(scenario.servers[0], 0, scenario.node)


def test_a_bar_shows_how_much_of_its_segment_has_passed(player):
    """Half of the time is half of the weights, and the end is all of them; each look counts on."""
    log = LogLines(player)
    bars = []
    for t in (0.0, 50.0, 50.5, 100.0):
        player.advance(t)
        bars += [line for line in log.lines(t) if "shards" in line]
    assert [bar.split("%")[0].split()[-1] for bar in bars] == ["0", "50", "50", "100"]
    assert len(set(bars)) == len(bars)


def test_a_phase_is_said_once_by_each_rank(player):
    """The line that begins a phase is not written again while it lasts."""
    log = LogLines(player)
    player.advance(1.0)
    first, again = list(log.lines(1.0)), list(log.lines(2.0))
    assert len([line for line in first if "Load weight begin" in line]) == len(player.ranks) == 1
    assert not [line for line in again if "Load weight begin" in line]
