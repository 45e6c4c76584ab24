"""Agreement: what the exporter judges of a scenario and what the alert rules page of it are of one mind.

Each scenario is played through the judgement, its exposition is scraped as Prometheus would, and the shipped rules go
over the samples in the real promtool. Where the raw rules may differ from the verdict is said in `MAY_DIFFER`, with the
reason.
"""

from pathlib import Path

import pytest

from stallwatch.replay import play
from stallwatch.simulation.replay import wrong_alerts
from stallwatch.simulation.rulesplay import SCRAPE, alert_changes
from stallwatch.simulation.scenario import SHIPPED, load_scenario

ROOT = Path(__file__).parents[1]
RULES = ROOT / "alerts" / "rules"
SCENARIOS = sorted(SHIPPED.glob("*.yml"))
SHORT_SECONDS = 15 * 60
RAW = frozenset({"InferenceServerSilent", "InferenceServerStartupStuck"})
MAY_DIFFER = {
    "high_power": "the raw rules do not know power, so they may page before a verdict that waits for it",
    "drain": "a drain that hangs is judged by its own limit, which the raw rules leave out",
}
SETTLING = 180.0
"""For so long around a change a page may still fire, or not yet: rules keep firing over a flap, and N may differ."""


def parameters():
    """Yield the scenarios; those that take promtool long are for `make test-all`."""
    for path in SCENARIOS:
        marks = [] if load_scenario(path).seconds <= SHORT_SECONDS else [pytest.mark.long]
        yield pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.parametrize("path", list(parameters()))
def test_rules_and_verdict_agree(path):
    """Every expected alert fires, none pages where none may, and the raw rules never page a server that is well."""
    scenario = load_scenario(path)
    looks = list(play(scenario))
    changes = alert_changes(scenario, looks, RULES)
    assert list(wrong_alerts(scenario, changes)) == []
    well = well_for_long(looks)
    paged = [
        (change.t, change.alert, change.labels["server"])
        for change in changes
        if change.alert in RAW and change.state == "firing" and change.labels["severity"] == "critical"
    ]
    if not any(word in path.stem for word in MAY_DIFFER):
        assert [page for page in paged if well(page[2], page[0])] == []


def well_for_long(looks):
    """Return what tells whether a server was neither hung nor suspect for some time around a moment."""
    verdicts = {(look.t, name): verdict.state for look in looks for name, verdict in look.verdicts.items()}

    def well(name, t):
        near = [state for (at, server), state in verdicts.items() if server == name and abs(at - t) <= SETTLING]
        return bool(near) and not {"stalled", "dead", "suspect", "unknown"} & set(near)

    return well


def test_a_verdict_that_pages_is_paged():
    """The alert on the verdict follows it within one scrape and one evaluation, and ends after it."""
    scenario = load_scenario(SHIPPED / "cold_deadlock_after_weights.yml")
    looks = list(play(scenario))
    stalled = next(look.t for look in looks if look.verdicts["sglang:30000"].state == "stalled")
    changes = alert_changes(scenario, looks, RULES)
    fired = next(change.t for change in changes if change.alert == "InferenceServerStalled")
    assert 0 <= fired - stalled <= SCRAPE
