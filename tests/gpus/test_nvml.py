"""NVML is asked for what a GPU can tell, and what it answers is believed only where it can be true."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from nvml_library import environment, write_state
from stallwatch.gpus.nvml import CallError, Nvml
from stallwatch.simulation.nvml import Driver

READ_ALL = """
import json, sys
from stallwatch.gpus.nvml import CallError, Nvml
import pynvml
notes = []
nvml = Nvml(pynvml, notes.append)
answers = {"gpus": []}
try:
    nvml.start()
except CallError as error:
    answers["error"] = [error.reason, error.detail, error.code]
answers["driver"] = nvml.driver_version
answers["errors"] = {index: [error.reason, error.code] for index, error in nvml.errors.items()}
for device in nvml.devices:
    answer = {"index": device.index, "uuid": device.uuid}
    for question in sys.argv[1:]:
        try:
            answer[question] = getattr(device, question)()
        except CallError as error:
            answer[question] = [error.reason, error.detail, error.code]
    answers["gpus"].append(answer)
nvml.stop()
answers["started"] = nvml.started
print(json.dumps(answers))
"""

QUESTIONS = (
    "name",
    "pci_bus_id",
    "utilization",
    "memory",
    "power_watts",
    "power_limit_watts",
    "energy_joules",
    "sm_clock_hertz",
    "temperature_celsius",
    "throttle_reasons",
    "recovery_action",
    "processes",
)


@pytest.fixture
def state(tmp_path):
    """Return the path of a state file for one GPU."""
    return write_state(tmp_path / "state", "gpus 1")


def through_pynvml(library, state, *questions):
    """Ask the real pynvml in a process of its own."""
    command = [sys.executable, "-c", READ_ALL, *questions]
    environ = {**environment(library, state), "PYTHONPATH": os.pathsep.join(sys.path)}
    return json.loads(subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout)


def answered(device, question):
    """Return the answer, or what stands for a refusal where answers are compared."""
    try:
        return getattr(device, question)()
    except CallError as error:
        return [error.reason, error.detail, error.code]


class Counted(Driver):
    """A simulated driver that lists the calls made to it."""

    def __init__(self, path):
        super().__init__(str(path))
        self.calls = []

    def _enter(self, call, handle=None):
        self.calls.append(call)
        super()._enter(call, handle)


def started(state, module=None):
    """Return a started library over the state file, and its notes."""
    notes = []
    nvml = Nvml(module or Driver(str(state)), notes.append)
    nvml.start()
    return nvml, notes


def test_pynvml_and_a_real_library_answer_every_question(library, state):
    """Through pynvml and a C library all that a GPU tells arrives in base units."""
    lines = ("gpus 1", "driver 580.1", "gpu 0 name NVIDIA H20", "gpu 0 memory_mib 77824", "gpu 0 utilization 3")
    more = (
        "gpu 0 throttle 5",
        "gpu 0 recovery_action 1",
        "gpu 0 process 7 100",
        "gpu 0 graphics 7 100",
        "gpu 0 energy_joules 9",
    )
    answers = through_pynvml(library, write_state(state, *lines, *more), *QUESTIONS)
    assert answers == {
        "driver": "580.1",
        "errors": {},
        "started": False,
        "gpus": [
            {
                "index": 0,
                "uuid": "GPU-00000000-0000-0000-0000-000000000000",
                "name": "NVIDIA H20",
                "pci_bus_id": "00000000:10:00.0",
                "utilization": 0.03,
                "memory": [76 << 30, 96 << 30],
                "power_watts": 70,
                "power_limit_watts": 600,
                "energy_joules": 9,
                "sm_clock_hertz": 1.98e9,
                "temperature_celsius": 40,
                "throttle_reasons": ["idle", "sw_power_cap"],
                "recovery_action": "gpu_reset",
                "processes": {"7": 100 << 20},
            }
        ],
    }


def test_both_stand_ins_play_the_same(library, state):
    """The C library under pynvml and the pure Python module answer alike to one state file."""
    general = (
        "gpus 4",
        "order 3 0 2",
        "driver 1.2",
        "gpu * name NVIDIA H20",
        "gpu 2 name L4  # a comment",
        "gpu * energy_joules 7",
    )
    numbers = (
        "gpu * utilization 40",
        "gpu 0 utilization 7",
        "gpu * memory_mib 100",
        "gpu 3 memory_total_mib 200",
        "gpu 3 throttle 511",
    )
    faults = (
        "error nvmlDeviceGetClockInfo 3",
        "gpu 0 error nvmlDeviceGetClockInfo 27",
        "gpu 2 error * 4",
        "gpu 2 lost 0",
    )
    rest = (
        "gpu 0 process 5 9",
        "gpu * process 6 unknown",
        "gpu 3 recovery_action 4",
        "gpu 3 power_watts 0.5",
        "gpu 1 lost",
    )
    answers = through_pynvml(library, write_state(state, *general, *numbers, *faults, *rest), *QUESTIONS)
    nvml, _ = started(state)
    told = [{"index": device.index, "uuid": device.uuid} for device in nvml.devices]
    for answer, device in zip(told, nvml.devices, strict=True):
        answer.update({question: answered(device, question) for question in QUESTIONS})
    assert answers["gpus"] == json.loads(json.dumps(told))
    assert len(told) == 2
    assert answers["errors"] == {str(index): [error.reason, error.code] for index, error in nvml.errors.items()}
    assert answers["driver"] == nvml.driver_version


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (1, "nvml_error"),
        (4, "no_permission"),
        (9, "driver_not_loaded"),
        (12, "library_not_found"),
        (15, "gpu_lost"),
        (17, "no_permission"),
        (18, "version_mismatch"),
        (27, "nvml_error"),
        (999, "nvml_error"),
        (12345, "nvml_error"),
    ],
)
def test_refused_start_has_a_name(library, state, code, reason):
    """Whatever number the library refuses its start with, it becomes a reason and the number stays."""
    answers = through_pynvml(library, write_state(state, "gpus 1", f"error nvmlInit {code}"))
    assert (answers["error"][0], answers["error"][2]) == (reason, code)
    assert "nvmlInit" in answers["error"][1]


def test_missing_library_has_a_name(tmp_path, state):
    """Without a library on this machine pynvml's own error is named."""
    answers = through_pynvml(tmp_path, state)
    assert answers["error"][0] == "library_not_found"


def test_missing_driver_has_a_name(library, tmp_path):
    """A library without its driver is named."""
    assert through_pynvml(library, tmp_path / "none")["error"][0] == "driver_not_loaded"


def test_values_that_cannot_be_true_are_dropped_through_pynvml(library, state):
    """What lies outside its range, or is all ones, is no value, as it comes from C."""
    lines = ("gpu 0 utilization 4294967295", "gpu 0 power_watts 4294967.295", "gpu 0 temperature 4294967295")
    more = (
        "gpu 0 sm_clock_mhz 4294967295",
        "gpu 0 throttle 4294967295",
        "gpu 0 memory_mib 98305",
        "gpu 0 recovery_action 99",
    )
    last = ("gpu 0 power_limit_watts 0", "gpu 0 process 7 unknown")
    (gpu,) = through_pynvml(library, write_state(state, *lines, *more, *last), *QUESTIONS)["gpus"]
    absent = ("utilization", "power_watts", "temperature_celsius", "sm_clock_hertz", "throttle_reasons", "memory")
    assert [gpu[question] for question in absent] == [None] * 6
    assert (gpu["power_limit_watts"], gpu["recovery_action"], gpu["processes"]) == (None, "other", {"7": None})


@pytest.mark.parametrize(
    ("line", "question"),
    [
        ("utilization 101", "utilization"),
        ("utilization -2", "utilization"),
        ("power_watts -5", "power_watts"),
        ("power_watts 10001", "power_watts"),
        ("temperature -3", "temperature_celsius"),
        ("temperature 201", "temperature_celsius"),
        ("sm_clock_mhz 10001", "sm_clock_hertz"),
        ("energy_joules -1", "energy_joules"),
        ("memory_mib -1", "memory"),
        ("memory_total_mib 1073741824", "memory"),
        ("memory_total_mib 0", "memory"),
        ("throttle 18446744073709551615", "throttle_reasons"),
    ],
)
def test_values_out_of_range_are_dropped(state, line, question):
    """One step outside its range a value is dropped, without an error."""
    nvml, _ = started(write_state(state, "gpus 1", f"gpu 0 {line}"))
    assert getattr(nvml.devices[0], question)() is None


@pytest.mark.parametrize("code", [3, 13])
def test_what_is_not_supported_is_asked_once(state, code):
    """A feature that a GPU or driver lacks is not asked for again until the library has been started anew."""
    driver = Counted(write_state(state, "gpus 2", f"gpu 1 error nvmlDeviceGetPowerUsage {code}"))
    nvml, _ = started(state, driver)
    for _ in range(3):
        assert [device.power_watts() for device in nvml.devices] == [70, None]
    assert driver.calls.count("nvmlDeviceGetPowerUsage") == 4
    write_state(state, "gpus 2")
    assert nvml.devices[1].power_watts() is None
    nvml.stop()
    nvml.start()
    assert nvml.devices[1].power_watts() == 70


def test_function_that_pynvml_lacks_is_not_supported(state):
    """A pynvml older than a function is a GPU without the feature."""
    old = Driver(str(state))
    old.nvmlDeviceGetComputeRunningProcesses_v3 = None
    old.nvmlDeviceGetGraphicsRunningProcesses_v3 = None
    nvml, _ = started(state, old)
    assert nvml.devices[0].processes() is None


def test_older_drivers_are_asked_in_their_way(state):
    """Without the newer calls temperature and throttle reasons come from the older ones."""
    newer = ("gpu 0 error nvmlDeviceGetTemperatureV 13", "gpu 0 error nvmlDeviceGetCurrentClocksEventReasons 13")
    nvml, _ = started(write_state(state, *newer, "gpu 0 throttle 64"))
    assert nvml.devices[0].temperature_celsius() == 40
    assert nvml.devices[0].throttle_reasons() == ("hw_thermal_slowdown",)


def test_unknown_field_is_not_asked_for_again(state):
    """A driver that does not know the recovery action says so in the field, and is then left alone."""
    asked = []
    driver = Driver(str(state))
    driver.nvmlDeviceGetFieldValues = lambda _, ids: asked.append(ids) or [SimpleNamespace(nvmlReturn=2)]
    nvml, _ = started(state, driver)
    assert [nvml.devices[0].recovery_action() for _ in range(3)] == [None] * 3
    assert asked == [[230]]


def test_field_that_says_the_gpu_is_lost_is_an_error(state):
    """A lost GPU can say so in the field instead of by the call."""
    driver = Driver(str(state))
    driver.nvmlDeviceGetFieldValues = lambda *_: [SimpleNamespace(nvmlReturn=15)]
    nvml, _ = started(state, driver)
    with pytest.raises(CallError) as caught:
        nvml.devices[0].recovery_action()
    assert (caught.value.reason, caught.value.final) == ("gpu_lost", True)


def test_ring_is_empty_or_absent_but_not_both(state):
    """A ring without samples is an empty list, one that is not supported is None."""
    nvml, _ = started(write_state(state, "gpus 1", "gpu 0 utilization 5"))
    (device,) = nvml.devices
    samples = device.samples(0)
    assert len(samples) == 72
    assert {share for _, share in samples} == {0.05}
    assert device.samples(2**62) == []
    for code in (0, 6, 7, 21):
        write_state(state, f"gpu 0 error nvmlDeviceGetSamples {code}" if code else "gpu 0 utilization 5")
        assert device.samples(2**62) == []
    write_state(state, "gpu 0 error nvmlDeviceGetSamples 3")
    assert device.samples(0) is None


def test_samples_come_through_pynvml(library, state):
    """The structures of the ring are read as the driver writes them."""
    script = READ_ALL.replace("getattr(device, question)()", "getattr(device, question)(0)")
    environ = {
        **environment(library, write_state(state, "gpu 0 utilization 7")),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", script, "samples"]
    answers = json.loads(subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout)
    samples = answers["gpus"][0]["samples"]
    assert len(samples) == 72
    assert {share for _, share in samples} == {0.07}
    assert samples == sorted(samples)


def test_every_call_is_announced_and_skipped_where_told(state):
    """A call is noted before it is made, and is not made where that note is in the skips."""
    driver = Counted(write_state(state, "gpus 2"))
    nvml, notes = started(state, driver)
    nvml.devices[1].power_watts()
    assert notes[:3] == ["nvmlInit", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount"]
    assert notes[-1] == "gpu 1 nvmlDeviceGetPowerUsage"
    driver.calls.clear()
    nvml.skip = frozenset({notes[-1]})
    with pytest.raises(CallError) as caught:
        nvml.devices[1].power_watts()
    assert (caught.value.reason, caught.value.final) == ("quarantined", True)
    assert nvml.devices[0].power_watts() == 70
    assert driver.calls == ["nvmlDeviceGetPowerUsage"]


def test_gpu_of_which_a_call_hung_is_left_alone(state):
    """After one call of a GPU that did not return, the others of it are not tried either."""
    driver = Counted(write_state(state, "gpus 2"))
    nvml, _ = started(state, driver)
    driver.calls.clear()
    nvml.skip = frozenset({"gpu 1 nvmlDeviceGetPowerUsage"})
    with pytest.raises(CallError) as caught:
        nvml.devices[1].energy_joules()
    assert (caught.value.reason, caught.value.final) == ("quarantined", True)
    assert nvml.devices[0].energy_joules() == 0
    assert driver.calls == ["nvmlDeviceGetTotalEnergyConsumption"]


def test_one_bad_gpu_does_not_hide_the_others(library, state):
    """A GPU without a handle is an error at its index, and the rest are there."""
    answers = through_pynvml(library, write_state(state, "gpus 3", "gpu 1 lost"), "power_watts")
    assert [gpu["index"] for gpu in answers["gpus"]] == [0, 2]
    assert answers["errors"] == {"1": ["gpu_lost", 15]}


def test_stop_gives_everything_up_whatever_the_library_says(state):
    """A library that refuses to end is given up all the same, and can be started again."""
    nvml, _ = started(write_state(state, "gpus 1", "error nvmlShutdown 999"))
    nvml.stop()
    assert (nvml.started, nvml.devices, nvml.errors) == (False, [], {})
    nvml.start()
    assert nvml.devices[0].power_watts() == 70


def test_library_that_cannot_count_is_not_left_started(state):
    """A start that fails half way raises and leaves nothing behind."""
    driver = Counted(write_state(state, "error nvmlDeviceGetCount 4"))
    nvml = Nvml(driver, lambda _: None)
    with pytest.raises(CallError) as caught:
        nvml.start()
    assert caught.value.reason == "no_permission"
    assert not nvml.started
    assert driver.calls[-1] == "nvmlShutdown"
