"""What is said of a real SGLang server: while it starts, serves, is stopped, killed, and told to end.

It runs on CPUs, with two ranks and limits of seconds. `make test-real` installs it first; `make test` leaves it out.
"""

import signal
from itertools import dropwhile

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

A_START = 240.0
A_DOUBT = 10  # seconds; it takes two minutes to be told to a person


async def ready(server, watch):
    """Start a server and return once it is idle and a health probe of it was answered."""
    await server.start()
    await watch.until("idle", within=A_START)
    await watch.until("idle", probes=["ok"])


async def test_it_starts_serves_and_ends_on_purpose(server, watch):
    """Starting all the way, then idle, busy with a request, stopping after SIGTERM, and then not there any more."""
    await ready(server, watch)
    begun = list(dropwhile(lambda said: said.verdict in {"", "unknown"}, watch.said))
    assert {said.verdict for said in begun} <= {"starting", "suspect", "busy", "idle"}
    assert len([said for said in begun if said.verdict == "suspect"]) <= A_DOUBT
    request = server.generate()
    await watch.until("busy")
    assert await request == 1500
    await watch.until("idle")
    server.generate()
    await watch.until("busy")
    server.process.terminate()
    said = await watch.until("stopping")
    assert "told to end" in said.reason
    await watch.until("", within=A_START)
    await server.process.wait()
    assert {said.verdict for said in await watch.hear(10)} == {""}


@pytest.mark.parametrize("with_traffic", [True, False], ids=["with traffic", "without traffic"])
async def test_a_rank_is_stopped(server, watch, with_traffic):
    """SIGSTOP of one rank is stalled with its name, whether or not somebody asks for tokens; SIGCONT mends it."""
    await ready(server, watch)
    if with_traffic:
        request = server.generate()
        await watch.until("busy")
    watch.right.add("stalled")
    server.send(signal.SIGSTOP, "sglang::scheduler_TP1")
    said = await watch.until("stalled")
    assert (said.signature, "TP1 is stopped" in said.reason) == ("stopped", True), said
    server.send(signal.SIGCONT, "sglang::scheduler_TP1")
    await watch.until("busy", "idle")
    watch.right.clear()
    if with_traffic:
        assert await request == 1500
    await watch.until("idle")


async def test_a_start_hangs_after_the_weights(server, watch):
    """It is stalled, its port refuses, and nothing of it is called dead."""
    await server.start(SGLANG_TEST_STUCK_SCHEDULER_INIT="3600")
    await watch.until("starting")
    watch.right.add("stalled")
    said = await watch.until("stalled", within=A_START)
    assert f"port {server.port} refuses connections" in said.reason
    assert said.probes == ["refused"]
    assert {heard.verdict for heard in await watch.hear(10)} == {"stalled"}


async def test_the_detokenizer_is_killed(server, watch):
    """The server lives on with a zombie: dead, by its name."""
    await ready(server, watch)
    watch.right.add("dead")
    server.send(signal.SIGKILL, "sglang::detokenizer")
    said = await watch.until("dead")
    assert (said.signature, "detokenizer" in said.reason) == ("lost_process", True), said


async def test_a_rank_is_killed(server, watch):
    """All of the server goes at once: a crash, which is told of though nothing is left."""
    await ready(server, watch)
    watch.right.add("dead")
    server.send(signal.SIGKILL, "sglang::scheduler_TP1")
    await server.process.wait()
    said = await watch.until("dead", signature="crashed")
    assert not server.pids()
    assert said.entry["ranks"] == [] or all(rank["missing_since"] for rank in said.entry["ranks"])
