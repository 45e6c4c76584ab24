"""The kernel log under a running exporter: what it tells is published, and that it cannot be read warns of nothing."""

import time

import pytest

from exporter_process import ExporterProcess
from faulty_node import FAST, RANKS, reasons
from nvml_library import environment
from stallwatch.simulation.pager import free_port
from stallwatch.simulation.played import PlayedGpus, PlayedServer


class Kmsg:
    """A file that stands in for /dev/kmsg: it can be read again from its begin too, by a worker that takes over."""

    def __init__(self, path):
        self.path = path
        path.touch()

    def xid(self, code, address="0000:10:00", ago=0.0):
        """Log an Xid of so many seconds ago, at first sight that of GPU 0."""
        microseconds = int((time.clock_gettime(time.CLOCK_BOOTTIME) - ago) * 1e6)
        with self.path.open("a") as file:
            file.write(f"4,9,{microseconds},-;NVRM: Xid (PCI:{address}): {code}, pid=1, x\n")


@pytest.fixture
def kmsg(tmp_path):
    """Have a kernel log."""
    return Kmsg(tmp_path / "kmsg")


async def test_an_xid_makes_the_server_dead_and_is_published(tmp_path, deaf_library, kmsg):
    """An old one is history: counted, with its time, and no fault of the server. A new critical one is its end."""
    gpus, port = PlayedGpus(tmp_path / "gpus", 2), free_port()
    server = PlayedServer(tmp_path / "server", ["--model-path", "m", "--tp-size", "2", "--port", str(port)])
    name = f"sglang:{port}"
    kmsg.xid(79, ago=7200)
    kmsg.xid(119, address="0000:5e:00", ago=10)
    async with ExporterProcess(environment(deaf_library, gpus.path), PATH__KMSG=kmsg.path, **FAST) as exporter:
        await server.start()
        try:
            pids = await server.spawn(*RANKS)
            gpus.hold(pids[title] for title in RANKS)
            await server.log("[2026-01-01 00:00:00] The server is fired up and ready to roll!")
            await server.tell(listen=port)
            scrape = await exporter.until(
                lambda scrape: (
                    scrape.value("gpu_xid_total", gpu="0", xid="79") == 1
                    and len(scrape.all("server_gpu_info", server=name)) == 2
                    and scrape.value("signal_success", server=name, signal="log") == 1
                )
            )
            assert scrape.age("gpu_xid_last_timestamp_seconds", gpu="0", xid="79") == pytest.approx(7200, abs=60)
            assert scrape.value("gpu_xid_total", gpu="0000:5e:00", uuid="", xid="119") == 1
            assert scrape.holding("server_signature", "signature", server=name) == set()
            kmsg.xid(31)
            kmsg.xid(79)
            scrape = await exporter.until(
                lambda scrape: scrape.holding("server_signature", "signature", server=name) == {"device_fault"}
            )
            assert scrape.value("gpu_xid_total", gpu="0", xid="79") == 2
            assert scrape.value("gpu_xid_total", gpu="0", xid="31") == 1
            assert scrape.age("gpu_xid_last_timestamp_seconds", gpu="0", xid="79") < 15
            assert "the kernel reports Xid 79 of GPU 0 (fell off the bus)" in await exporter.shown()
        finally:
            await server.stop()


async def test_without_a_kernel_log_nothing_fails(tmp_path):
    """It is named with what it takes, logged once, and neither a success nor a failure of the collector."""
    async with ExporterProcess(PATH__KMSG=tmp_path / "none", **FAST) as exporter:
        scrape = await exporter.until(lambda scrape: reasons(scrape, "kernel").get("not_found", 0) >= 2)
        assert scrape.value("collector_success", collector="kernel") is None
        assert scrape.value("collector_success", collector="process") == 1
        assert f"kernel: not found ({tmp_path}/none: " in await exporter.shown()
        assert exporter.log.count("collector=kernel") == 1
