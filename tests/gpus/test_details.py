"""What a GPU is asked for in an incident is believed only where it can be true, and what it lacks is asked for once."""

import pytest

from nvml_library import write_state
from stallwatch.gpus.details import Details, Link
from stallwatch.gpus.nvml import CallError, Nvml
from stallwatch.simulation.nvml import Driver


class Asked(Driver):
    """A simulated driver that lists the calls made to it."""

    def __init__(self, path):
        super().__init__(str(path), lambda: 1000.0)
        self.calls = []

    def _enter(self, call, handle=None):
        self.calls.append(call)
        super()._enter(call, handle)


@pytest.fixture
def details(tmp_path):
    """Return a GPU that does as these statements say, and its driver."""

    def of(*statements):
        driver = Asked(write_state(tmp_path / "state", "gpus 1", *statements))
        nvml = Nvml(driver, lambda _: None)
        nvml.start()
        return Details(nvml.devices[0]), driver

    return of


@pytest.mark.parametrize(
    ("question", "statement", "answer"),
    [
        ("memory_clock_hertz", "sm_clock_mhz 2619", 2.619e9),
        ("performance_state", "performance_state 2", 2),
        ("performance_state", "performance_state 32", None),  # unknown
        ("persistence_mode", "persistence 0", False),
        ("compute_mode", "compute_mode 3", "exclusive_process"),
        ("compute_mode", "compute_mode 9", None),
        ("ecc_volatile_corrected", "ecc_errors 5", 5),
        ("ecc_volatile_uncorrected", "ecc_errors 5", 5),
        ("ecc_aggregate_corrected", "ecc_errors 18446744073709551615", None),
        ("ecc_aggregate_uncorrected", "ecc_errors 5", 5),
        ("remapped_rows", "remapped_rows 1 2 1 0", (1, 2, True, False)),
        ("remapped_rows", "remapped_rows 4294967295 0 0 0", None),
        ("pcie_generation", "pcie_generation 4", 4),
        ("pcie_generation_max", "pcie_generation_max 5", 5),
        ("pcie_width", "pcie_width 8", 8),
        ("pcie_width_max", "pcie_width_max 4294967295", None),
        ("pcie_replays", "pcie_replays 9", 9),
        ("retired_pages_pending", "throttle 0", None),
        ("nvlink_bytes", "nvlinks 0", None),
    ],
)
def test_each_answer_is_told_where_it_can_be_true(details, question, statement, answer):
    """All-ones and numbers out of range are none."""
    one, _ = details(f"gpu 0 {statement}")
    assert getattr(one, question)() == answer


def test_what_a_gpu_lacks_is_asked_for_once(details):
    """Of a function that tells of several things only the one that is lacking is not asked for again."""
    one, driver = details("gpu 0 error nvmlDeviceGetNvLinkErrorCounter 3", "gpu 0 nvlinks 2")
    links = one.links(lambda question: question())
    assert links == (Link(0, True, {}), Link(1, True, {}))
    assert driver.calls.count("nvmlDeviceGetNvLinkErrorCounter") == 4


def test_links_that_are_down_count_nothing(details):
    """Only those that are up are asked for their errors, and the list ends where the GPU says that it does."""
    one, _ = details("gpu 0 nvlinks 3", "gpu 0 nvlinks_down 1", "gpu 0 nvlink_errors 7")
    errors = {"replay": 7, "recovery": 7, "crc_flit": 7, "crc_data": 7}
    assert one.links(lambda question: question()) == (Link(0, True, errors), Link(1, True, errors), Link(2, False, {}))
    assert one.links(lambda question: question(), errors=False)[0] == Link(0, True, {})


def test_a_gpu_without_links_has_none(details):
    """It says so at the first of them."""
    one, driver = details()
    assert one.links(lambda question: question()) == ()
    assert driver.calls.count("nvmlDeviceGetNvLinkState") == 1


def test_what_went_over_the_links_is_counted_in_bytes(details):
    """NVML counts it in KiB since the driver was loaded."""
    one, _ = details("gpu 0 nvlinks 1", "gpu 0 nvlink_kib_per_second 3")
    assert one.nvlink_bytes() == (3000 * 1024, 3000 * 1024)


def test_a_refusal_is_an_error(details):
    """A GPU that is lost says so where it is asked for anything."""
    one, _ = details("gpu 0 error nvmlDeviceGetPcieReplayCounter 15")
    with pytest.raises(CallError) as caught:
        one.pcie_replays()
    assert caught.value.reason == "gpu_lost"
