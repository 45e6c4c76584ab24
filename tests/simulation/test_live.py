"""Live: a scenario played by real processes shows what it says, and the real exporter judges it."""

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import pytest

from stallwatch.simulation.live import shortened
from stallwatch.simulation.pager import free_port

STOPPED = """
name: a rank that is stopped
node: {gpus: 2}
servers:
  - args: [--tp-size, "2", --port, "PORT"]
    segments:
      - {for: 40s, phase: ready, log: progress, health: ok, engine: {running: 2, tokens_per_second: 500},
         gpu: {utilization: 80, memory_gib: 40, power_watts: 400}, scheduler: {cpu: 0.1}}
      - {for: 460s, log: silent, health: timeout, gpu: {utilization: 0, power_watts: 60},
         processes: {scheduler_TP1: stopped}}
"""


async def demo(*arguments, within=90):
    """Run `stallwatch demo` and return its exit code and what it prints."""
    command = [sys.executable, "-m", "stallwatch", "demo", "--port", str(free_port()), *arguments]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=STDOUT, env={**os.environ, "COLUMNS": "200"}
    )
    output, _ = await asyncio.wait_for(process.communicate(), within)
    return process.returncode, re.sub(r"\n {10}", " ", output.decode())


@pytest.mark.timeout(120)
async def test_a_stopped_rank_is_found_by_the_real_exporter(tmp_path):
    """Real processes serve, one is stopped by SIGSTOP, and the verdict names it; nothing is left afterwards."""
    port = free_port()
    path = tmp_path / "stopped.yml"
    path.write_text(STOPPED.replace("PORT", str(port)))
    code, output = await demo(str(path), "--seconds", "25")
    assert code == 0, output
    assert f"sglang:{port}: busy" in output
    assert f"sglang:{port}: stalled (stopped)" in output
    assert "TP1" in output
    assert not _left(port)


async def test_an_unknown_scenario_is_answered_with_those_that_are_like_it():
    """And with how to list them all."""
    code, output = await demo("cold_deadlock_after_weight")
    assert code == 2
    assert "did you mean cold_deadlock_after_weights" in output
    assert "replay --list" in output


def test_limits_are_shortened_as_much_as_time():
    """At ten times the speed a limit of 240 s is 24 s, and none is shorter than two seconds."""
    assert shortened({"stalled": 240.0, "lost_process": 15.0}, 10.0) == {"stalled": 24.0, "lost_process": 2.0}


def _left(port):
    """Return the processes of a played server that are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"sglang.launch_server" in command and str(port).encode() in command:
                found.append(entry.name)
    return found
