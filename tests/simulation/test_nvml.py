"""The simulated NVML plays what its state file says, under the names of pynvml."""

import importlib

import pytest

from nvml_library import write_state
from stallwatch.simulation.nvml import PERIOD_US, RING, Driver, NVMLError


@pytest.fixture
def state(tmp_path):
    """Return the path of a state file for one GPU."""
    return write_state(tmp_path / "state", "gpus 1")


class Clock:
    """A clock that goes when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def started(state, clock=None):
    """Return a started library."""
    driver = Driver(str(state), clock or Clock())
    driver.nvmlInit()
    return driver


def refusal(function, *arguments):
    """Return the number of the error that the call raises."""
    with pytest.raises(NVMLError) as caught:
        function(*arguments)
    return caught.value.value


def test_module_is_called_as_pynvml_is(state, monkeypatch):
    """The module itself has pynvml's functions and reads the file that the environment names."""
    monkeypatch.setenv("STALLWATCH_FAKE_NVML", str(write_state(state, "gpus 3", "driver 570.1")))
    module = importlib.import_module("stallwatch.simulation.nvml")
    module.nvmlInit()
    assert (module.nvmlDeviceGetCount(), module.nvmlSystemGetDriverVersion()) == (3, "570.1")
    assert module.nvmlDeviceGetPowerUsage(module.nvmlDeviceGetHandleByIndex(2)) == 70_000
    module.nvmlShutdown()
    with pytest.raises(AttributeError):
        _ = module.nvmlDeviceGetNothing


def test_missing_file_is_a_driver_that_is_not_loaded(tmp_path):
    """Without a state file no call works, and with one again all do."""
    driver = Driver(str(tmp_path / "state"), Clock())
    assert refusal(driver.nvmlInit) == 9
    assert refusal(driver.nvmlDeviceGetHandleByIndex, 0) == 9
    write_state(tmp_path / "state", "gpus 1")
    driver.nvmlInit()
    assert driver.nvmlDeviceGetCount() == 1


def test_calls_need_a_started_library_and_a_handle_of_that_start(state):
    """Before the start and after the end calls are refused, and so is a handle of an earlier start."""
    driver = Driver(str(state), Clock())
    assert refusal(driver.nvmlDeviceGetCount) == 1
    driver.nvmlInit()
    handle = driver.nvmlDeviceGetHandleByIndex(0)
    driver.nvmlShutdown()
    assert refusal(driver.nvmlDeviceGetName, handle) == 1
    driver.nvmlInit()
    assert refusal(driver.nvmlDeviceGetName, handle) == 2


def test_later_lines_win_and_errors_go_by_gpu_and_call(state):
    """A later line beats an earlier one, a star is every GPU or call, and code 0 takes an error back."""
    driver = started(write_state(state, "gpus 2", "gpu 0 memory_mib 1", "gpu * memory_mib 2", "gpu 1 memory_mib 3"))
    first, second = driver.nvmlDeviceGetHandleByIndex(0), driver.nvmlDeviceGetHandleByIndex(1)
    assert [driver.nvmlDeviceGetMemoryInfo(handle).used >> 20 for handle in (first, second)] == [2, 3]
    write_state(
        state, "gpus 2", "gpu * error * 3", "gpu 1 error nvmlDeviceGetName 0", "# gpu 1 error nvmlDeviceGetName 4"
    )
    assert refusal(driver.nvmlDeviceGetName, first) == 3
    assert driver.nvmlDeviceGetName(second) == "NVIDIA Simulated"


def test_number_of_a_gpu_stays_when_the_order_changes(state):
    """A line is about the same GPU wherever the order puts it, and what the order leaves out is gone."""
    driver = started(write_state(state, "gpus 3", "order 2 0", "gpu 2 power_watts 200"))
    handle = driver.nvmlDeviceGetHandleByIndex(0)
    assert driver.nvmlDeviceGetCount() == 2
    assert driver.nvmlDeviceGetUUID(handle).endswith("02")
    assert driver.nvmlDeviceGetPowerUsage(handle) == 200_000
    write_state(state, "order 0")
    assert refusal(driver.nvmlDeviceGetPowerUsage, handle) == 15


def test_lost_gpu_refuses_its_handle_and_every_call(state):
    """A lost GPU is still counted, says so to every call, and can come back."""
    driver = started(state)
    handle = driver.nvmlDeviceGetHandleByIndex(0)
    write_state(state, "gpu 0 lost")
    assert driver.nvmlDeviceGetCount() == 1
    assert refusal(driver.nvmlDeviceGetHandleByIndex, 0) == 15
    assert refusal(driver.nvmlDeviceGetName, handle) == 15
    write_state(state, "gpu 0 lost", "gpu 0 lost 0")
    assert driver.nvmlDeviceGetHandleByIndex(0) == handle


def test_burst_shows_only_in_the_samples_it_covers(state):
    """The ring holds 72 samples, and each of those that a burst touches shows its part of it."""
    clock = Clock()
    driver = started(write_state(state, "gpu 0 utilization 3", f"gpu 0 burst {clock.now - 3} 0.2 100"), clock)
    handle = driver.nvmlDeviceGetHandleByIndex(0)
    kind, samples = driver.nvmlDeviceGetSamples(handle, 1, 0)
    values = [sample.sampleValue.uiVal for sample in samples]
    assert (kind, len(values), values.count(3)) == (1, RING, RING - 3)
    assert sum(value - 3 for value in values) * PERIOD_US / 1e6 == pytest.approx(97 * 0.2, abs=0.2)
    assert driver.nvmlDeviceGetUtilizationRates(handle).gpu == 3


def test_ring_has_nothing_after_its_newest_sample(state):
    """Asked for what comes after the newest sample, the ring answers "not found" until the next one is there."""
    clock = Clock()
    driver = started(state, clock)
    handle = driver.nvmlDeviceGetHandleByIndex(0)
    newest = driver.nvmlDeviceGetSamples(handle, 1, 0)[1][-1].timeStamp
    assert refusal(driver.nvmlDeviceGetSamples, handle, 1, newest) == 6
    clock.now += PERIOD_US / 1e6
    assert len(driver.nvmlDeviceGetSamples(handle, 1, newest)[1]) == 1


def test_energy_is_power_over_time_unless_given(state):
    """Energy grows with the power that the file gives, and never falls when the power does."""
    clock = Clock()
    driver = started(write_state(state, "gpu 0 power_watts 300"), clock)
    handle = driver.nvmlDeviceGetHandleByIndex(0)
    assert driver.nvmlDeviceGetTotalEnergyConsumption(handle) == 0
    clock.now += 10
    assert driver.nvmlDeviceGetTotalEnergyConsumption(handle) == 3_000_000
    write_state(state, "gpu 0 power_watts 100")
    clock.now += 1
    assert driver.nvmlDeviceGetTotalEnergyConsumption(handle) == 3_100_000
    write_state(state, "gpu 0 energy_joules 5")
    assert driver.nvmlDeviceGetTotalEnergyConsumption(handle) == 5_000


def test_processes_stand_in_two_lists(state):
    """Processes that compute and processes that draw are listed apart, with unknown memory as None."""
    driver = started(write_state(state, "gpu 0 process 11 5", "gpu 0 process 12 unknown", "gpu 0 graphics 11 5"))
    handle = driver.nvmlDeviceGetHandleByIndex(0)
    compute = driver.nvmlDeviceGetComputeRunningProcesses_v3(handle)
    assert [(process.pid, process.usedGpuMemory) for process in compute] == [(11, 5 << 20), (12, None)]
    assert [process.pid for process in driver.nvmlDeviceGetGraphicsRunningProcesses_v3(handle)] == [11]


def test_delay_holds_the_answer_back(state):
    """A delayed call waits before it answers."""
    waited = []
    driver = Driver(
        str(write_state(state, "gpu 0 delay nvmlDeviceGetName 60", "delay nvmlInit 2")), Clock(), waited.append
    )
    driver.nvmlInit()
    driver.nvmlDeviceGetName(driver.nvmlDeviceGetHandleByIndex(0))
    assert [seconds for seconds in waited if seconds] == [2, 60]
