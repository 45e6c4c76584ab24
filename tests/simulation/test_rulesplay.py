"""Rules over a scenario: what is scraped when, and what promtool's account says."""

from itertools import pairwise

from stallwatch.replay import play
from stallwatch.simulation.rulesplay import parsed, scraped
from stallwatch.simulation.scenario import scenario_of

NAMES = frozenset({"stallwatch_snapshot_timestamp_seconds", "stallwatch_server_verdict"})


def samples(*watcher, seconds=120):
    """Return the samples of `up` and of the snapshot's time of a short scenario, scrape by scrape."""
    server = {"args": ["--port", "30000"], "segments": [{"for": seconds, "phase": "ready", "log": "silent"}]}
    scenario = scenario_of({"servers": [server], "watcher": list(watcher)})
    series = {dict(key)["__name__"]: values for key, values in scraped(play(scenario), NAMES, scenario).items()}
    return series["up"], series["stallwatch_snapshot_timestamp_seconds"]


def test_every_fifteen_seconds_there_is_a_sample():
    """The exposition is scraped as a Prometheus would, and time goes on in it."""
    up, times = samples()
    assert up == ["1"] * 9
    assert [float(b) - float(a) for a, b in pairwise(times)] == [15.0] * 8


def test_a_gap_in_the_scrapes_leaves_no_sample():
    """Where Prometheus did not scrape there is nothing, not even `up`."""
    up, times = samples({"at": 30, "for": 30, "what": "scrape_gap"})
    assert up[2:4] == times[2:4] == ["_", "_"]
    assert up[4] == "1"


def test_an_exporter_that_is_down_is_not_up():
    """While the exporter is down the scrape fails, and its series are gone."""
    up, times = samples({"at": 30, "for": 30, "what": "down"})
    assert up[2:4] == ["0", "0"]
    assert times[2:4] == ["_", "_"]


def test_a_frozen_exporter_serves_what_it_served():
    """The scrape succeeds, but the time in it stands still."""
    up, times = samples({"at": 30, "for": 45, "what": "frozen"})
    assert up == ["1"] * 9
    assert times[2] == times[3] == times[4] == times[1]


def test_promtools_account_is_read():
    """The alerts that fire are in what it got instead of what was expected."""
    output = (
        '    expr: "ALERTS", time: 10m15s,\n        exp: {__name__="none"} 1E+00\n'
        '        got: {__name__="ALERTS", alertname="A", alertstate="firing", server="x{\\"y\\"}"} 1E+00, '
        '{__name__="ALERTS", alertname="B", alertstate="firing"} 1E+00\n'
        '    expr: "ALERTS", time: 1h,\n        exp: {__name__="none"} 1E+00\n        got: nil\n'
    )
    firing = parsed(output, [615.0, 3600.0])
    assert [labels["alertname"] for labels in firing[615.0]] == ["A", "B"]
    assert firing[3600.0] == []
