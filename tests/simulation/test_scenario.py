"""Scenario files: what is read from them, and that a bad one is refused in one line that names file, key and remedy."""

from contextlib import suppress

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwatch.config import ConfigError
from stallwatch.simulation.plot import Level
from stallwatch.simulation.scenario import load_scenario, scenario_of

GOOD = """
name: good
servers:
  - args: [--tp-size, "2"]
    segments:
      - {for: 90s, phase: ready, gpu: {utilization: [100, 0]}, log: progress, health: ok}
expect:
  - {at: 1m, verdict: busy}
"""


def refused(text, tmp_path):
    """Return the line with which this file is refused."""
    path = tmp_path / "bad.yml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_scenario(path)
    line = str(error.value)
    assert line.startswith(str(path))
    assert "\n" not in line
    assert len(line) < 2000
    return line.removeprefix(f"{path}: ")


def test_a_scenario_is_read(tmp_path):
    """Durations, lists, ramps and nulls; the first server is meant where an expectation names none."""
    path = tmp_path / "good.yml"
    path.write_text(GOOD.replace("health: ok", "health: {/health: 503, /health_generate: null}, engine: null"))
    scenario = load_scenario(path)
    segment = scenario.servers[0].segments[0]
    assert (scenario.name, segment.seconds, scenario.expect[0].server) == ("good", 90.0, "sglang:30000")
    assert segment.given["gpu.utilization"] == (Level(100.0, 100.0), Level(0.0, 0.0))
    assert segment.given["health"] == {"/health": 503, "/health_generate": None}
    assert segment.given["engine"] is None


def segment(text):
    """Return a scenario with this segment."""
    return f"servers: [{{segments: [{{for: 1m, {text}}}]}}]"


def watcher(text):
    """Return a scenario with this event."""
    return f"servers: [{{segments: [{{for: 1m}}]}}]\nwatcher: [{text}]"


def expect(text):
    """Return a scenario with this expectation."""
    return f"servers: [{{segments: [{{for: 1m}}]}}]\nexpect: [{text}]"


BAD = {
    "servers: []": "servers: a scenario needs at least one server",
    "servers: [{segments: []}]": "servers[0].segments: a server needs at least one segment",
    "servers: 7": "servers: expected a list, got a number",
    "- a": "expected a mapping, got a list",
    "": "expected a mapping, got nothing",
    "servers: [{segments: [{phase: ready}]}]": "servers[0].segments[0].for: missing",
    "servers: [{segmets: []}]": "servers[0].segmets: unknown key; allowed: engine, version, args, segments",
    "servers: [{engine: trt, segments: [{for: 1m}]}]": "servers[0].engine: expected one of sglang, vllm; got 'trt'",
    "servers: [{segments: [{for: -5s}]}]": "servers[0].segments[0].for: expected a duration such as 90s",
    "servers: [{segments: [{for: .nan}]}]": "servers[0].segments[0].for: expected a duration",
    "servers: [{segments: [{for: .inf}]}]": "servers[0].segments[0].for: expected a duration",
    "servers: [{segments: [{for: 9999999h}]}]": "servers[0].segments[0].for: expected a duration",
    "servers: [{segments: [{for: true}]}]": "servers[0].segments[0].for: expected a duration",
    "servers: [{segments: [{for: soon}]}]": "servers[0].segments[0].for: expected a duration",
    "servers: [{limits: {stalled: x}, segments: [{for: 1m}]}]": "servers[0].limits.stalled: expected a duration",
    "servers: [{limits: {stuck: 1m}, segments: [{for: 1m}]}]": "servers[0].limits.stuck: unknown key; allowed: suspect",
    "servers: [{args: [{a: 1}], segments: [{for: 1m}]}]": "servers[0].args[0]: expected text, got a mapping",
    "servers: [{args: [--tp-size, '60000'], segments: [{for: 1m}]}]": "servers[0].args: at most 64 schedulers",
    "servers: [{segments: [{for: 1m}]}, {segments: [{for: 1m}]}]": "servers[1].name: expected a name that no server",
    "node: {gpus: 8.5}\nservers: [{segments: [{for: 1m}]}]": "node.gpus: expected a whole number from 0 to 64",
    "node: {gpus: 1000000000}\nservers: [{segments: [{for: 1m}]}]": "node.gpus: expected a whole number from 0 to 64",
    segment("phase: redy"): "phase: expected one of launch, distributed_init, loading_weights",
    segment(
        "log: progres"
    ): "log: expected one of progress, access, heartbeat, silent; got 'progres'; did you mean progress?",
    segment("health: fine"): "health: expected one of ok, refused",
    segment("health: 99"): "health: expected a whole number from 100 to 599",
    segment("health: {health: ok}"): "health: expected paths that begin with /",
    segment("gpu: 5"): "gpu: expected a mapping, got a number",
    segment("gpu: {util: 5}"): "gpu.util: unknown key; allowed: utilization",
    segment("gpu: {utilization: -1}"): "gpu.utilization: expected a number from 0",
    segment("gpu: {utilization: .nan}"): "gpu.utilization: expected a number from 0",
    segment("gpu: {utilization: 0x" + "f" * 6000 + "}"): "gpu.utilization: expected a number from 0",
    segment("gpu: {utilization: []}"): "gpu.utilization: expected at least one value, got an empty list",
    segment("gpu: {utilization: [[1]]}"): "gpu.utilization[0]: expected a number",
    segment("gpu: {utilization: {from: 1}}"): "gpu.utilization: a ramp needs both from and to",
    segment("gpu: {utilization: '5'}"): "gpu.utilization: expected a number from 0",
    segment("gpu: {lost: 3}"): "gpu.lost: expected a list, got a number",
    segment("gpu: {lost: [x]}"): "gpu.lost[0]: expected a whole number",
    segment("gpu: {xid: {x: 79}}"): "gpu.xid: expected a whole number",
    segment("scheduler: {state: sleeping}"): "scheduler.state: expected one of R, S, D",
    segment("scheduler: {compiler: maybe}"): "scheduler.compiler: expected true or false",
    segment("engine: {heartbeat: 1}"): "engine.heartbeat: expected true or false",
    segment("processes: {scheduler_TP9: gone}"): "processes: expected one of launcher, scheduler, detokenizer",
    segment("processes: {detokenizer: dead}"): "processes.detokenizer: expected one of gone, zombie, stopped, running",
    segment("exit: badly"): "exit: expected one of crash, orderly; got 'badly'",
    watcher("{at: 1m}"): "watcher[0].what: expected one of down, restart, scrape_gap, frozen",
    watcher("{what: down}"): "watcher[0].at: expected a duration",
    watcher("{at: 1m, what: {clock_step: inf}}"): "watcher[0].clock_step: expected a duration",
    watcher("{at: 1m, what: {clock_step: -9999999h}}"): "watcher[0].clock_step: expected a duration",
    expect("{at: 1m, verdict: hung}"): "expect[0].verdict: expected one of starting, idle, busy",
    expect("{at: 1m, signature: cold}"): "expect[0].signature: expected one of cold_deadlock",
    expect("{at: 1m, server: other}"): "expect[0].server: expected one of sglang:30000; got 'other'",
    expect("{at: 1m, alerts: InferenceServerStalled}"): "expect[0].alerts: expected a list, got text",
    "[" * 5000: "nested too deeply",
    "a: &x [1]\nservers: *x": "line 1, column 4: anchors and aliases are not allowed",
    "servers: 1\nservers: 2": "line 2, column 1: key servers stands here twice",
    "servers: [": "line 1, column 11",
}


@pytest.mark.parametrize(("text", "line"), BAD.items(), ids=[line[:60] for line in BAD.values()])
def test_a_bad_file_is_refused_in_one_line(text, line, tmp_path):
    """The line names the file, the place and what is allowed there."""
    assert line in refused(text, tmp_path)


def test_a_file_that_is_not_there(tmp_path):
    """It is named, and so is the reason."""
    with pytest.raises(ConfigError, match=r"nowhere\.yml: cannot be read: No such file"):
        load_scenario(tmp_path / "nowhere.yml")


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.just(10**400))
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
)
KEYS = (
    "servers",
    "segments",
    "for",
    "gpu",
    "utilization",
    "log",
    "health",
    "engine",
    "processes",
    "args",
    "expect",
    "at",
    "what",
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_stands_in_a_file_is_read_or_refused(data):
    """A value of any kind in any place leads to a scenario or to a ConfigError, never to another exception."""
    raw = yaml.safe_load(GOOD)
    raw["watcher"] = [{"at": "1m", "what": "down"}]
    places = [(raw, key) for key in raw]
    for inner in (raw["servers"][0], raw["servers"][0]["segments"][0], raw["expect"][0], raw["watcher"][0]):
        places += [(inner, key) for key in inner]
    places.append((raw["servers"][0]["segments"][0]["gpu"], "utilization"))
    where, key = data.draw(st.sampled_from(places))
    where[data.draw(st.sampled_from((key, key, *KEYS)))] = data.draw(ANYTHING)
    with suppress(ConfigError):
        assert scenario_of(raw).servers
