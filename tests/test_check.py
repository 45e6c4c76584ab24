"""Check: what a person who is logged in is told, by the exporter or without one, and the exit code for scripts."""

import asyncio
import json
import os
import re
import sys
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from exporter_process import ExporterProcess
from stallwatch.check import exit_code
from stallwatch.cli import main
from stallwatch.simulation.pager import free_port
from stallwatch.simulation.played import PlayedServer
from stallwatch.terminal.servers import lines
from stallwatch.verdict import VERDICTS

RANKS = ("sglang::scheduler_TP0", "sglang::scheduler_TP1")
PROMISED = {"server", "engine", "verdict", "signature", "since", "reason", "missing"}
NOW = 1_800_000_000.0
STALLED = {
    "server": "sglang:30000",
    "engine": "sglang",
    "verdict": "stalled",
    "signature": "cold_deadlock",
    "since": NOW - 720,
    "reason": "Weights are loaded (76 GiB on each of 8 GPUs) but nothing has moved for 12 min: GPUs 0 %, schedulers "
    "asleep, log without progress since `load_end` on TP5 for 12 min, port 30000 refuses connections.",
    "missing": ["engine: refused", "socket: other_network_namespace", "process: the first round takes 5 s so far"],
    "ranks": [
        {"process": f"scheduler_DP{n}_TP0_EP0", "rank": f"DP{n}_TP0_EP0", "state": "S", "cpu_cores": 0.004, "phase": at}
        for n, at in enumerate(["allocating_memory", "capturing_graphs", None])
    ],
}
IDLE = STALLED | {"server": "vllm:8000", "verdict": "idle", "signature": "", "reason": "Nothing is owed.", "ranks": []}


@pytest.fixture
async def played(tmp_path):
    """Have a played server of two ranks that stands in its start, and end it."""
    server = PlayedServer(tmp_path, ["--model-path", "/models/m", "--tp-size", "2", "--port", str(free_port())])
    server.name = f"sglang:{server._arguments[-1]}"
    await server.start()
    await server.spawn(*RANKS)
    await server.log("[2026-01-01 00:00:00 TP0] Load weight begin. avail mem=94.40 GB")
    yield server
    await server.stop()


@asynccontextmanager
async def answering(body):
    """Serve one body under any path, and yield the address of that."""

    async def answer(_request):
        return web.Response(body=body)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def run(*arguments):
    """Run `stallwatch check` and return its exit code, output and errors."""
    command = (sys.executable, "-m", "stallwatch", "check", *arguments)
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(*command, **pipes, env=os.environ)
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (("idle", "busy", "starting", "stopping"), 0),
        (("slow", "idle"), 1),
        (("suspect", "unknown"), 1),
        (("stalled", "suspect"), 2),
        (("dead", "idle", "unknown"), 2),
        (("unknown", "idle"), 3),
        ((), 3),
    ],
)
def test_the_worst_server_makes_the_exit_code(verdicts, code):
    """Hung is worse than doubtful, which is worse than unknown; no server is unknown."""
    assert exit_code([{"verdict": verdict} for verdict in verdicts]) == code


def test_every_verdict_has_an_exit_code():
    """None falls through to unknown but unknown itself."""
    assert [verdict for verdict in VERDICTS if exit_code([{"verdict": verdict}]) == 3] == ["unknown"]


async def test_what_the_exporter_says_is_told(capsys):
    """One server can be picked; the exit code is about that one."""
    async with answering(json.dumps({"time": NOW, "servers": [STALLED, IDLE]})) as url:
        assert await asyncio.to_thread(main, ["check", "--url", url]) == 2
        assert "STALLED" in capsys.readouterr().out
        assert await asyncio.to_thread(main, ["check", "--url", url, "--server", "vllm:8000"]) == 0
        assert "STALLED" not in capsys.readouterr().out
        assert await asyncio.to_thread(main, ["check", "--url", url, "--server", "vllm:8000", "--json"]) == 0
        assert [entry["server"] for entry in json.loads(capsys.readouterr().out)["servers"]] == ["vllm:8000"]
        assert await asyncio.to_thread(main, ["check", "--url", url, "--server", "nobody"]) == 3
        assert capsys.readouterr().out == "No inference server is seen on this node.\n"


async def test_a_running_exporter_is_asked(played):
    """It gives the same JSON as the exporter, and does not look itself."""
    async with ExporterProcess(DISCOVERY__INTERVAL="1s") as exporter:
        await exporter.until(lambda scrape: scrape.value("server_processes", server=played.name, role="scheduler") == 2)
        url = f"http://127.0.0.1:{exporter.port}"
        code, out, err = await run("--json", "--server", played.name, "--url", url)
        status = json.loads(out)
        assert "looked_for" not in status
        assert [entry["server"] for entry in status["servers"]] == [played.name]
        known = next(
            entry
            for entry in json.loads(await exporter.get("/api/v1/status"))["servers"]
            if entry["server"] == played.name
        )
        assert status["servers"][0].keys() == known.keys() >= PROMISED
        assert (code, err) == (exit_code(status["servers"]), "")
        rows = {row["rank"]: row for row in status["servers"][0]["ranks"]}
        assert {row["pid"] > 0 and row["threads"] >= 1 for row in rows.values()} == {True}
        assert status["servers"][0]["processes"]["scheduler"] == status["servers"][0]["expected_schedulers"] == 2
        assert status["servers"][0]["limits"]["stalled"] == 240
        _, out, _ = await run("--server", played.name, "--url", url)
        assert re.search(rf"^. TP1 +{rows['TP1']['pid']} ", out, re.MULTILINE)
        assert out.startswith(f"{played.name}: ")


async def test_without_an_exporter_it_looks_itself(played):
    """A look of seconds finds the server and its ranks, says that it was one, and leaves nothing on standard error."""
    code, out, err = await run("--for", "8s", "--server", played.name, "--look")
    assert out.startswith(f"{played.name}: ")
    assert out.splitlines()[1].startswith("  No exporter was asked; this is a look of 8 s")
    assert re.search(r"^. TP1 +\d+ +", out, re.MULTILINE)
    assert "scheduler 2 of 2" in out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 100
    assert err == ""
    assert code in {0, 1, 3}  # a young start; whether it moves depends on this machine


NO_ANSWERS = [
    b"",
    b"<html>",
    b"[]",
    b"null",
    b'{"status": "ok"}',
    b'{"time": 1, "servers": [1]}',
    b'{"time": 1, "servers": [{"server": "x", "verdict": "idle"}]}',
    b"[" * 100_000,
]


def test_what_a_terminal_would_obey_is_not_printed():
    """Whoever answers on that port, or names a process, moves no cursor and forges no line."""
    evil = "\x1b[2J\nsglang:1: IDLE\r"
    rank = dict.fromkeys(("process", "rank", "state", "phase", "wchan"), evil) | {"cpu_cores": None, "odd": [evil]}
    probe = dict.fromkeys(("path", "result", "scope"), evil) | {"latency": 1.0, "at": NOW}
    names = dict.fromkeys(("server", "signature", "reason", "phase", "marker", "marker_rank"), evil)
    more = {"missing": [evil], "ranks": [rank], "health": [probe], "processes": {evil: 1}}
    entry = STALLED | names | more | {"last_movement": {evil: NOW, "log": NOW}, "owed_since": {evil: NOW}}
    text = [line.text for line in lines({"time": NOW}, [entry])]
    assert all(line.isprintable() for line in text)
    assert not any(line.startswith("sglang:1") for line in text)
    assert max(map(len, text)) <= 100


@pytest.mark.parametrize("body", NO_ANSWERS)
async def test_what_is_no_exporter_is_no_answer(body, capsys):
    """Another program on that port is none to believe; a look of seconds does not stand in for who was meant."""
    async with answering(body) as url:
        assert await asyncio.to_thread(main, ["check", "--for", "100ms", "--url", url]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"stallwatch: no exporter answers at {url} (--look looks itself, at this node)\n"
