"""Check: what a person who is logged in is told, by the exporter or without one, and the exit code for scripts."""

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from exporter_process import ExporterProcess
from stallwatch.check import COLUMNS, exit_code, lines
from stallwatch.cli import main
from stallwatch.simulation.pager import free_port
from stallwatch.simulation.played import PlayedServer
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


def test_a_person_sees_a_sentence_and_a_table_in_100_columns():
    """First what and since when, then why, then one row for each rank under its heading, then what is missing."""
    text = lines({"time": NOW}, [STALLED])
    assert max(map(len, text)) <= 100
    assert text[0] == "sglang:30000: STALLED (cold_deadlock) for 12 min"
    assert " ".join(line.strip() for line in text[1:4]).startswith(STALLED["reason"][:-1])
    heading = next(number for number, line in enumerate(text) if line.split() == list(COLUMNS))
    assert text[heading + 1].split() == ["scheduler_DP0_TP0_EP0", "DP0_TP0_EP0", "S", "0", "%", "allocating_memory"]
    assert [line.index("S") for line in text[heading + 1 : heading + 4]] == [text[heading].index("state")] * 3
    assert text[heading + 4].startswith("  missing: engine: refused, ")


def test_why_no_server_is_seen_is_told():
    """Where the processes of others are hidden that is no empty node; what else is missing is no reason."""
    hidden = {"collector": "discovery", "server": "", "reason": "processes_hidden", "detail": "/proc hides processes"}
    others = [{**hidden, "collector": "gpu"}, {**hidden, "server": "sglang:30000"}]
    text = lines({"time": NOW, "failures": [hidden, *others]}, [])
    assert text == ["No inference server is seen on this node.", "  /proc hides processes"]


def test_servers_without_ranks_have_no_table():
    """Two servers follow one another."""
    text = lines({"time": NOW}, [IDLE | {"missing": []}, STALLED])
    assert text[:2] == ["vllm:8000: IDLE for 12 min", "  Nothing is owed."]
    assert text[2].startswith("sglang:30000: STALLED")


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


async def test_without_an_exporter_it_looks_itself(played):
    """A look of seconds finds the server and its ranks, says that it was one, and leaves nothing on standard error."""
    nobody = f"http://127.0.0.1:{free_port()}"
    code, out, err = await run("--for", "3s", "--server", played.name, "--url", nobody)
    assert out.startswith("No exporter answers; this is a look of 3 s")
    assert f"\n{played.name}: " in out
    assert "scheduler_TP1  TP1" in out
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
    rank = dict.fromkeys(("process", "rank", "state", "phase"), evil) | {"cpu_cores": None}
    entry = STALLED | {"server": evil, "signature": evil, "reason": evil, "missing": [evil], "ranks": [rank]}
    text = lines({"time": NOW}, [entry])
    assert all(line.isprintable() for line in text)
    assert not any(line.startswith("sglang:1") for line in text)


@pytest.mark.parametrize("body", NO_ANSWERS)
async def test_what_is_no_exporter_is_no_answer(body, capsys):
    """Another program on that port does not make the command fail: it looks itself."""
    async with answering(body) as url:
        code = await asyncio.to_thread(main, ["check", "--for", "100ms", "--url", url, "--server", "nobody", "--json"])
    assert code == 3
    assert json.loads(capsys.readouterr().out)["looked_for"] == 0.1
