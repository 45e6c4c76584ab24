"""The state of all GPUs of a node, and that the collector which shares the worker takes no notice."""

import pytest

from nvml_library import environment, write_state
from stallwatch.collectors.gpu import GpuReading
from stallwatch.gpus.nvml import Nvml
from stallwatch.lanes import decoder
from stallwatch.simulation.nvml import Driver
from stallwatch.snapshot import Launch, Server
from stallwatch.sources.gpus import GpuStateReading, StateReader, target
from stallwatch.workers import Deadlines, Worker

NOTHING = frozenset()
STATE = (
    "gpus 2",
    "gpu * name NVIDIA H20",
    "gpu * utilization 40",
    "gpu * memory_mib 1000",
    "gpu * nvlinks 3",
    "gpu * nvlinks_down 1",
    "gpu * nvlink_kib_per_second 1000",
    "gpu 1 ecc_errors 4",
    "gpu 1 remapped_rows 1 2 1 0",
    "gpu 1 throttle 8",
    "gpu 1 recovery_action 1",
)


class Clock:
    """A clock that goes on while somebody sleeps, and for a while at each call."""

    def __init__(self):
        self.now = 1000.0
        self.per_call = 0.0

    def __call__(self):
        """Return the time."""
        self.now += self.per_call
        return self.now

    def sleep(self, seconds):
        """Let time pass."""
        self.now += seconds


@pytest.fixture
def node(tmp_path):
    """Return what reads a node that does as these statements say."""

    def of(*statements):
        clock = Clock()
        driver = Driver(str(write_state(tmp_path / "state", *statements)), clock)
        notes = []
        reader = StateReader(Nvml(driver, notes.append), clock, clock.sleep)
        reader.clock, reader.notes, reader.driver = clock, notes, driver
        return reader

    return of


def test_all_is_told_of_each_gpu(node):
    """What each has, and what moved over the links between two looks a second apart."""
    reading, failures = node(*STATE).read([], NOTHING)
    first, second = reading.gpus
    assert failures == ()
    assert (first.name, first.utilization, first.memory_used, first.lost) == ("NVIDIA H20", 0.4, 1000 << 20, False)
    assert (first.nvlink_sent_bytes, first.nvlink_received_bytes, reading.seconds) == (1_024_000, 1_024_000, 1.0)
    assert [link.active for link in first.links] == [True, True, False]
    assert (second.ecc_volatile_uncorrected, second.ecc_aggregate_corrected) == (4, 4)
    assert (second.remapped_rows_uncorrected, second.remapped_rows_pending, second.remapped_rows_failed) == (
        2,
        True,
        False,
    )
    assert (second.throttle_reasons, second.recovery_action) == (("hw_slowdown",), "gpu_reset")
    assert (second.performance_state, second.compute_mode, second.persistence_mode) == (0, "default", True)
    assert (second.pcie_generation, second.pcie_width, second.pcie_replays) == (5, 16, 0)


def test_gpus_without_links_are_not_waited_for(node):
    """Nothing moves that a second look could tell."""
    reader = node("gpus 1")
    reading, _ = reader.read([], NOTHING)
    assert (reading.seconds, reading.gpus[0].links, reading.gpus[0].nvlink_sent_bytes) == (0.0, (), None)


def test_a_lost_gpu_has_no_values_and_a_failure(node):
    """The others are told of all the same, and what one call is refused costs that value only."""
    reading, failures = node(*STATE, "gpu 0 lost", "gpu 1 error nvmlDeviceGetPcieReplayCounter 4").read([], NOTHING)
    assert [gpu.index for gpu in reading.gpus] == [1]
    assert (reading.gpus[0].pcie_replays, reading.gpus[0].pcie_width) == (None, 16)
    assert [failure.reason for failure in failures] == ["gpu_lost", "no_permission"]


def test_a_gpu_that_is_lost_meanwhile_is_told_as_lost(node):
    """It had a handle, and answers to nothing now."""
    reading, failures = node(*STATE, "gpu 0 error nvmlDeviceGetUtilizationRates 15").read([], NOTHING)
    lost, other = reading.gpus
    assert (lost.lost, lost.name, other.lost, other.name) == (True, None, False, "NVIDIA H20")
    assert [failure.reason for failure in failures] == ["gpu_lost"]


@pytest.mark.parametrize(
    ("code", "reason"), [(9, "driver_not_loaded"), (12, "library_not_found"), (4, "no_permission")]
)
def test_a_library_that_does_not_start_is_a_failure(node, code, reason):
    """There is no reading then."""
    reading, (failure,) = node("gpus 1", f"error nvmlInit {code}").read([], NOTHING)
    assert (reading, failure.reason) == (None, reason)


def test_a_node_without_gpus_says_so(node):
    """The library starts and lists none."""
    reading, (failure,) = node("gpus 0").read([], NOTHING)
    assert (reading.gpus, failure.reason) == ((), "no_gpu")


def test_what_hung_before_is_left_alone(node):
    """A GPU with a function that never returned is not asked at all, and every call is noted before."""
    reader = node(*STATE)
    reading, failures = reader.read([], frozenset({"gpu 0 nvmlDeviceGetNvLinkState"}))
    assert [gpu.index for gpu in reading.gpus] == [1]
    assert [failure.reason for failure in failures] == ["quarantined"]
    assert not [note for note in reader.notes if note.startswith("gpu 0")]
    assert "gpu 1 nvmlDeviceGetNvLinkState" in reader.notes


def test_slow_counters_of_further_gpus_are_left_out(node):
    """The collector waits for the same worker, so that the look has an end."""
    reader = node(*STATE)
    reader.clock.per_call = 1.0
    reading, _ = reader.read([], NOTHING)
    assert reading.dropped >= 1
    assert reading.gpus[-1].links[0].errors == {}


async def test_the_collector_in_the_same_worker_takes_no_notice(library, tmp_path):
    """The library counts who uses it: that of the collector is up before, and as it was after."""
    environ = environment(library, write_state(tmp_path / "state", *STATE))
    modules = ["stallwatch.collectors.gpu", "stallwatch.sources.gpus"]
    worker = Worker("gpu", modules, {}, Deadlines(call=10, start=30, first_call=10), environ)
    gpu, state = decoder("gpu", GpuReading), decoder("gpu_state", GpuStateReading)
    try:
        first, failures = gpu(await worker.call("gpu", []))
        assert failures == ()
        asked = [target(Server("s", "sglang", Launch()))]
        for _ in range(2):
            reading, failures = state(await worker.call("gpu_state", asked))
            assert failures == ()
            assert reading.gpus[0].nvlink_sent_bytes >= 1000 * 1024
            assert reading.gpus[1].links[0].errors == {"replay": 0, "recovery": 0, "crc_flit": 0, "crc_data": 0}
            assert reading.gpus[1].remapped_rows_corrected == 1
        after, failures = gpu(await worker.call("gpu", []))
        assert failures == ()
        assert after.gpus[0].busy_seconds > first.gpus[0].busy_seconds
        assert worker.state().restarts == 0
    finally:
        await worker.close()
