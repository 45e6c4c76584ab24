"""The command replay: what it prints, when it fails, and what the real promtool makes of the shipped rules."""

import io
import json
from pathlib import Path

import pytest

from readings import NAME, a_server, a_snapshot
from stallwatch.config import ConfigError
from stallwatch.flight import FlightRecorder
from stallwatch.recording import line_of
from stallwatch.recordingfile import IN_BUNDLE
from stallwatch.replay import play
from stallwatch.simulation.replay import replay, shipped_scenarios
from stallwatch.simulation.scenario import SHIPPED, load_scenario

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
    """Its bare name is enough, in any folder; a name that is none is answered with those that are like it."""
    assert told(Path("cold_deadlock_after_weights")) == told(COLD)
    with pytest.raises(ConfigError, match=r"cold_deadlok: no such scenario; did you mean .*cold_deadlock.* --list"):
        told(Path("cold_deadlok"))


def test_shipped_scenarios_are_listed_with_their_titles():
    """Each by the name that plays it."""
    lines = list(shipped_scenarios())
    assert len(lines) == len(list(SHIPPED.glob("*.yml")))
    assert "a stall that ends by itself" in next(line for line in lines if line.startswith("recovery "))


def a_bundle(folder):
    """Write the bundle of a server that hangs, as the flight recorder leaves it, and return its directory."""
    folder.mkdir()
    recorder = FlightRecorder()
    for look in play(load_scenario(SHIPPED / "cold_deadlock_while_serving.yml")):
        recorder.take(look.snapshot)
    (folder / IN_BUNDLE).write_bytes(recorder.dump())
    return folder


def test_the_bundle_of_a_hang_is_replayed(tmp_path):
    """By its directory or by the recording in it, with limits to try, and alerts."""
    bundle = a_bundle(tmp_path / "sglang:30000.2026-05-01")
    usual, tried = (told(bundle, limits=limits)[1][-1] for limits in ((), ["stalled=3m"]))
    assert told(bundle / IN_BUNDLE)[1][-1] == usual
    assert (usual["verdict"], usual["signature"], tried["verdict"]) == ("stalled", "cold_deadlock", "stalled")
    assert usual["t"] - tried["t"] == 60
    assert [line for line in told(bundle, rules=RULES)[1] if line.get("alert") == "InferenceServerStalled"]


def test_a_bundle_is_replayed_under_the_limits_that_its_server_had(tmp_path):
    """Others that are tried win; what is told of them that is no limit changes nothing."""
    bundle = a_bundle(tmp_path / "a_bundle")
    usual = told(bundle)[1][-1]["t"]
    lower = {"stalled": 200.0, "evidence": 120.0}
    for limits, earlier in ((lower, 40.0), ({"stalled": -1.0}, 0.0), ({"no": 1.0}, 0.0)):
        (bundle / "verdict.json").write_text(json.dumps({"server": NAME, "limits": limits}))
        assert usual - told(bundle)[1][-1]["t"] == pytest.approx(earlier, abs=5.0)
    (bundle / "verdict.json").write_text(json.dumps({"server": NAME, "limits": {"stalled": 200.0}}))
    tried = told(bundle, limits=["stalled=3m"])[1][-1]["t"]
    assert usual - tried == pytest.approx(60.0, abs=5.0)


def test_of_a_bundle_its_server_is_told_of(tmp_path):
    """Others of the node are in the recording as well, and are told of when they are asked for."""
    bundle = a_bundle(tmp_path / "a_bundle")
    (bundle / "verdict.json").write_text(json.dumps({"server": "vllm:8000", "limits": {}}))
    assert told(bundle)[1] == []
    assert {entry["server"] for entry in told(bundle, server=NAME)[1]} == {NAME}


def test_a_person_is_told_how_a_recording_ends(tmp_path):
    """A verdict that lasts is told only where it began, which may be long before."""
    out = io.StringIO()
    replay(a_bundle(tmp_path / "a_bundle"), out=out)
    last = out.getvalue().splitlines()[-1]
    assert f"the recording ends, {NAME} stalled" in last
    assert "(limit 4 min)" in last


def test_a_directory_that_is_no_bundle_is_named(tmp_path):
    """As is one that holds no snapshot, whatever kind of recording it is."""
    with pytest.raises(ConfigError, match=f"{tmp_path}: is no bundle: there is no recording.jsonl.gz in it"):
        told(tmp_path)
    (tmp_path / IN_BUNDLE).write_bytes(FlightRecorder().dump())
    (tmp_path / "empty.jsonl").write_bytes(b"")
    for empty in (tmp_path, tmp_path / "empty.jsonl"):
        with pytest.raises(ConfigError, match=f"{empty}: holds no snapshot"):
            told(empty)


def test_names_in_a_recording_cannot_write_to_the_terminal(tmp_path):
    """Whoever sends a bundle chooses what stands in it."""
    path, out = tmp_path / "r.jsonl", io.StringIO()
    path.write_bytes(line_of(a_snapshot(1.0, servers=(a_server(name="x\x1b[2J\n"),))))
    replay(path, out=out)
    assert "x?[2J?" in out.getvalue()
    assert "\x1b" not in out.getvalue()


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
