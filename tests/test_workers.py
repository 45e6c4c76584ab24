"""Workers: what they cost when they are late, die or talk nonsense."""

import asyncio
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from stallwatch.child import _send
from stallwatch.workers import ABANDONED_LIMIT, Deadlines, Worker, WorkerError
from stub_reader import StubReading

TESTS = str(Path(__file__).parent)
ENVIRON = {**os.environ, "PYTHONPATH": TESTS}
PATIENT = Deadlines(call=30, start=30, first_call=30, to_sigterm=0.1, to_sigkill=0.2)


@pytest.fixture
async def workers():
    """Make workers that are ended after the test."""
    made = []

    def make(deadlines=PATIENT, **options):
        made.append(Worker("stub", ["stub_reader"], options, deadlines, ENVIRON))
        return made[-1]

    yield make
    for worker in made:
        await worker.close()
        for child in tuple(worker._leaving):
            child.process.kill()
            await child.process.wait()
            await asyncio.sleep(0)


async def ask(worker, *actions, skip=()):
    """Return the decoded reply to one request."""
    return json.loads(await worker.call("stub", list(actions), skip))


async def until(condition):
    """Wait until something that another process does has happened."""
    while not condition():
        await asyncio.sleep(0.01)


async def late(worker):
    """Have a warm worker hang in a call with a short deadline, and return the error."""
    await ask(worker, {"do": "answer"})
    with pytest.raises(WorkerError) as caught:
        await ask(worker, {"do": "hang", "note": "pid 4242"})
    return caught.value


async def test_a_reading_comes_back_with_failures_and_options(workers):
    """A request is answered with the reading, the failures and what the worker was started with."""
    reply = await ask(workers(word="hello"), {"do": "answer"}, skip=["pid 7"])
    assert reply["failures"] == [{"collector": "stub", "reason": "told", "detail": "hello", "server": ""}]
    assert set(reply["reading"]) == {field.name for field in fields(StubReading)}
    assert reply["reading"]["skipped"] == ["pid 7"]


async def test_one_process_serves_many_requests(workers):
    """The worker keeps its process, and with it its state, from one request to the next."""
    worker = workers()
    pids = {(await ask(worker, {"do": "answer"}))["reading"]["pid"] for _ in range(3)}
    assert pids == {worker.pid}
    assert worker.state().restarts == 0


async def test_what_a_library_prints_does_no_harm(workers):
    """Output of a library does not get between the replies."""
    assert (await ask(workers(), {"do": "print"}))["reading"]


async def test_an_exception_becomes_a_failure_that_says_where(workers):
    """A reader that raises costs its reading and keeps its process."""
    worker = workers()
    reply = await ask(worker, {"do": "raise"})
    assert reply["reading"] is None
    assert reply["failures"][0]["reason"] == "error"
    assert re.fullmatch(r"KeyError at stub_reader\.py:\d+", reply["failures"][0]["detail"])
    assert (await ask(worker, {"do": "answer"}))["reading"]["pid"] == worker.pid


@pytest.mark.parametrize(
    ("action", "reason"), [("die", "worker_died"), ("garbage", "garbage"), ("partial", "worker_died")]
)
async def test_a_worker_that_fails_costs_one_reading(workers, action, reason):
    """Death, garbage and half a message cost one reading; the next request has a new worker."""
    worker = workers()
    first = (await ask(worker, {"do": "answer"}))["reading"]["pid"]
    with pytest.raises(WorkerError) as caught:
        await ask(worker, {"do": action})
    assert caught.value.reason == reason
    assert (await ask(worker, {"do": "answer"}))["reading"]["pid"] != first
    assert worker.state().restarts == 1


async def test_a_worker_killed_between_requests_is_replaced(workers):
    """A worker that was killed from outside is noticed at the next request at the latest."""
    worker = workers()
    await ask(worker, {"do": "answer"})
    os.kill(worker.pid, signal.SIGKILL)
    await until(lambda: not worker.state().up)
    assert (await ask(worker, {"do": "answer"}))["reading"]
    assert worker.state().up


async def test_a_late_worker_is_named_and_replaced(workers):
    """A call that never returns ends at its deadline, says what it was reading, and a new worker takes over."""
    worker = workers(Deadlines(call=0.2, start=30, first_call=30, to_sigterm=60, to_sigkill=60))
    error = await late(worker)
    assert (error.reason, error.stuck_in) == ("timeout", "pid 4242")
    assert worker.state().abandoned == 1
    assert (await ask(worker, {"do": "answer"}))["reading"]


async def test_what_says_that_it_is_slow_has_as_long_as_a_first_call(workers):
    """Its note decides, at the deadline; and when that is over as well, the note is told without its mark."""
    worker = workers(Deadlines(call=0.3, start=30, first_call=1.5, slowly=" (slow)"))
    await ask(worker, {"do": "answer"})
    pid = worker.pid
    assert (await ask(worker, {"do": "nap", "note": "driver (slow)"}))["reading"]["pid"] == pid
    with pytest.raises(WorkerError) as caught:
        await ask(worker, {"do": "nap", "note": "driver"})
    assert (caught.value.stuck_in, worker.pid) == ("driver", None)
    await ask(worker, {"do": "answer"})
    with pytest.raises(WorkerError, match=r"no answer in 1\.5 s, at: driver$") as caught:
        await ask(worker, {"do": "hang", "note": "driver (slow)"})
    assert caught.value.stuck_in == "driver"


async def test_giving_up_names_what_does_not_end(workers):
    """An idle child ends at once, also one in a short read; one that is stuck is told with its pid and note."""
    worker = workers(PATIENT)
    await ask(worker, {"do": "answer"})
    assert await worker.give_up(10.0) == ()
    await ask(worker, {"do": "answer"})
    reading = asyncio.ensure_future(ask(worker, {"do": "ignore", "note": "gpu 3 call"}))
    await asyncio.sleep(0.2)
    pid = worker.pid
    assert await worker.give_up(0.05) == (f"pid {pid}, which is stuck in gpu 3 call",)
    reading.cancel()


async def test_a_worker_that_is_replaced_on_purpose_is_no_restart(workers):
    """A renewal, a release and a request that is called off count nothing; one that dies afterwards does."""
    worker = workers()
    await ask(worker, {"do": "answer"})
    assert worker.retire()
    await ask(worker, {"do": "answer"})
    await worker.give_up(10.0)
    await ask(worker, {"do": "answer"})
    reading = asyncio.ensure_future(ask(worker, {"do": "hang", "note": "pid 4242"}))
    await asyncio.sleep(0)
    reading.cancel()
    await ask(worker, {"do": "answer"})
    assert worker.state().restarts == 0
    with pytest.raises(WorkerError):
        await ask(worker, {"do": "die"})
    await ask(worker, {"do": "answer"})
    assert worker.state().restarts == 1


async def test_a_late_worker_gets_sigterm_then_sigkill(workers):
    """A worker that takes no notice of SIGTERM is killed after its grace, without anybody waiting for it."""
    worker = workers(Deadlines(call=0.2, start=30, first_call=30, to_sigterm=0.1, to_sigkill=0.2))
    await ask(worker, {"do": "answer"})
    with pytest.raises(WorkerError):
        await ask(worker, {"do": "ignore"})
    await until(lambda: worker.state().abandoned == 0)


async def test_no_more_than_two_are_abandoned(workers):
    """With two workers stuck no third is started until one of them has ended."""
    worker = workers(Deadlines(call=0.2, start=30, first_call=30, to_sigterm=60, to_sigkill=60))
    pids = []
    for _ in range(ABANDONED_LIMIT):
        await ask(worker, {"do": "answer"})
        pids.append(worker.pid)
        with pytest.raises(WorkerError):
            await ask(worker, {"do": "hang"})
    with pytest.raises(WorkerError) as caught:
        await ask(worker, {"do": "answer"})
    assert caught.value.reason == "backed_off"
    os.kill(pids[0], signal.SIGKILL)
    await until(lambda: worker.state().abandoned == 1)
    assert (await ask(worker, {"do": "answer"}))["reading"]


async def test_requests_of_two_collectors_wait_for_each_other(workers):
    """One request is in flight at a time, and each gets its own answer."""
    worker = workers()
    replies = await asyncio.gather(*(ask(worker, {"do": "answer"}, skip=[str(n)]) for n in range(5)))
    assert [reply["reading"]["skipped"] for reply in replies] == [[str(n)] for n in range(5)]


async def test_a_request_given_up_does_not_answer_the_next_one(workers):
    """When the caller goes away in the middle, its answer is not taken for that of the next request."""
    worker = workers()
    await ask(worker, {"do": "answer"})
    given_up = asyncio.create_task(ask(worker, {"do": "hang"}))
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    assert (await ask(worker, {"do": "answer"}, skip=["x"]))["reading"]["skipped"] == ["x"]


async def test_a_request_given_up_while_the_worker_starts_leaves_no_process(workers):
    """When the caller goes away before the worker is ready, the worker is ended all the same."""
    worker = workers()
    given_up = asyncio.create_task(ask(worker, {"do": "answer"}))
    await until(lambda: worker.pid)
    pid = worker.pid
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    await until(lambda: not os.path.exists(f"/proc/{pid}"))
    assert (await ask(worker, {"do": "answer"}))["reading"]["pid"] != pid


async def test_a_stopped_worker_is_ended(workers):
    """A worker that somebody has stopped is late, and is let go on so that it can end."""
    worker = workers(Deadlines(call=0.2, start=30, first_call=30, to_sigterm=0.1, to_sigkill=60))
    await ask(worker, {"do": "answer"})
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(WorkerError) as caught:
        await ask(worker, {"do": "answer"})
    assert str(caught.value) == "no answer in 0.2 s, at: no read"
    await until(lambda: worker.state().abandoned == 0)


async def test_a_worker_that_cannot_be_started_is_an_error(workers):
    """Where no process can be started the error says so, and the next request tries again."""
    worker = workers()
    good, worker._arguments[0] = worker._arguments[0], "/nowhere/python"
    with pytest.raises(WorkerError) as caught:
        await ask(worker, {"do": "answer"})
    assert caught.value.reason == "not_started"
    worker._arguments[0] = good
    assert (await ask(worker, {"do": "answer"}))["reading"]


def test_workers_go_when_the_exporter_is_killed():
    """A worker whose exporter was killed ends by itself."""
    script = (
        "import asyncio, os, signal\n"
        "from stallwatch.workers import Deadlines, Worker\n"
        "async def main():\n"
        "    worker = Worker('stub', ['stub_reader'], {}, Deadlines())\n"
        "    await worker.call('stub', [])\n"
        "    print(worker.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env=ENVIRON, capture_output=True, timeout=30, check=False)
    pid = int(done.stdout)
    descriptor = _pidfd(pid)
    if descriptor is not None:
        assert select.select([descriptor], [], [], 20)[0], "the worker is still there"
        os.close(descriptor)


def _pidfd(pid):
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def test_workers_load_neither_aiohttp_nor_prometheus_client():
    """What costs 40 MiB per process stays in the exporter."""
    code = (
        "import sys, stallwatch.child, stallwatch.discovery, stallwatch.collectors.gpu, stallwatch.collectors.process, "
        "stallwatch.collectors.log, stallwatch.trial\n"
        "heavy = ('aiohttp', 'prometheus_client', 'asyncio', 'msgspec', 'yaml', 'watchdog')\n"
        "print([module for module in heavy if module in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"


def test_bytes_that_are_no_utf8_cost_no_reply():
    """A path with foreign bytes in it must not blind the exporter to all servers of the node."""
    out = io.BytesIO()
    _send(out, {"path": os.fsdecode(b"/tmp/caf\xe9.log")})
    assert json.loads(out.getvalue())["path"] == "/tmp/caf?.log"
