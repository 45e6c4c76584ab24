"""What was reported of real servers, as facts: is each judged as its reporters found it to be?

What a report leaves out is absent here too. Each file ends with the verdict that its facts deserve.
"""

from pathlib import Path

import pytest

from stallwatch.replay import broken, play
from stallwatch.simulation.scenario import load_scenario

FILES = sorted((Path(__file__).parent / "data" / "cases").glob("*.yml"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_reported_case_is_judged_right(path):
    """The facts of one report lead to its verdict."""
    scenario = load_scenario(path)
    _, wrong = broken(scenario, play(scenario, 15.0))
    assert wrong == []


def test_there_are_hangs_and_others_among_the_cases():
    """Neither a judge that always pages nor one that never does passes."""
    verdicts = [load_scenario(path).expect[0].verdict for path in FILES]
    assert verdicts.count("stalled") > 25
    assert sum(verdict in {"idle", "busy", "starting", "slow"} for verdict in verdicts) > 15
