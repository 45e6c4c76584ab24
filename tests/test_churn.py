"""Churn: servers that come and go by the hundred, pids that are used again, GPUs that are shared, clocks that step."""

import gc
import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from crowd import Server, crowd_program, running
from exporter_process import ExporterProcess
from stallwatch.replay import play
from stallwatch.simulation.pager import free_port
from stallwatch.simulation.scenario import scenario_of

__all__ = ["crowd_program"]

QUICK = {"INTERVAL": "500ms", "DISCOVERY__INTERVAL": "500ms", "HEALTH__INTERVAL": "1s", "COLLECTORS__GPU": "false"}
NAME = "sglang:30000"


def a_life(seconds, **more):
    """Return a stretch in which a server serves."""
    return {
        "for": seconds,
        "phase": "ready",
        "gpu": {"utilization": 50, "memory_gib": 60, "power_watts": 200},
        "scheduler": {"cpu": 1.0},
        "log": "progress",
        "health": "ok",
        "engine": {"running": 3, "queued": 0, "tokens_per_second": 100},
        **more,
    }


def test_a_thousand_restarts_are_counted_and_leave_nothing_behind():
    """By crashes and orderly ends: each is counted, nobody is paged, the thousandth costs what the hundredth did."""
    ends = [{"exit": ("crash", "orderly")[number % 2]} for number in range(1000)]
    server = {"version": "0.5.9", "args": ["--tp-size", "2"], "segments": [a_life(45, **end) for end in ends]}
    scenario = scenario_of(
        {"node": {"gpus": 2}, "servers": [server, {"args": ["--port", "1"], "segments": [a_life(45e3)]}]}
    )
    memory, states, restarts = {}, set(), []
    for look in play(scenario, 15.0):
        if look.t >= 45e3:
            break
        states.add(look.verdicts[NAME].state)
        restarts.append(look.pasts[NAME].ending.restarts)
        if restarts[-1] in {100, 999}:
            gc.collect()
            memory[restarts[-1]] = len(gc.get_objects())
    assert all(later - earlier in {0, 1} for earlier, later in pairwise(restarts))
    assert restarts[-1] == 999
    assert states == {"busy"}
    assert memory[999] - memory[100] < 1000


SHARED = {"gpu": {"utilization": [90, 90], "memory_gib": 30, "power_watts": 300}}


def test_two_servers_on_the_same_gpus_are_told_apart():
    """The one that hangs is told of though the GPUs are busy for the other, which is not blamed."""
    hung = a_life(
        900, **SHARED, log="silent", health="timeout", engine={"running": 3, "queued": 1, "tokens_per_second": 0}
    )
    servers = [
        {"version": "0.5.9", "args": ["--tp-size", "2"], "segments": [a_life(300, **SHARED), hung]},
        {"version": "0.5.9", "args": ["--tp-size", "2", "--port", "30001"], "segments": [a_life(1200, **SHARED)]},
    ]
    looks = list(play(scenario_of({"node": {"gpus": 2}, "servers": servers}), 5.0))
    assert looks[-1].verdicts[NAME].state == "stalled"
    assert {look.verdicts["sglang:30001"].state for look in looks[10:]} == {"busy"}
    assert [len(past.server.gpus) for past in looks[-1].pasts.values()] == [2, 2]


async def test_two_hundred_schedulers_are_all_watched(crowd_program, tmp_path):
    """25 servers of 8 ranks each: all are found, within bounds of memory; those that end are gone."""
    servers = [Server(crowd_program, free_port(), tmp_path / f"{n}.log", ranks=8) for n in range(25)]
    names = {server.name for server in servers}

    def there(scrape):
        found = scrape.all("server_processes", role="scheduler")
        return {labels["server"] for labels, value in found if value == 8} & names

    with running(servers):
        async with ExporterProcess(**QUICK) as exporter:
            await exporter.until(lambda scrape: there(scrape) == names)
            scrape = await exporter.until(
                lambda scrape: len({labels["server"] for labels, _ in scrape.all("health_success")} & names) == 25
            )
            mine = [labels for labels, _ in scrape.all("process_state", state="S") if labels["server"] in names]
            assert len(mine) == 25 * 9
            for server in servers[:20]:
                server.stop()
            await exporter.until(lambda scrape: there(scrape) == {server.name for server in servers[20:]})
            assert scrape.value("worker_resident_memory_bytes", worker="host") < 64 << 20
            assert "Traceback" not in exporter.log


async def test_real_restarts_are_counted(crowd_program, tmp_path):
    """A handful, each of real processes that are killed: counted one by one, and never called hung."""
    server = Server(crowd_program, free_port(), tmp_path / "server.log")
    with running([server]):
        async with ExporterProcess(**QUICK) as exporter:
            for number in range(4):
                scrape = await exporter.until(
                    lambda s, n=number: s.value("server_restarts_total", server=server.name) == n
                )
                assert not scrape.holding("server_verdict", "verdict", server=server.name) & {"stalled", "dead"}
                server.stop()
                server.start()


def next_pid_is(pid):
    """Have the kernel give this pid to the next process, unless another one is started first."""
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can choose a pid")
async def test_a_pid_that_is_used_again_is_another_process(crowd_program, tmp_path):
    """A server that is started with the launcher's pid of the one before lives another life; so does anything else."""
    server = Server(crowd_program, free_port(), tmp_path / "server.log")
    with running([server]):
        async with ExporterProcess(**QUICK) as exporter:
            await exporter.until(lambda scrape: scrape.value("server_restarts_total", server=server.name) == 0)
            pid = server.pid
            for _ in range(200):
                server.stop()
                next_pid_is(pid)
                server.start()
                if server.pid == pid:
                    break
            assert server.pid == pid
            await exporter.until(lambda scrape: (scrape.value("server_restarts_total", server=server.name) or 0) >= 1)
            for _ in range(200):
                server.stop()
                next_pid_is(pid)
                stranger = subprocess.Popen(["sleep", "60"])
                if stranger.pid == pid:
                    break
                stranger.kill()
                stranger.wait()
            try:
                assert stranger.pid == pid
                await exporter.until(lambda scrape: not scrape.all("process_state", server=server.name))
            finally:
                stranger.kill()
                stranger.wait()
            assert "Traceback" not in exporter.log


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    FILE *file = clock == CLOCK_REALTIME ? fopen(getenv("CLOCK_STEP"), "r") : NULL;
    long step = 0;
    if (file && fscanf(file, "%ld", &step) == 1) now->tv_sec += step;
    if (file) fclose(file);
    return result;
}
"""


async def test_a_clock_that_is_set_makes_no_hang_and_no_restart(crowd_program, tmp_path):
    """Half a day back and forward: verdict, start, ages and counts stay, and the times follow the clock."""
    source, library, step = tmp_path / "clock.c", tmp_path / "clock.so", tmp_path / "step"
    source.write_text(CLOCK)
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    step.write_text("0")
    environ = {"LD_PRELOAD": str(library), "CLOCK_STEP": str(step)}
    server = Server(crowd_program, free_port(), tmp_path / "server.log")
    with running([server]):
        async with ExporterProcess(environ, **QUICK) as exporter:

            def well(scrape):
                return scrape.value("health_success", server=server.name, path="/health") == 1

            before = await exporter.until(well)
            for seconds in (-43_200, 43_200, 0):
                step.write_text(str(seconds))
                told = before.value("snapshot_timestamp_seconds") + seconds
                scrape = await exporter.until(
                    lambda s, told=told: well(s) and abs(s.value("snapshot_timestamp_seconds") - told) < 300
                )
                assert scrape.holding("server_verdict", "verdict", server=server.name) <= {"idle", "busy", "unknown"}
                assert scrape.value("server_restarts_total", server=server.name) == 0
                begun = [
                    one.value("process_start_time_seconds", server=server.name, process="scheduler_TP0")
                    for one in (before, scrape)
                ]
                assert begun[1] - begun[0] == pytest.approx(seconds, abs=1)
                age = scrape.age("health_last_success_timestamp_seconds", server=server.name)
                assert -1 < age < 60
            assert "Traceback" not in exporter.log
