"""Replay: a scenario through history and judge, with an exporter that may be away for a while."""

from stallwatch.replay import broken, play
from stallwatch.simulation.scenario import scenario_of

HUNG = {"engine": {"running": 1, "queued": 0, "tokens_per_second": 0}, "log": "silent", "phase": "ready"}
NAME = "sglang:30000"


def scenario(seconds=600, **more):
    """Return a scenario of a server that hangs from its first moment on."""
    return scenario_of({"name": "hung", "servers": [{"segments": [{"for": seconds, **HUNG}]}], **more})


def states(made, step=5.0):
    """Return the verdicts by time."""
    return {look.t: look.verdicts[NAME].state for look in play(made, step) if NAME in look.verdicts}


def test_what_is_judged_when():
    """Busy for a minute, suspect from then on, stalled from the fourth."""
    found = states(scenario())
    changes = [(t, state) for t, state in found.items() if found.get(t - 5.0) != state]
    assert changes == [(0.0, "busy"), (60.0, "suspect"), (240.0, "stalled")]


def test_an_exporter_that_is_down_says_nothing_and_remembers():
    """No look while it is down; after it, the hang is as old as it is. Away for too long, it begins anew."""
    short = states(scenario(watcher=[{"at": "100s", "for": "3m", "what": "down"}]))
    assert not [t for t in short if 100 <= t < 280]
    assert short[280.0] == "stalled"
    long = states(scenario(1200, watcher=[{"at": "100s", "for": "6m", "what": "down"}]))
    assert long[460.0] == "busy"


def test_a_frozen_exporter_goes_on_where_it_was():
    """It makes no look while it is frozen, and has forgotten nothing."""
    found = states(scenario(watcher=[{"at": "100s", "for": "3m", "what": "frozen"}]))
    assert 200.0 not in found
    assert found[280.0] == "stalled"


def test_limits_of_a_server():
    """A server may have limits of its own."""
    raw = {"servers": [{"limits": {"stalled": "90s"}, "segments": [{"for": 200, **HUNG}]}]}
    assert states(scenario_of(raw))[90.0] == "stalled"


def test_expectations_that_do_not_hold_are_told():
    """One line for each: when, which server, what was expected and what was said instead."""
    expect = [
        {"at": "30s", "verdict": "busy"},
        {"at": "2m", "verdict": "stalled"},
        {"at": "5m", "verdict": "stalled", "signature": "spin_deadlock"},
        {"at": "5m", "signature": "cold_deadlock", "alerts": ["InferenceServerStalled"]},
    ]
    made = scenario(expect=expect)
    looks, wrong = broken(made, play(made))
    assert len(looks) == 121
    assert [line.partition(" (")[0] for line in wrong] == [
        f"hung: at 120 s {NAME}: expected stalled, got suspect",
        f"hung: at 300 s {NAME}: expected signature spin_deadlock, got cold_deadlock",
    ]


def test_a_server_that_is_not_there():
    """An expectation of a server that has not been started yet does not hold."""
    raw = {"servers": [{"start": "1m", "segments": [{"for": 60}]}], "expect": [{"at": "30s", "verdict": "unknown"}]}
    made = scenario_of(raw)
    _, wrong = broken(made, play(made))
    assert wrong == [f"scenario: at 30 s {NAME}: expected unknown, and no such server is there"]


def test_a_start_that_comes_later():
    """A server appears when it is started, and its age counts from there."""
    raw = {"servers": [{"start": "2m", "segments": [{"for": 60, "phase": "launch", "log": "progress"}]}]}
    looks = list(play(scenario_of(raw)))
    assert next(look.t for look in looks if look.verdicts) == 120.0
