"""Whatever a driver does in its life, through the real pynvml and a compiled library: each value is told or is absent.

One child process plays many steps. Each step is how many seconds later (on a clock of its own) GPUs are read that do
what its statements say; `anew` has another reader begin with that step.
"""

import json
import os
import subprocess
import sys

import pytest

from nvml_library import environment

CHILD = """
import dataclasses, json, os, sys
from pathlib import Path
import pynvml
from nvml_library import write_state
from stallwatch.collectors.gpu import GpuReader
from stallwatch.gpus.nvml import Nvml
state, now, reader, answers = Path(os.environ["STALLWATCH_FAKE_NVML"]), 1000.0, None, []
for step in json.load(sys.stdin):
    now += step["after"]
    if step["state"] is None:
        state.unlink(missing_ok=True)
    else:
        write_state(state, f"driver_clock {4000 + now}", *step["state"])  # it goes by the same clock
    if reader is None or step["anew"]:
        reader = GpuReader(Nvml(pynvml, lambda note: None), lambda: now)
    reading, failures = reader.read([], frozenset())
    answers.append([dataclasses.asdict(reading), [[one.reason, one.detail] for one in failures]])
print(json.dumps(answers, allow_nan=False))
"""
HEALTHY = (
    "gpus 2",
    "gpu * name NVIDIA H20",
    "gpu * utilization 40",
    "gpu * memory_mib 1000",
    "gpu * power_watts 90",
    "gpu * energy_joules 5000",
    "gpu * throttle 5",
    "gpu * recovery_action 1",
    "gpu * process 7 100",
    "gpu * graphics 8 200",
)
# Which values rest on each call of a GPU.
FEEDS = {
    "nvmlDeviceGetHandleByIndex": set(),
    "nvmlDeviceGetUUID": set(),
    "nvmlDeviceGetName": {"name"},
    "nvmlDeviceGetPciInfo": {"pci_bus_id"},
    "nvmlDeviceGetSamples": {"utilization", "busy_seconds"},
    "nvmlDeviceGetUtilizationRates": {"utilization", "busy_seconds"},
    "nvmlDeviceGetMemoryInfo": {"memory_used", "memory_total"},
    "nvmlDeviceGetPowerUsage": {"power_watts"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_watts"},
    "nvmlDeviceGetTotalEnergyConsumption": {"energy_joules"},
    "nvmlDeviceGetClockInfo": {"sm_clock_hertz"},
    "nvmlDeviceGetTemperatureV": {"temperature_celsius"},
    "nvmlDeviceGetCurrentClocksEventReasons": {"throttle_reasons"},
    "nvmlDeviceGetFieldValues": {"recovery_action"},
    "nvmlDeviceGetComputeRunningProcesses": {"processes"},
    "nvmlDeviceGetGraphicsRunningProcesses": {"processes"},
}
# What another call tells as well, where the GPU or driver lacks this one; for the ring that is always so.
REPLACED = {
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
}
FOR_WHO_IT_IS = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID")
OF_THE_LIBRARY = ("nvmlInit", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount", "nvmlShutdown")
REASONS = {4: "no_permission", 9: "driver_not_loaded", 12: "library_not_found", 15: "gpu_lost"}
REASONS |= {16: "reset_required", 17: "no_permission", 18: "version_mismatch"}
CODES = (1, 3, 4, 6, 9, 12, 13, 15, 16, 17, 18, 21, 27, 999)
ABSENT_FEATURE = {3, 13}
END_OF_ASKING = {1, 9, 12, 15, 16, 18}
LOSSES = {15, 16, 999}
NO_SAMPLES = {6, 21}


@pytest.fixture
def play(library, tmp_path):
    """Return a function that plays steps and returns readings and failures."""

    def played(*steps):
        environ = {**environment(library, tmp_path / "state"), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", CHILD]
        done = subprocess.run(
            command, input=json.dumps(steps), env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return played


def step(*statements, after=5.0, anew=False, state=True):
    """Return a step; without `state` there is no driver."""
    return {"after": after, "anew": anew, "state": [*HEALTHY, *statements] if state else None}


def by_uuid(reading):
    """Return the GPUs of a reading by the last digit of their UUID, `?` where they have none."""
    return {gpu["uuid"][-1:] or "?": gpu for gpu in reading["gpus"]}


def differing(gpu, healthy):
    """Return what a GPU tells otherwise than a healthy one, but for what is counted over time."""
    return {key for key in gpu if rounded(gpu[key]) != rounded(healthy[key]) and key != "busy_seconds"}


def rounded(value):
    """Return a value without the last digits of a mean."""
    return round(value, 6) if isinstance(value, float) else value


def told(gpu, key):
    """Return a value, None where it is absent in whatever way."""
    return gpu[key] if gpu[key] not in (None, "", []) else None


@pytest.mark.parametrize("code", CODES)
def test_an_error_at_any_call_of_a_gpu_costs_what_rests_on_it(play, code):
    """Each call refused with this code, at first sight and later: the rest is told as before, nothing becomes 0.

    The failure names GPU and call. Another GPU sees nothing of it, and afterwards all is as it was.
    """
    steps = []
    for call in FEEDS:
        fault = [f"gpu 1 error {call} {code}"]
        if call == "nvmlDeviceGetUtilizationRates":
            fault.append("gpu 1 error nvmlDeviceGetSamples 3")
        steps += [step(*fault, anew=True), step(after=60)]  # from the start
        steps += [step(anew=True), step(*fault), step(after=60)]  # while it runs
    answers = iter(play(*steps))
    for call in FEEDS:
        first, last, healthy, later, again = (next(answers) for _ in range(5))
        assert healthy[1] == []
        for reading, failures in (first, later):
            checked(call, code, by_uuid(reading), failures, by_uuid(healthy[0]), at_first=reading is first[0])
        # What is not supported is asked for again only when the library starts anew.
        for reading, failures in (last, again) if code not in ABSENT_FEATURE else ():
            assert failures == [], (call, failures)
            assert [differing(gpu, by_uuid(healthy[0])[key]) for key, gpu in by_uuid(reading).items()] == [set(), set()]


def checked(call, code, gpus, failures, healthy, *, at_first):
    """Check one reading of a faulty GPU 1 beside a healthy GPU 0."""
    where = (call, code, at_first, gpus.get("1"), failures)
    assert differing(gpus["0"], healthy["0"]) == set(), where
    if call in FOR_WHO_IT_IS:
        if at_first:
            assert failures, where
            assert f"gpu 1 {call}" in failures[0][1], where
            assert "1" not in gpus, where
        else:  # it has a handle, and is known
            assert (differing(gpus["1"], healthy["1"]), failures) == (set(), []), where
        return
    gpu = gpus["1"]
    silent = code in ABSENT_FEATURE or (call == "nvmlDeviceGetSamples" and code in NO_SAMPLES)
    known_already = not at_first and call in {"nvmlDeviceGetName", "nvmlDeviceGetPciInfo"}
    if silent or known_already:
        assert failures == [], where
    else:
        reason = REASONS.get(code, "nvml_error")
        assert {found for found, _ in failures} == {reason}, where
        assert any(f"gpu 1 {call}" in detail for _, detail in failures), where
    replaced = call == "nvmlDeviceGetSamples" or (code in ABSENT_FEATURE and call in REPLACED)
    if not replaced and not known_already:  # and never the last good value
        assert {told(gpu, key) for key in FEEDS[call]} == {None}, where
    ended = code in END_OF_ASKING and not known_already
    assert gpu["lost"] == (ended and code in LOSSES), where
    for key in differing(gpu, healthy["1"]) - {"lost"}:
        if key == "memory_used" and code in ABSENT_FEATURE:
            assert gpu[key] == 300 << 20, where  # of a GPU without memory of its own, what its processes hold
        elif key == "processes" and code in ABSENT_FEATURE:
            assert {one["pid"] for one in gpu[key]} < {7, 8}, where  # the other list is there
        else:
            assert told(gpu, key) is None, (key, *where)
            assert ended or key in FEEDS[call], (key, *where)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("call", OF_THE_LIBRARY)
def test_an_error_at_any_call_of_the_library(play, call, code):
    """It starts or it says why not, names the call, and starts as soon as it can; a start anew never hides a GPU."""
    fault = f"error {call} {code}"
    lost = "gpu 1 lost"  # has the library ended and started again
    first, later, over, anew, back = play(
        step(fault), step(fault), step(), step(lost, fault, after=60, anew=True), step(after=60)
    )
    for reading, failures in (first, later):
        if call == "nvmlShutdown":
            assert (len(reading["gpus"]), failures) == (2, [])
            continue
        assert reading["gpus"] == []
        ((reason, detail),) = failures
        assert reason == REASONS.get(code, "nvml_error")
        assert detail.startswith(f"{call}: ")
    for reading, failures in (over, back):
        assert failures == []
        assert {key: gpu["power_watts"] for key, gpu in by_uuid(reading).items()} == {"0": 90, "1": 90}
    assert anew[1]


def test_a_lost_gpu_comes_back_under_another_index(play):
    """It is known by its UUID: lost under its name, while the others stay, its busy seconds go on where they were."""
    answers = play(
        step("gpus 3"),
        step("gpus 3"),
        step("gpus 3", "gpu 1 lost"),
        step("gpus 3", "gpu 1 lost", after=31),
        step("order 0 2", after=31),
        step("order 2 0 1", after=31),
    )
    before, lost, restarted, unlisted, back = (by_uuid(reading) for reading, _ in answers[1:])
    for found in (lost, restarted, unlisted):
        assert {key: gpu["lost"] for key, gpu in found.items()} == {"0": False, "1": True, "2": False}
        assert found["1"]["name"] == "NVIDIA H20"
        assert found["1"]["pci_bus_id"] == before["1"]["pci_bus_id"]
        assert {told(found["1"], key) for key in ("power_watts", "memory_used", "utilization", "processes")} == {None}
        assert found["2"]["power_watts"] == 90
    assert {key: (gpu["index"], gpu["lost"]) for key, gpu in back.items()} == {"2": (0, 0), "0": (1, 0), "1": (2, 0)}
    assert answers[-1][1] == []
    assert back["1"]["busy_seconds"] >= before["1"]["busy_seconds"] > 0
    assert back["0"]["busy_seconds"] > unlisted["0"]["busy_seconds"]


def test_a_driver_that_is_loaded_anew(play):
    """Away, of another version than the library, there again with clock and energy begun anew: one reason each."""
    answers = play(
        step(),
        step(),
        step(state=False),
        step(state=False),
        step("error nvmlInit 18"),
        step("driver 590.1", "driver_clock -900", "gpu * energy_joules 3", "order 1 0"),
        step("driver 590.1", "driver_clock -895", "gpu * energy_joules 4", "order 1 0"),
    )
    reasons = [sorted({reason for reason, _ in failures}) for _, failures in answers]
    assert reasons == [[], [], ["driver_not_loaded"], ["driver_not_loaded"], ["version_mismatch"], [], []]
    assert [reading["gpus"] for reading, _ in answers[3:5]] == [[], []]
    last, after = answers[-2][0], answers[-1][0]
    assert last["driver_version"] == "590.1"
    assert [(gpu["uuid"][-1], gpu["index"], gpu["energy_joules"]) for gpu in last["gpus"]] == [("1", 0, 3), ("0", 1, 3)]
    busy = [by_uuid(reading)["1"]["busy_seconds"] for reading in (answers[1][0], last, after)]
    assert busy == sorted(busy)
    assert busy[2] - busy[1] == pytest.approx(2, abs=0.2)


SHAPES = {
    "MIG": ("nvmlDeviceGetSamples", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetFieldValues"),
    "GB10": (
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetGraphicsRunningProcesses",
    ),
    "vGPU": (
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetSamples",
        "nvmlDeviceGetFieldValues",
    ),
}
SHAPED = {
    "MIG": {"utilization", "busy_seconds", "recovery_action"},
    "GB10": {"memory_total", "power_limit_watts", "recovery_action"},
    "vGPU": {
        "power_watts",
        "power_limit_watts",
        "energy_joules",
        "temperature_celsius",
        "throttle_reasons",
        "recovery_action",
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_gpus_that_lack_features(play, shape):
    """What such a GPU does not support is absent without a failure, now and later, and all else is told."""
    lacks = [f"gpu * error {call} 3" for call in SHAPES[shape]]
    whole, *answers = play(step(), step(*lacks, anew=True), step(*lacks), step(*lacks))
    for reading, failures in answers:
        assert failures == []
        for key, gpu in by_uuid(reading).items():
            assert {name for name in gpu if told(gpu, name) is None} == SHAPED[shape]
            changed = differing(gpu, by_uuid(whole[0])[key]) - SHAPED[shape]
            assert changed <= {"memory_used", "processes"}
    if shape == "GB10":
        assert {gpu["memory_used"] for gpu in answers[-1][0]["gpus"]} == {100 << 20}


LATCHED = (
    ("utilization 4294967295", {"utilization"}),
    ("utilization 101", {"utilization"}),
    ("power_watts 4294967.295", {"power_watts"}),
    ("power_watts 10001", {"power_watts"}),
    ("power_limit_watts 0", {"power_limit_watts"}),
    ("temperature 4294967295", {"temperature_celsius"}),
    ("temperature 201", {"temperature_celsius"}),
    ("sm_clock_mhz 4294967295", {"sm_clock_hertz"}),
    ("energy_joules 10000000000000000", {"energy_joules"}),
    ("throttle 4294967296", {"throttle_reasons"}),
    ("memory_mib 98305", {"memory_used", "memory_total"}),
    ("memory_mib 17592186044415", {"memory_used", "memory_total"}),
)


def test_values_that_cannot_be_true(play):
    """Out of range or latched at all ones, one by one: that value is absent, and comes back when it is true again."""
    steps = [step(anew=True)]
    for statement, _ in LATCHED:
        steps += [step(f"gpu 1 {statement}"), step(f"gpu 1 {statement}"), step()]
    whole, *answers = play(*steps)
    healthy = by_uuid(whole[0])["1"]
    for number, (statement, absent) in enumerate(LATCHED):
        *wrong, right = answers[3 * number : 3 * number + 3]
        for reading, failures in wrong:
            gpu = by_uuid(reading)["1"]
            assert failures == [], statement
            assert differing(gpu, healthy) == absent, statement
            assert {told(gpu, key) for key in absent} == {None}, statement
        # The ring still holds nonsense then, and what it tells of the time since is true.
        assert differing(by_uuid(right[0])["1"], healthy) <= {"utilization"}, statement
        assert by_uuid(right[0])["1"]["utilization"] == pytest.approx(0.4), statement
