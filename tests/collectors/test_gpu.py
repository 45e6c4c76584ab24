"""The GPUs are read through NVML, each on its own, and what goes wrong with one is said of that one."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, fields

import msgspec
import pytest

from nvml_library import environment, write_state
from procfs_tree import ProcTree
from stallwatch.collectors import gpu
from stallwatch.collectors.gpu import Gpu, GpuProcess, GpuReader, GpuReading
from stallwatch.gpus.nvml import SLOWLY, Nvml
from stallwatch.gpus.visibility import Visibility
from stallwatch.node.procfs import Procfs
from stallwatch.simulation.nvml import Driver
from stallwatch.snapshot import Moment

CHILD = """
import dataclasses, json, sys
from stallwatch.collectors import gpu
from nvml_library import write_state
from pathlib import Path
import os, time
read = gpu.reader({"nvml": "pynvml"}, lambda note: None)
answers = []
for pause, *statements in json.loads(sys.argv[1]):
    done = time.monotonic()
    time.sleep(pause)
    lines = [statement.replace("SOON", str(done + 0.05)) for statement in statements]
    write_state(Path(os.environ["STALLWATCH_FAKE_NVML"]), *lines)
    reading, failures = read([], frozenset())
    answers.append([dataclasses.asdict(reading), [[f.collector, f.reason, f.detail, f.server] for f in failures]])
print(json.dumps(answers, allow_nan=False))
"""

CALLS = (
    "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetSamples",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
)
CODES = {1: "nvml_error", 4: "no_permission", 9: "driver_not_loaded", 12: "library_not_found", 15: "gpu_lost"}
CODES |= {16: "reset_required", 17: "no_permission", 18: "version_mismatch", 27: "nvml_error", 999: "nvml_error"}
OLDER_CALLS = ("nvmlDeviceGetTemperature", "nvmlDeviceGetCurrentClocksThrottleReasons")


class Clock:
    """A clock that goes when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self):
        """Return the time."""
        return self.now


class Counted(Driver):
    """A simulated driver that lists the calls made to it."""

    def __init__(self, path, clock):
        super().__init__(str(path), clock)
        self.calls = []

    def _enter(self, call, handle=None):
        self.calls.append(call)
        super()._enter(call, handle)


class Node:
    """A node whose GPUs are played from a state file, and the reader that looks at them."""

    def __init__(self, path, *statements) -> None:
        self.path = path
        self.clock = Clock()
        self.play(*statements)
        self.driver = Counted(path, self.clock)
        self.notes = []
        self.reader = GpuReader(Nvml(self.driver, self.notes.append), self.clock)

    def play(self, *statements) -> None:
        """Change what the GPUs do."""
        write_state(self.path, *statements)

    def read(self, after=5.0, skip=frozenset()):
        """Read once more, so many seconds later."""
        self.clock.now += after
        return self.reader.read([], skip)

    def restarts(self) -> int:
        """Return how often the library was started so far."""
        return self.driver.calls.count("nvmlInit")


@pytest.fixture
def node(tmp_path):
    """Return a function that makes a node."""
    return lambda *statements: Node(tmp_path / "state", *statements)


def through_pynvml(library, state, *steps):
    """Read through the real pynvml in a process of its own, once for each step: a pause, then what the GPUs do."""
    command = [sys.executable, "-c", CHILD, json.dumps(steps)]
    environ = {**environment(library, state), "PYTHONPATH": os.pathsep.join(sys.path)}
    return json.loads(subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout)


def reasons(failures):
    """Return the reasons, once each."""
    return sorted({failure.reason for failure in failures})


def uuid(number):
    """Return the UUID of the simulated GPU of this number."""
    return f"GPU-00000000-0000-0000-0000-{number:012x}"


def values(found):
    """Return the names of what a GPU tells beyond who it is."""
    identity = {"index", "uuid", "name", "pci_bus_id", "lost"}
    return {
        field.name
        for field in fields(found)
        if field.name not in identity and getattr(found, field.name) not in (None, ())
    }


def test_eight_loaded_idle_gpus_through_pynvml(library, tmp_path):
    """The node of the incident: eight GPUs of 96 GiB hold 76 GiB each and are at 2 to 3 %."""
    loaded = ["gpus 8", "gpu * memory_mib 77824", "gpu * utilization 2", "gpu 5 utilization 3", "gpu * power_watts 90"]
    steps = [0, *loaded, "gpu 0 process 4242 77000"]
    ((reading, failures),) = through_pynvml(library, tmp_path / "state", steps)
    assert failures == []
    assert reading["driver_version"] == "580.95.05"
    assert [found["index"] for found in reading["gpus"]] == list(range(8))
    assert [found["utilization"] for found in reading["gpus"]] == [0.02] * 5 + [0.03] + [0.02] * 2
    assert {(found["memory_used"], found["memory_total"]) for found in reading["gpus"]} == {(76 << 30, 96 << 30)}
    assert {(found["power_watts"], found["power_limit_watts"]) for found in reading["gpus"]} == {(90, 600)}
    assert reading["gpus"][0]["processes"] == [{"pid": 4242, "memory_bytes": 77000 << 20, "hidden": False}]


def test_burst_between_two_readings_counts_through_pynvml(library, tmp_path):
    """A burst of 200 ms that was over before the second reading is in the busy seconds, from the real structures."""
    steps = [(0, "gpus 1"), (0.6, "gpus 1", "gpu 0 burst SOON 0.2 100")]
    (first, _), (second, failures) = through_pynvml(library, tmp_path / "state", *steps)
    assert failures == []
    assert first["gpus"][0]["busy_seconds"] == 0
    assert second["gpus"][0]["busy_seconds"] == pytest.approx(0.2, abs=0.003)


def test_processes_that_are_kept_from_us_are_told_and_marked(tmp_path):
    """Nothing is broken: the GPUs are read, and the flags of a server tell which are its own."""
    tree = ProcTree(tmp_path)
    tree.add(1, "pause", ppid=0)
    tree.add(7, "x")
    tree._link("self/ns/pid", tree.folder)
    node = Node(tmp_path / "state", "gpus 1", "gpu 0 process 7 5", "gpu 0 process 4711 6")
    node.reader = GpuReader(Nvml(node.driver, node.notes.append), node.clock, Visibility(Procfs(str(tree.root))))
    assert node.read()[1] == ()
    reading, (failure,) = node.read()
    assert (failure.reason, failure.harmless, "hostPID" in failure.detail) == ("processes_not_visible", True, True)
    assert [(process.pid, process.hidden) for process in reading.gpus[0].processes] == [(7, False), (4711, True)]


def test_all_fields_are_plain_values(node):
    """A healthy GPU tells everything, in values that cross to another process as JSON."""
    reading, failures = node("gpus 1", "gpu 0 throttle 1", "gpu 0 process 1 5", "gpu 0 graphics 2 unknown").read()
    assert failures == ()
    (found,) = reading.gpus
    assert values(found) == {field.name for field in fields(Gpu)} - {"index", "uuid", "name", "pci_bus_id", "lost"}
    assert found.throttle_reasons == ("idle",)
    assert found.recovery_action == "none"
    assert found.processes == (GpuProcess(1, 5 << 20), GpuProcess(2, None))
    assert msgspec.json.decode(json.dumps(asdict(reading), allow_nan=False), type=GpuReading) == reading


def test_burst_between_two_readings_counts(node):
    """A burst of 200 ms that no plain rate ever showed is in the busy seconds, of the GPU that had it."""
    box = node("gpus 2")
    box.read()
    box.play("gpus 2", f"gpu 1 burst {box.clock.now + 2} 0.2 100")
    reading, _ = box.read()
    assert [found.busy_seconds for found in reading.gpus] == [0, pytest.approx(0.2, abs=0.003)]
    assert reading.gpus[1].utilization == pytest.approx(0.04, abs=0.002)
    reading, _ = box.read()
    assert [found.busy_seconds for found in reading.gpus] == [0, pytest.approx(0.2, abs=0.003)]
    assert [found.utilization for found in reading.gpus] == [0, 0]


def test_steady_load_is_as_many_busy_seconds(node):
    """A GPU that is half busy gathers half a second per second."""
    box = node("gpus 1", "gpu 0 utilization 50")
    box.read()
    for _ in range(12):
        reading, _ = box.read()
    assert reading.gpus[0].busy_seconds == pytest.approx(30, abs=0.1)


@pytest.mark.parametrize("code", CODES)
def test_refused_start_is_one_named_failure_and_is_recovered_from(node, code):
    """While the library refuses to start there is a reason and no GPU; as soon as it starts there is no failure."""
    box = node("gpus 2", f"error nvmlInit {code}")
    for _ in range(3):
        reading, failures = box.read()
        assert reading.gpus == ()
        assert [(failure.collector, failure.reason, failure.server) for failure in failures] == [
            ("gpu", CODES[code], "")
        ]
    box.play("gpus 2")
    reading, failures = box.read()
    assert (len(reading.gpus), failures) == (2, ())


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("code", CODES)
def test_refused_call_is_a_named_failure_of_that_gpu(node, call, code):
    """Each number that NVML can give to each call names the GPU and the call, and the other GPU is read in full."""
    box = node("gpus 2", f"gpu 1 error {call} {code}")
    if call == "nvmlDeviceGetUtilizationRates":
        box.play("gpus 2", f"gpu 1 error {call} {code}", "gpu 1 error nvmlDeviceGetSamples 6")
    reading, failures = box.read()
    assert [failure.reason for failure in failures] == [CODES[code]]
    assert f"gpu 1 {call}" in failures[0].detail
    assert uuid(1) in failures[0].detail
    assert [found.lost for found in reading.gpus] == [False, code in {15, 16}]
    assert {"utilization", "power_watts", "memory_used", "recovery_action"} <= values(reading.gpus[0])
    box.play("gpus 2")
    reading, failures = box.read(after=60)
    assert failures == ()
    assert [found.lost for found in reading.gpus] == [False, False]
    assert reading.gpus[1].name


def test_every_error_at_every_call_through_pynvml(library, tmp_path):
    """The real pynvml turns each number into an exception that the reader names, call by call, in one process."""
    faults = [(code, call) for code in (3, 13, *CODES) for call in CALLS]
    steps = [[0, "gpus 2", f"gpu 1 error {call} {code}"] for code, call in faults]
    answers = through_pynvml(library, tmp_path / "state", *steps)
    known = {*CODES.values()}
    for (code, _), (reading, failures) in zip(faults, answers, strict=True):
        assert {reason for _, reason, _, _ in failures} <= known
        assert [found["index"] for found in reading["gpus"]] == [0, 1]
        assert reading["gpus"][0]["power_watts"] == 70
        assert code not in {3, 13} or failures == []


def test_unsupported_calls_are_made_once(node):
    """What all GPUs answer with "not supported" is asked once per GPU, and is absent without a failure."""
    calls = (*CALLS, *OLDER_CALLS)
    box = node("gpus 2", *(f"gpu * error {call} 3" for call in calls))
    for _ in range(5):
        reading, failures = box.read()
        assert failures == ()
        assert [values(found) for found in reading.gpus] == [set(), set()]
    assert {call: box.driver.calls.count(call) for call in calls} == dict.fromkeys(calls, 2)


def test_gpu_that_shares_the_memory_of_the_host(node):
    """Where the GPU has no memory of its own, as GB10, what its processes hold is the use, and there is no total."""
    unsupported = "gpu * error nvmlDeviceGetMemoryInfo 3"
    box = node("gpus 1", unsupported, "gpu 0 process 1 100", "gpu 0 process 2 50", "gpu 0 graphics 2 50")
    (found,) = box.read()[0].gpus
    assert (found.memory_used, found.memory_total) == (150 << 20, None)
    box.play("gpus 1", unsupported, "gpu 0 process 1 unknown", "gpu 0 process 2 50")
    assert box.read()[0].gpus[0].memory_used is None
    box.play("gpus 1", unsupported, "gpu * error nvmlDeviceGetComputeRunningProcesses 4", "gpu 0 graphics 2 50")
    reading, failures = box.read()
    assert reading.gpus[0].memory_used is None
    assert reasons(failures) == ["no_permission"]


def test_memory_that_cannot_be_true_is_not_replaced_by_that_of_the_processes(node):
    """A GPU that has memory of its own and tells nonsense about it has no value."""
    (found,) = node("gpus 1", "gpu 0 memory_mib 99999999", "gpu 0 process 1 100").read()[0].gpus
    assert (found.memory_used, found.memory_total) == (None, None)


def test_gpu_in_mig_mode(node):
    """Under MIG there is neither a ring nor a rate: no utilization, no busy seconds, and the rest."""
    box = node("gpus 1", "gpu * error nvmlDeviceGetSamples 3", "gpu * error nvmlDeviceGetUtilizationRates 3")
    for _ in range(2):
        reading, failures = box.read()
        assert failures == ()
        assert (reading.gpus[0].utilization, reading.gpus[0].busy_seconds) == (None, None)
        assert reading.gpus[0].memory_total == 96 << 30


def test_values_that_cannot_be_true_are_absent(node):
    """A utilization latched out of range, in ring and rate, is absent, and the rest of the GPU is there."""
    box = node("gpus 1", "gpu 0 utilization 4294967295", "gpu 0 temperature 4294967295")
    for _ in range(2):
        found = box.read()[0].gpus[0]
        assert (found.utilization, found.temperature_celsius, found.power_watts) == (None, None, 70)


def test_lost_gpu_stays_in_the_reading_and_comes_back_elsewhere(node):
    """A lost GPU keeps its name and has no values; when it is back at another index it goes on where it was."""
    box = node("gpus 3", "gpu * utilization 100", "gpu 1 name NVIDIA H20")
    box.read()
    before = box.read()[0].gpus[1].busy_seconds
    box.play("gpus 3", "gpu * utilization 100", "gpu 1 lost")
    for _ in range(8):
        reading, failures = box.read()
        assert [(found.uuid, found.lost) for found in reading.gpus] == [(uuid(0), 0), (uuid(1), 1), (uuid(2), 0)]
        assert (reading.gpus[1].name, values(reading.gpus[1])) == ("NVIDIA H20", set())
        assert [failure.reason for failure in failures] == ["gpu_lost"]
        assert uuid(1) in failures[0].detail
        assert {"busy_seconds", "power_watts"} <= values(reading.gpus[0])
    assert 2 <= box.restarts() <= 3
    box.play("order 2 0 1", "gpu * utilization 100")
    reading, failures = box.read(after=30)
    assert failures == ()
    assert [(found.index, found.uuid, found.lost) for found in reading.gpus] == [
        (0, uuid(2), False),
        (1, uuid(0), False),
        (2, uuid(1), False),
    ]
    assert before < reading.gpus[2].busy_seconds < before + 10.4
    assert reading.gpus[0].busy_seconds == pytest.approx(5 * 9 + 10, abs=0.5)


@pytest.mark.parametrize(("code", "reason"), [(15, "gpu_lost"), (16, "reset_required"), (999, "gpu_lost")])
def test_gpu_that_refuses_everything_is_lost(node, code, reason):
    """A GPU whose every call, and then its handle, answers lost, reset or unknown is lost."""
    box = node("gpus 2")
    box.read()
    box.play("gpus 2", f"gpu 1 error * {code}")
    for _ in range(8):
        reading, failures = box.read()
        assert [found.lost for found in reading.gpus] == [False, True]
        assert [failure.reason for failure in failures] == [reason]
    assert box.restarts() > 1


def test_gpu_lost_before_the_exporter_came_is_reported_by_its_index(node):
    """A GPU that was never seen alive has an index and no UUID."""
    reading, failures = node("gpus 2", "gpu 0 lost").read()
    assert [(found.index, found.uuid, found.lost) for found in reading.gpus] == [(0, "", True), (1, uuid(1), False)]
    assert [(failure.reason, failure.detail[:5]) for failure in failures] == [("gpu_lost", "gpu 0")]


def test_gpu_that_is_listed_no_longer_is_lost(node):
    """A GPU that the library stops to list is lost under the name that it had."""
    box = node("gpus 2")
    box.read()
    box.play("order 1")
    for _ in range(8):
        reading, failures = box.read()
    assert [(found.index, found.uuid, found.lost) for found in reading.gpus] == [
        (0, uuid(0), True),
        (0, uuid(1), False),
    ]
    assert reasons(failures) == ["gpu_lost"]


def test_process_that_may_not_open_any_gpu_does_not_call_them_lost(node):
    """When all GPUs answer "unknown" at once it is this process that lost its access, as in a container."""
    box = node("gpus 4")
    box.read()
    box.play("gpus 4", "gpu * error * 999")
    for _ in range(3):
        reading, failures = box.read()
        assert [found.lost for found in reading.gpus] == [False] * 4
        assert reasons(failures) == ["nvml_error"]


def test_handle_without_permission_is_not_lost(node):
    """A GPU that this process may not open is a failure and nothing more."""
    reading, failures = node("gpus 2", "gpu 1 error nvmlDeviceGetHandleByIndex 4").read()
    assert [found.uuid for found in reading.gpus] == [uuid(0)]
    assert reasons(failures) == ["no_permission"]


def test_driver_that_is_loaded_anew_leaves_the_count_whole(node):
    """While the driver is away there is one reason; with it back, and its clock begun anew, busy seconds go on."""
    box = node("gpus 2", "gpu * utilization 100")
    box.read()
    before = box.read()[0].gpus[0].busy_seconds
    box.path.unlink()
    assert reasons(box.read()[1]) == ["driver_not_loaded"]
    for _ in range(3):
        reading, failures = box.read()
        assert (reading.gpus, [failure.reason for failure in failures]) == ((), ["driver_not_loaded"])
    box.play("order 1 0", "gpu * utilization 100", "driver 590.1", "driver_clock -900")
    reading, failures = box.read()
    assert (failures, reading.driver_version) == ((), "590.1")
    after = reading.gpus[0].busy_seconds
    assert before < after < before + 25.5
    assert box.read()[0].gpus[0].busy_seconds == pytest.approx(after + 5, abs=0.3)


def test_library_that_forgot_its_start_is_started_again(node):
    """A library that says "uninitialized" is started anew on the next reading."""
    box = node("gpus 2", "gpu * error nvmlDeviceGetName 1")
    assert reasons(box.read()[1]) == ["nvml_error"]
    box.play("gpus 2")
    reading, failures = box.read()
    assert failures == ()
    assert [found.power_watts for found in reading.gpus] == [70, 70]
    assert box.restarts() == 2


def test_node_without_gpus_says_so_and_notices_when_they_come(node):
    """A driver without GPUs is a failure of the collector until there is one."""
    box = node("gpus 0")
    reading, failures = box.read()
    assert (reading.gpus, [failure.reason for failure in failures]) == ((), ["no_gpu"])
    box.play("gpus 1")
    assert len(box.read()[0].gpus) == 1


def test_healthy_gpus_are_left_alone(node):
    """The library is started once, and who a GPU is asked once."""
    box = node("gpus 8")
    for _ in range(20):
        assert box.read()[1] == ()
    assert box.restarts() == 1
    assert box.driver.calls.count("nvmlDeviceGetUUID") == 8
    assert box.driver.calls.count("nvmlDeviceGetName") == 8


def test_quarantined_gpu_is_named_with_its_call(node):
    """What is told of a GPU that is left alone is the call that did not return; the other GPUs are read."""
    box = node("gpus 2")
    reading, failures = box.read(skip=frozenset({"gpu 1 nvmlDeviceGetPowerUsage"}))
    assert [failure.reason for failure in failures] == ["quarantined"]
    assert "gpu 1 nvmlDeviceGetPowerUsage" in failures[0].detail
    assert [found.power_watts for found in reading.gpus] == [70]
    assert box.driver.calls.count("nvmlDeviceGetPowerUsage") == 1


def test_gpu_that_hung_is_left_alone_and_not_lost(node):
    """A GPU with a call in quarantine is not touched: one failure, no values, and no restart for its sake."""
    box = node("gpus 2")
    box.read()
    box.driver.calls.clear()
    skip = frozenset({"gpu 1 nvmlDeviceGetPowerUsage"})
    for _ in range(10):
        reading, failures = box.read(skip=skip)
        assert [failure.reason for failure in failures] == ["quarantined"]
        assert [(found.lost, bool(values(found))) for found in reading.gpus] == [(False, True), (False, False)]
    assert box.restarts() == 0
    assert box.driver.calls.count("nvmlDeviceGetMemoryInfo") == 10


def test_gpu_that_was_left_alone_when_the_library_started_comes_back(node):
    """A worker that begins while a GPU is in quarantine reads it as soon as that ends, without a start anew."""
    box = node("gpus 3")
    skip = frozenset({"gpu 1 nvmlDeviceGetPowerUsage"})
    for _ in range(3):
        reading, failures = box.read(skip=skip)
        assert [failure.reason for failure in failures] == ["quarantined"]
        assert [found.index for found in reading.gpus] == [0, 2]
    reading, failures = box.read()
    assert failures == ()
    assert [(found.index, found.power_watts) for found in reading.gpus] == [(0, 70), (1, 70), (2, 70)]
    assert box.restarts() == 1


def test_only_a_driver_that_wakes_up_may_take_long(node):
    """A library that starts with nothing else to read says so in its notes, one started for a lost GPU does not."""
    box = node("gpus 2")
    box.read()
    box.play("gpus 2", "gpu 1 lost")
    for _ in range(20):
        box.read()
    assert box.restarts() > 2
    assert not [note for note in box.notes if note.endswith(SLOWLY)]
    box.path.unlink()
    for _ in range(3):
        box.read()
    box.play("gpus 2")
    box.notes.clear()
    box.read()
    assert box.notes[0] == f"nvmlInit{SLOWLY}"
    assert f"gpu 1 nvmlDeviceGetHandleByIndex{SLOWLY}" in box.notes
    assert not box.notes[-1].endswith(SLOWLY)


def test_reader_takes_the_module_from_the_options(tmp_path, monkeypatch):
    """The worker names the module that plays pynvml, and every call is noted before it is made."""
    monkeypatch.setenv("STALLWATCH_FAKE_NVML", str(write_state(tmp_path / "state", "gpus 1")))
    notes = []
    read = gpu.reader({"procfs": "/proc", "nvml": "stallwatch.simulation.nvml"}, notes.append)
    reading, failures = read([{"anything": 1}], frozenset())
    assert (len(reading.gpus), failures) == (1, ())
    assert notes[0] == "nvmlInit"
    assert "gpu 0 nvmlDeviceGetPowerUsage" in notes


MOMENT = Moment(unix=1e9, monotonic=10, boottime=20)


def samples(reading):
    """Return the samples of all families by name."""
    return {family.name: dict(family.samples) for family in gpu.families([reading], MOMENT)}


def test_families_state_every_value(node):
    """Each value becomes a sample of its GPU, in base units."""
    box = node("gpus 1", "gpu 0 name NVIDIA H20", "gpu 0 memory_mib 1", "gpu 0 utilization 50", "gpu 0 throttle 5")
    box.read()
    found = samples(box.read()[0])
    labels = ("0", uuid(0))
    assert found["stallwatch_gpu_info"] == {("0", uuid(0), "NVIDIA H20", "00000000:10:00.0", "580.95.05"): 1}
    assert found["stallwatch_gpu_utilization_ratio"] == {labels: pytest.approx(0.5)}
    assert found["stallwatch_gpu_busy_seconds_total"] == {labels: pytest.approx(2.5, abs=0.1)}
    assert found["stallwatch_gpu_memory_used_bytes"] == {labels: 1 << 20}
    assert found["stallwatch_gpu_memory_total_bytes"] == {labels: 96 << 30}
    assert found["stallwatch_gpu_power_watts"] == {labels: 70}
    assert found["stallwatch_gpu_power_limit_watts"] == {labels: 600}
    assert found["stallwatch_gpu_energy_joules_total"] == {labels: 350}
    assert found["stallwatch_gpu_sm_clock_hertz"] == {labels: 1.98e9}
    assert found["stallwatch_gpu_temperature_celsius"] == {labels: 40}
    assert found["stallwatch_gpu_recovery_action"] == {(*labels, "none"): 1}
    assert found["stallwatch_gpu_lost"] == {labels: 0}
    throttled = {reason for (_, _, reason), value in found["stallwatch_gpu_throttled"].items() if value}
    assert throttled == {"idle", "sw_power_cap"}
    assert len(found["stallwatch_gpu_throttled"]) == 9


def test_families_of_a_lost_gpu_say_only_that():
    """What cannot be read has no sample; who the GPU is stays joined to its server."""
    found = samples(GpuReading(5.0, "580.1", (Gpu(3, "GPU-3", "NVIDIA H20", "00000000:10:00.0", lost=True),)))
    assert {name for name, values in found.items() if values} == {"stallwatch_gpu_info", "stallwatch_gpu_lost"}
    assert found["stallwatch_gpu_lost"] == {("3", "GPU-3"): 1}


def test_families_fit_their_names_and_labels():
    """Counters end in _total, and each sample has a value for each label."""
    full = Gpu(0, "GPU-0", "n", "p", 0.5, 1.0, 1, 2, 3.0, 4.0, 5.0, 6.0, 7.0, ("idle",), "none")
    families = list(gpu.families([GpuReading(5.0, "580.1", (full,))], MOMENT))
    assert len({family.name for family in families}) == len(families) == 13
    for family in families:
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert family.samples
        assert all(len(labels) == len(family.labels) for labels, _ in family.samples)
