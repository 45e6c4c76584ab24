"""The scenarios that come with the project: each says what is judged of it, and that is what is judged."""

import pytest

from stallwatch.replay import broken, play
from stallwatch.simulation.scenario import SHIPPED, load_scenario
from stallwatch.verdict import SIGNATURES

FILES = sorted(SHIPPED.glob("*.yml"))
CRITICAL = {
    "InferenceServerSilent",
    "InferenceServerStartupStuck",
    "InferenceServerStalled",
    "InferenceServerDead",
    "InferenceServerCrashLooping",
    "InferenceGPUFault",
    "StallwatchDown",
    "StallwatchSnapshotStale",
}
AT_OTHER_PACES = ("cold_deadlock_after_weights", "spin_deadlock", "frontend_stall", "dead_replica", "rolling_deploy")


def names(paths):
    """Return the names of files, for the names of tests."""
    return [path.stem for path in paths]


@pytest.mark.parametrize("path", FILES, ids=names(FILES))
def test_what_a_scenario_expects_is_judged(path):
    """Every verdict and signature that a scenario expects holds at its moment, looked at each 5 s."""
    scenario = load_scenario(path)
    _, wrong = broken(scenario, play(scenario))
    assert wrong == []


@pytest.mark.parametrize("step", [1.0, 15.0])
@pytest.mark.parametrize("name", AT_OTHER_PACES)
def test_the_pace_of_looking_changes_no_verdict(name, step):
    """Looked at each second or four times a minute, the same is judged."""
    scenario = load_scenario(FILES[0].parent / f"{name}.yml")
    _, wrong = broken(scenario, play(scenario, step))
    assert wrong == []


@pytest.mark.parametrize("path", FILES, ids=names(FILES))
def test_a_scenario_expects_something_at_several_moments(path):
    """Each scenario looks at an early moment too, and speaks of alerts that exist."""
    scenario = load_scenario(path)
    assert len(scenario.expect) >= 2
    assert any(expectation.alerts is not None for expectation in scenario.expect)
    assert {alert for one in scenario.expect for alert in one.alerts or ()} <= CRITICAL


def test_every_signature_has_a_scenario():
    """No kind of hang is without a scenario that shows it."""
    shown = {expectation.signature for path in FILES for expectation in load_scenario(path).expect}
    assert set(SIGNATURES) <= shown
