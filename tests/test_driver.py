"""The life of a driver under a running exporter: it wakes up slowly, is loaded anew, and its GPUs change places."""

import pytest

from exporter_process import ExporterProcess
from faulty_node import FAST, reasons
from nvml_library import environment, write_state

LOADED = ("gpus 2", "gpu * power_watts 90")
# Without persistence mode each GPU is initialized when it is first asked for. The deadline of a read is 1 s.
SLOW = ("gpu * delay nvmlDeviceGetHandleByIndex 1.5",)


@pytest.fixture
def node(tmp_path, deaf_library):
    """Return an exporter and the state file of its driver."""
    state = tmp_path / "state"
    settings = {**FAST, "WORKERS__START_DEADLINE": "20s"}
    return ExporterProcess(environment(deaf_library, state), **settings), state


def two_gpus(scrape):
    """Tell whether both GPUs are read."""
    return len(scrape.all("gpu_power_watts")) == 2


async def test_a_driver_that_wakes_up_slowly_is_waited_for(node):
    """At the start and once it is loaded anew: no worker is left behind, nothing is called stuck, all else is fresh."""
    exporter, state = node
    write_state(state, *LOADED, *SLOW)
    async with exporter:
        scrape = await exporter.until(lambda scrape: scrape.value("collector_success", collector="gpu") == 0)
        assert scrape.value("collector_success", collector="process") == 1
        assert "gpu: starting" in await exporter.shown()
        await exporter.until(two_gpus)
        pid = (await exporter.workers())["gpu"]
        state.unlink()
        await exporter.until(lambda scrape: "driver_not_loaded" in reasons(scrape, "gpu"))
        await exporter.until(lambda scrape: not scrape.all("gpu_info"))
        write_state(state, *LOADED, *SLOW, "driver 590.1", "order 1 0")
        begin = await exporter.scrape()
        scrape = await exporter.until(two_gpus)
        took = scrape.value("snapshot_timestamp_seconds") - begin.value("snapshot_timestamp_seconds")
        assert took > 2.5
        assert {labels["gpu"]: labels["uuid"][-1] for labels, _ in scrape.all("gpu_info")} == {"0": "1", "1": "0"}
        assert {labels["driver_version"] for labels, _ in scrape.all("gpu_info")} == {"590.1"}
        assert reasons(scrape, "gpu").keys().isdisjoint({"timeout", "quarantined", "backed_off", "worker_died"})
        assert scrape.value("worker_abandoned", worker="gpu") == 0
        assert scrape.value("worker_restarts_total", worker="gpu") == 0
        assert (await exporter.workers())["gpu"] == pid


async def test_a_gpu_that_wakes_up_for_ever_is_named_and_comes_back(node):
    """Even a driver that starts has a deadline; what it is stuck in is named, and the GPU read once it lets go."""
    exporter, state = node
    exporter._environ["STALLWATCH_WORKERS__START_DEADLINE"] = "2s"
    async with exporter:
        await exporter.until(lambda scrape: "driver_not_loaded" in reasons(scrape, "gpu"))
        write_state(state, *LOADED, "gpu 1 delay nvmlDeviceGetHandleByIndex 8")
        await exporter.until(lambda scrape: scrape.value("worker_abandoned", worker="gpu") == 1)
        scrape = await exporter.until(lambda scrape: len(scrape.all("gpu_power_watts")) == 1)
        assert reasons(scrape, "gpu").keys() >= {"timeout", "quarantined"}
        assert "gpu 1 nvmlDeviceGetHandleByIndex" in exporter.log
        await exporter.until(lambda scrape: scrape.value("worker_abandoned", worker="gpu") == 0)
