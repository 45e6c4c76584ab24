"""Gathering: each source in its own time, each free to fail alone, and py-spy only where it cannot hang."""

import asyncio
from dataclasses import replace

import msgspec
import pytest

import wedged
from readings import NAME, a_server
from stallwatch.config import Config
from stallwatch.evidence.gathering import SOURCES, Gatherer, timed
from stallwatch.sections import EvidenceConfig
from stallwatch.snapshot import Failure
from stallwatch.sources import threads
from stallwatch.sources.threads import ProcessThreads, ThreadsReading
from stallwatch.workers import WorkerError


class Readers:
    """Workers that answer as they are told, by the name of the source; others give an empty reading."""

    def __init__(self, answers=None, *, stacks=False):
        self.config = msgspec.structs.replace(Config(), evidence=EvidenceConfig(stacks=stacks))
        self.asked = []
        self.ended = []
        self._answers = answers or {}

    async def ask(self, worker, name, reading, targets):
        """Answer one request."""
        self.asked.append((worker, name, targets[0].get("server", NAME)))
        answer = self._answers.get(name, reading(1.0))
        if isinstance(answer, Exception):
            raise answer
        return answer, ()

    def end_worker(self, name):
        """Note that the worker may end."""
        self.ended.append(name)


def by_name(found):
    """Return what was found by its source."""
    return {one.source: one for one in found}


async def test_every_source_is_asked_about_this_server():
    """In their order, and the worker that was spawned for it ends."""
    readers = Readers()
    found = await Gatherer(readers).gather(a_server(ranks=1, log_path="/data/server.log"))
    assert [name for _, name, _ in readers.asked] == [source.name for source in SOURCES]
    assert {server for _, _, server in readers.asked} == {NAME}
    assert [one.source for one in found] == [source.name for source in SOURCES]
    assert readers.ended == ["evidence"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (WorkerError("timeout", "no answer in 5 s, at: pid 101", "pid 101"), "timeout"),
        (ValueError("a prompt"), "error"),
        (OSError(5, "Input/output error"), "error"),
    ],
)
async def test_a_source_fails_alone(error, reason):
    """The others are asked all the same, and why it is missing quotes nothing."""
    found = by_name(
        await Gatherer(Readers({"descriptors": error})).gather(a_server(ranks=1, log_path="/data/server.log"))
    )
    assert found["descriptors"].reading is None
    (failure,) = found["descriptors"].failures
    assert (failure.reason, failure.server) == (reason, NAME)
    assert "prompt" not in failure.detail
    assert all(one.reading for name, one in found.items() if name != "descriptors")


async def test_a_source_that_gives_no_answer_is_given_up():
    """After its time, and the time is told."""

    async def hang():
        await asyncio.Event().wait()

    found = await timed("ras", a_server(), hang(), 0.05)
    assert found.failures == (Failure("ras", "timeout", "no answer in 0.05 s", NAME),)
    assert found.seconds >= 0.05


async def test_a_server_that_has_gone_has_no_processes_to_read():
    """What is of the node is read still."""
    gone = replace(a_server(), processes=())
    found = by_name(await Gatherer(Readers()).gather(gone))
    assert found["threads"].failures[0].reason == "nothing_there"
    assert found["gpu_state"].reading


async def test_python_stacks_are_read_on_request_only():
    """By default py-spy is not called."""
    assert "stacks" not in by_name(await Gatherer(Readers()).gather(a_server()))
    assert "stacks" in by_name(await Gatherer(Readers(stacks=True)).gather(a_server()))


async def test_py_spy_is_not_called_where_it_might_hang():
    """Not for a process with a thread in uninterruptible sleep, and not where that is not known."""
    unknown = Readers({threads.NAME: WorkerError("timeout", "no answer")}, stacks=True)
    found = by_name(await Gatherer(unknown).gather(a_server()))
    assert found["stacks"].failures[0].reason == "threads_unknown"
    assert found["stacks"].broken
    process = ProcessThreads(NAME, "scheduler_TP0", "TP0", 101, descendant=False, threads=(), uninterruptible=True)
    assert threads.uninterruptible(ThreadsReading(1.0, processes=(process,))) == {101}
    with wedged.process("nothing") as running:  # of which the threads could not be read
        server = replace(a_server(), processes=wedged.server_of(running.pid).processes)
        hidden = Readers({threads.NAME: ThreadsReading(1.0)}, stacks=True)
        found = by_name(await Gatherer(hidden).gather(server))
    assert found["stacks"].failures[0].reason == "uninterruptible"


async def test_nccl_is_asked_only_where_it_listens():
    """And not at all of a server of one rank."""
    assert "ras" not in by_name(await Gatherer(Readers()).gather(a_server(ranks=1, log_path="/data/server.log")))
    found = by_name(await Gatherer(Readers()).gather(a_server()))
    assert found["ras"].failures[0].reason == "not_listening"
    assert not found["ras"].broken
    elsewhere = a_server(address_absence="other_network_namespace: it is in a container")
    for one in (elsewhere, a_server(network="net:[4026532000]")):
        found = by_name(await Gatherer(Readers()).gather(one))
        assert found["ras"].failures[0].reason == "other_network_namespace"
