"""Faults: whatever is stuck, killed or unreadable, /metrics answers, all else stays fresh, what is missing is named."""

import asyncio
import os
import signal
import socket

import pytest

from faulty_node import OTHERS, STUCK, a_node, fresh, gone, reasons, scrapes


@pytest.fixture
async def node(tmp_path, deaf_library):
    """Have a node whose driver is deaf."""
    async with a_node(tmp_path, deaf_library) as made:
        yield made


async def test_a_gpu_call_that_hangs_costs_that_gpu_alone(node):
    """One GPU's call hangs for a minute: scrapes answer, other signals are fresh, seven GPUs are back, it is named."""
    async with node.exporter as exporter:
        await node.start()
        await node.everything_seen()
        node.driver(STUCK.format(seconds=60))
        await exporter.until(lambda scrape: scrape.value("collector_success", collector="gpu") == 0)
        back = await exporter.until(lambda scrape: len(scrape.all("gpu_power_watts")) == 7)
        assert "3" not in {labels["gpu"] for labels, _ in back.all("gpu_power_watts")}
        seen = await scrapes(node, "a hung NVML call")
        assert fresh(seen)
        assert all(node.sees(scrape, *OTHERS) for scrape in seen)
        assert {scrape.value("worker_abandoned", worker="gpu") for scrape in seen} == {1}
        assert {scrape.value("worker_abandoned", worker="host") for scrape in seen} == {0}
        assert {scrape.value("collector_success", collector="gpu") for scrape in seen} == {0}
        assert reasons(seen[-1], "gpu").keys() >= {"timeout", "quarantined"}
        assert "quarantined (gpu 3 nvmlDeviceGetPowerUsage" in await exporter.shown()
        assert "gpu 3 nvmlDeviceGetPowerUsage" in exporter.log


@pytest.mark.parametrize("worker", ["gpu", "host"])
async def test_a_worker_that_is_stopped_is_replaced(node, worker):
    """SIGSTOP for a worker: its signals come back from another process, the stopped one goes."""
    async with node.exporter as exporter:
        await node.start()
        await node.everything_seen()
        pid = (await exporter.workers())[worker]
        os.kill(pid, signal.SIGSTOP)
        await scrapes(node, f"{worker} worker stopped")
        await exporter.until(lambda scrape: scrape.value("worker_restarts_total", worker=worker) == 1)
        await node.seen("gpu", *OTHERS)
        assert (await exporter.workers())[worker] != pid
        await asyncio.wait_for(gone(pid), 20)
        await exporter.until(lambda scrape: scrape.value("worker_abandoned", worker=worker) == 0)


@pytest.mark.parametrize("worker", ["gpu", "host"])
async def test_a_worker_that_is_killed_costs_one_reading(node, worker):
    """SIGKILL for a worker: one round of it at most is lost, and the next is served by another process."""
    async with node.exporter as exporter:
        await node.start()
        await node.everything_seen()
        os.kill((await exporter.workers())[worker], signal.SIGKILL)
        await exporter.until(lambda scrape: scrape.value("worker_restarts_total", worker=worker) == 1)
        scrape = await node.seen("gpu", *OTHERS)
        collectors = {"gpu": ("gpu",), "host": ("process", "log", "discovery")}[worker]
        assert sum(reasons(scrape, collector).get("worker_died", 0) for collector in collectors) <= 1
        assert scrape.value("worker_abandoned", worker=worker) == 0


@pytest.mark.parametrize(("kind", "reason"), [("directory", "is_a_directory"), ("pipe", "not_a_regular_file")])
async def test_a_log_that_is_no_file(node, tmp_path, kind, reason):
    """A directory or a named pipe as log is named and never waited for, nor is anything taken from the pipe."""
    path = tmp_path / "server.log"
    path.mkdir() if kind == "directory" else os.mkfifo(path)
    config = tmp_path / "stallwatch.yml"
    config.write_text(f"servers: [{{name: mine, port: {node.port}, log: {path}}}]\n")
    node.name = "mine"
    node.exporter._flags.append(f"--config.file={config}")
    async with node.exporter:
        await node.start()
        await node.seen("gpu", "process", "health")
        seen = await scrapes(node, f"log is a {kind}", 20)
        assert fresh(seen)
        assert {scrape.value("signal_success", server="mine", signal="log") for scrape in seen} == {0}
        assert all(node.sees(scrape, "process", "health") for scrape in seen)
        assert reason in reasons(seen[-1], "log")
        _, _, page = (await node.exporter.get("/")).partition('data-server="mine"')
        assert f"<li><b>log</b>: {reason.replace('_', ' ')} (" in page
        assert "Not read in the last 5 minutes." in page.partition(">Log age</title>")[2].partition("</desc>")[0]
        assert "Not read in" not in page.partition(">GPU busy</title>")[2].partition("</desc>")[0]


async def test_a_log_that_was_deleted(node):
    """A deleted log is read on through the descriptor of the server."""
    async with node.exporter:
        await node.start()
        scrape = await node.everything_seen()
        size = scrape.value("log_size_bytes", server=node.name)
        node.server.log_path.unlink()
        await node.server.log("[2026-01-01 00:00:01] one more line")
        await node.exporter.until(lambda scrape: (scrape.value("log_size_bytes", server=node.name) or 0) > size)


async def test_a_port_that_is_closed(node):
    """A server whose port is not open yet is refused, and nothing else is missing."""
    async with node.exporter:
        await node.start(listen=False)
        await node.seen("gpu", *OTHERS)
        seen = await scrapes(node, "a closed port")
        assert fresh(seen)
        assert all(node.sees(scrape, "gpu", *OTHERS) for scrape in seen)
        assert {(*scrape.holding("health_result", "result", server=node.name),) for scrape in seen} == {("refused",)}


async def test_a_web_process_that_is_stopped(node):
    """A server that takes connections and never answers is probed in vain, and nothing else is missing."""
    async with node.exporter as exporter:
        await node.start()
        await node.everything_seen()
        os.kill(node.server.pid, signal.SIGSTOP)
        try:
            results = ("health_result", "result")
            await exporter.until(lambda scrape: scrape.holding(*results, server=node.name) == {"timeout"})
            seen = await scrapes(node, "a hung health endpoint")
        finally:
            os.kill(node.server.pid, signal.SIGCONT)
        assert fresh(seen)
        assert all(node.sees(scrape, "gpu", "process", "log") for scrape in seen)


TOMBSTONE = (
    "stallwatch_server_info",
    "stallwatch_server_verdict",
    "stallwatch_server_signature",
    "stallwatch_server_verdict_start_timestamp_seconds",
    "stallwatch_server_restarts_total",
    "stallwatch_server_crash_looping",
    "stallwatch_server_not_ready_seconds_total",
    "stallwatch_server_processes",
    "stallwatch_server_expected_processes",
    "stallwatch_signal_success",
    "stallwatch_log_",  # its file is still there, and tells whether the end was meant
)


async def test_of_a_server_that_vanished_only_the_tombstone_is_left(node):
    """Once it is seen to have gone no sample names its processes, its probes, what moved or what is owed."""
    async with node.exporter as exporter:
        await node.start()
        await node.everything_seen()
        node.kill()
        last = await exporter.until(lambda scrape: not named(scrape, node))
        for scrape in (last, *await scrapes(node, "a vanished server")):
            assert named(scrape, node) == set()
        assert len(last.all("gpu_power_watts")) == 8


def named(scrape, node):
    """Return the families that name the server and are no part of a tombstone."""
    names = {name for name, labels, _ in scrape.samples if labels.get("server") == node.name}
    return {name for name in names if not name.startswith(TOMBSTONE)}


async def test_a_server_that_is_started_again_is_not_ready_yet(node):
    """What the life before said in its log and to probes is not held for the new one."""
    async with node.exporter as exporter:
        await node.start()
        await node.everything_seen()
        born = birth(await exporter.scrape(), node)
        await node.server.stop()
        await node.start(ready=False, listen=False)
        scrape = await exporter.until(lambda scrape: (birth(scrape, node) or 0) > born)
        for one in (scrape, *await scrapes(node, "a server that starts again", 20)):
            assert one.holding("server_phase", "phase", server=node.name) == {"launch"}
            assert one.value("server_demand_since_timestamp_seconds", server=node.name, reason="not_ready")


def birth(scrape, node):
    """Return when the first scheduler of the server was started."""
    return scrape.value("process_start_time_seconds", server=node.name, process="scheduler_TP0")


async def test_a_driver_that_comes_later(node):
    """Without a driver the GPUs are missing, all else is there; once it is loaded they appear."""
    driver = node.gpus.path.read_text()
    node.gpus.path.unlink()
    async with node.exporter as exporter:
        scrape = await exporter.until(lambda scrape: "driver_not_loaded" in reasons(scrape, "gpu"))
        assert scrape.value("collector_success", collector="gpu") == 0
        assert scrape.all("gpu_info") == []
        assert "gpu: driver not loaded" in await exporter.shown()
        node.gpus.path.write_text(driver)
        await node.start()
        scrape = await node.everything_seen()
        assert len(scrape.all("gpu_power_watts")) == 8
        assert exporter.log.count("driver_not_loaded") == 2  # once that it is missing, once that it is back


async def test_a_server_that_comes_later(node):
    """An exporter that has run alone for a while finds a server and all its signals."""
    async with node.exporter as exporter:
        scrape = await exporter.until(lambda scrape: scrape.value("collector_success", collector="gpu") == 1)
        assert scrape.value("server_info", server=node.name) is None
        await node.start()
        await node.everything_seen()


async def stuck_worker(node, seconds):
    """Have the worker of the GPUs stuck and return its pid."""
    await node.exporter.until(lambda scrape: scrape.value("collector_success", collector="gpu") == 1)
    pid = (await node.exporter.workers())["gpu"]
    node.driver(STUCK.format(seconds=seconds))
    await node.exporter.until(lambda scrape: scrape.value("worker_abandoned", worker="gpu") == 1)
    return pid


async def test_sigterm_ends_it_with_a_stuck_worker(node):
    """It ends within two seconds, its port is free at once, and the stuck worker ends when its call returns."""
    async with node.exporter as exporter:
        stuck = await stuck_worker(node, 6)
        workers = await exporter.workers()
        with socket.create_connection(("127.0.0.1", exporter.port)) as half:
            half.sendall(b"GET /metrics HT")
            await exporter.scrape()
            assert await exporter.stop() < 2
        assert exporter.process.returncode == 0
        assert os.path.exists(f"/proc/{stuck}"), "it was killed inside a call into the driver"
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", exporter.port))
            again.listen()
        for pid in (*workers.values(), stuck):
            await asyncio.wait_for(gone(pid), 20)
        assert "Traceback" not in exporter.log


async def test_sigkill_leaves_no_worker_behind(node):
    """After SIGKILL the idle workers go at once, the stuck one when its call returns, and the port is free."""
    async with node.exporter as exporter:
        stuck = await stuck_worker(node, 6)
        workers = await exporter.workers()
        await exporter.stop(signal.SIGKILL)
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", exporter.port))
            again.listen()
        for pid in (*workers.values(), stuck):
            await asyncio.wait_for(gone(pid), 20)
        assert "Traceback" not in exporter.log
