"""The command replay: what it prints, when it fails, and what the real promtool makes of the shipped rules."""

import io
import json
from pathlib import Path

import pytest

from stallwatch.config import ConfigError
from stallwatch.simulation.replay import replay
from stallwatch.simulation.scenario import SHIPPED

ROOT = Path(__file__).parents[2]
RULES = ROOT / "alerts" / "rules"
COLD = SHIPPED / "cold_deadlock_after_weights.yml"

HANG = """
name: a start that hangs
servers:
  - args: [--port, "30000"]
    segments:
      - {for: 10s, phase: loading_weights, log: progress, health: refused}
      - {for: 15m, log: silent}
expect:
  - {at: 14m, server: "sglang:30000", verdict: VERDICT}
"""


def told(path, **options):
    """Return the exit code of a replay and the objects that it prints."""
    out = io.StringIO()
    code = replay(path, as_json=True, out=out, **options)
    return code, [json.loads(line) for line in out.getvalue().splitlines()]


def test_each_change_of_a_verdict_is_one_object(capsys):
    """From the start of a hang to its verdict: one line per change, in seconds from the start."""
    code, lines = told(COLD)
    assert code == 0
    assert (lines[0]["server"], lines[0]["verdict"]) == ("sglang:30000", "starting")
    last = lines[-1]
    assert (last["verdict"], last["signature"]) == ("stalled", "cold_deadlock")
    assert 600 <= last["t"] <= 660
    assert last["reason"]
    assert "its alerts were not judged" in capsys.readouterr().err


def test_a_shipped_scenario_is_played_by_its_name():
    """Its bare name is enough, in any folder; a name that is none is answered with those there are."""
    assert told(Path("cold_deadlock_after_weights")) == told(COLD)
    with pytest.raises(ConfigError, match=r"no_such_scenario: no such scenario; there are: .*cold_deadlock"):
        told(Path("no_such_scenario"))


def test_with_rules_the_alerts_are_played_too():
    """The shipped rules over the exposition itself: they fire with the verdict, and the expected ones are checked."""
    code, lines = told(COLD, rules=RULES)
    assert code == 0
    fired = {line["alert"]: line for line in lines if line.get("state") == "firing"}
    assert {"InferenceServerSilent", "InferenceServerStalled", "InferenceServerStartupStuck"} <= set(fired)
    stalled = fired["InferenceServerStalled"]
    assert stalled["labels"]["severity"] == "critical"
    assert stalled["labels"]["server"] == "sglang:30000"
    assert 600 <= stalled["t"] <= 660


def test_an_expectation_that_does_not_hold_is_named(tmp_path, capsys):
    """The exit code is 1, and the line says what was expected, when, and what came."""
    path = tmp_path / "wrong.yml"
    path.write_text(HANG.replace("VERDICT", "idle"))
    assert told(path)[0] == 1
    assert "at 840 s sglang:30000: expected idle, got stalled" in capsys.readouterr().err


def test_for_a_person_it_is_one_line_per_change():
    """Minutes and seconds, then what is said."""
    out = io.StringIO()
    replay(COLD, out=out)
    first = out.getvalue().splitlines()[0]
    assert first.startswith("   0:00  sglang:30000 starting")


def test_rules_that_are_not_there_are_refused(tmp_path):
    """A folder without rules is a mistake, not a quiet scenario."""
    with pytest.raises(ConfigError, match="holds no rules"):
        replay(COLD, rules=tmp_path)


def test_other_limits_can_be_tried(tmp_path, capsys):
    """With a shorter limit the same hang is called earlier, and the scenario's own expectations are still judged."""
    path = tmp_path / "hang.yml"
    path.write_text(HANG.replace("VERDICT", "stalled"))
    usual = told(path)[1][-1]
    code, lines = told(path, limits=["start_without_movement=2m", "start_without_movement_partial=3m"])
    assert code == 0
    assert (lines[-1]["verdict"], usual["verdict"]) == ("stalled", "stalled")
    assert (round(lines[-1]["t"], -1), round(usual["t"], -1)) == (190, 610)
    assert told(path, limits=["start_without_movement_partial=15m"])[0] == 1
    assert "expected stalled, got suspect" in capsys.readouterr().err


def test_limits_that_are_tried_win_over_those_of_the_scenario(tmp_path):
    """Whoever tries a limit wants to see it."""
    path = tmp_path / "own.yml"
    path.write_text(
        HANG.replace("VERDICT", "stalled").replace(
            "- args", "- limits: {start_without_movement_partial: 12m}\n    args"
        )
    )
    tried = ["start_without_movement_partial=5m"]
    assert [round(told(path, limits=limits)[1][-1]["t"], -1) for limits in ([], tried)] == [730, 310]


def test_the_rules_are_played_with_the_limits_that_are_tried():
    """They compare with what the exporter would have published."""
    _, lines = told(COLD, rules=RULES, limits=["silent=6m"])
    fired = {line["alert"]: line["t"] for line in lines if line.get("state") == "firing"}
    assert fired["InferenceServerSilent"] < fired["InferenceServerStalled"]
