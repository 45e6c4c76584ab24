"""What is said of GPUs: what is wrong with one, and nothing of one that only works hard."""

import pytest

from stallwatch.evidence import gpuwords
from stallwatch.sources.gpus import GpuState, GpuStateReading


def reading(*gpus):
    """Return the state of these GPUs."""
    return GpuStateReading(1.0, seconds=1.0, gpus=gpus)


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"lost": True}, "lost"),
        ({"recovery_action": "gpu_reset"}, "needs gpu reset"),
        ({"ecc_volatile_uncorrected": 2}, "2 uncorrected memory errors"),
        ({"remapped_rows_failed": True}, "a bad row could not be remapped"),
        ({"retired_pages_pending": True}, "a bad row waits for a reset"),
        ({"throttle_reasons": ("idle", "hw_thermal_slowdown")}, "throttled: hw thermal slowdown"),
    ],
)
def test_a_gpu_with_a_fault_is_the_odd_one(fields, wrong):
    """It is named with what is wrong, and the line about it says so too."""
    told = reading(GpuState(0, "GPU-0"), GpuState(3, "GPU-3", **fields))
    assert gpuwords.odd(told) == f"by the state of the GPUs: GPU 3 ({wrong})"
    assert [wrong in line for line in gpuwords.lines(told)] == [False, True]


@pytest.mark.parametrize("reason", ["idle", "sw_power_cap", "applications_clocks"])
def test_a_gpu_that_rests_or_works_at_its_limit_is_not_odd(reason):
    """The GPU of a neighbour that works as hard as it may is no lead."""
    assert gpuwords.odd(reading(GpuState(0, "GPU-0", throttle_reasons=(reason,), recovery_action="none"))) == ""


def test_a_gpu_that_can_be_read_is_told_in_one_line():
    """Its load, clocks and bus; of one that cannot be read that."""
    known = GpuState(
        0, "GPU-0", utilization=1.0, memory_used=gpuwords.GIB, power_watts=130.0, power_limit_watts=700.0,
        sm_clock_hertz=1.98e9, temperature_celsius=35.0, performance_state=0, pcie_generation=5, pcie_width=16,
        nvlink_sent_bytes=3, nvlink_received_bytes=4,
    )  # fmt: skip
    first, second = gpuwords.lines(reading(known, GpuState(1, "GPU-1")))
    assert first.startswith("GPU 0 GPU-0: 100 %, 1 GiB, 130 of 700 W, SM 1980 MHz, P0, 35 degrees, PCIe 5 x16, ")
    assert first.endswith(", NVLinks moved 7 bytes in 1.0 s")
    assert second == "GPU 1 GPU-1: nothing of it can be read"
