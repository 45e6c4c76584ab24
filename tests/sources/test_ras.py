"""NCCL RAS: what answers of every kind tell, over real connections, and what becomes of one that is none."""

import asyncio
import socket
import time
from contextlib import AsyncExitStack

import msgspec
import pytest

from ras_server import RasServer, as_json, as_text, communicator, listening
from stallwatch.snapshot import Launch, Process, Server
from stallwatch.sources import ras
from stallwatch.sources.ras import Deadlines, Port, RasReading
from stallwatch.sources.ras_answer import Count, Lost

QUICK = Deadlines(attempt=0.2, answer=2.0, between=0.01)
PIDS = range(100, 108)


def server(pids=PIDS):
    """Return a server of these processes, the ranks TP0, TP1, ..."""
    ranks = (Process(pid, 1, 0.0, "scheduler", f"scheduler_TP{n}", f"TP{n}") for n, pid in enumerate(pids))
    return Server("here", "sglang", Launch(), (Process(99, 1, 0.0, "launcher", "launcher"), *ranks))


async def read(port, namespaced=None, deadlines=QUICK, address=None, *, listens=True):
    """Ask on this port of the loopback address."""
    known = Port(listens, namespaced or {}, f"127.0.0.1:{port}" if address is None else address)
    return await ras.read(server(), known, deadlines, lambda: {"10.0.0.1"})


async def reading(*bodies, **keywords):
    """Return what is read where these bodies are answered."""
    async with RasServer(*bodies) as there:
        found, failures = await read(there.port, **keywords)
    assert failures == ()
    return found


async def refused(*bodies, **keywords):
    """Return the only failure of a read that gives nothing."""
    async with RasServer(*bodies, **keywords) as there:
        found, (failure,) = await read(there.port)
    assert (found, failure.server) == (None, "here")
    return failure


async def test_it_is_asked_twice_as_the_protocol_has_it():
    """Each look is a connection of its own, since the server closes it."""
    begun = time.monotonic()
    async with RasServer(as_json(communicator(PIDS, [7] * 8))) as there:
        found, failures = await read(there.port, deadlines=Deadlines(between=0.3))
    assert there.heard == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json", "VERBOSE STATUS"] * 2
    assert (failures, found.server, [look.json for look in found.looks]) == ((), "here", [True, True])
    assert time.monotonic() - begun >= 0.3
    assert found.looks[1].at - found.looks[0].at >= 0.3
    (one,) = found.looks[0].answer.communicators
    assert (one.id, one.size, one.heard, one.lost, one.failed) == ("0xfeed", 8, 8, (), ())
    names = tuple(f"TP{n}" for n in range(8))
    assert [(operation.name, operation.counts) for operation in one.operations] == [
        ("AllReduce", (Count(7, 8, names),)),
        ("AllGather", (Count(12, 8, names),)),
    ]


async def test_ranks_that_have_launched_fewer_are_named():
    """The largest group comes first."""
    found = await reading(as_json(communicator(PIDS, [1204] * 5 + [1203] + [1204] * 2)))
    counts = found.looks[0].answer.communicators[0].operations[0].counts
    assert counts[0].size == 7
    assert counts[1] == Count(1203, 1, ("TP5",))


async def test_lost_and_failed_ranks_are_named():
    """One is dead, one does not answer, one answers without the communicator, one reports an error."""
    missing = ((5, 105, True), (6, 106, False))
    one = communicator([100, 101, 102, 103, 104], [7] * 5, missing, failed=(103,))
    one["missing_ranks"].append({"rank": 7, "host": "10.0.0.2", "pid": 107, "status": {"unresponsive": False}})
    (found,) = (await reading(as_json(one))).looks[0].answer.communicators
    assert found.lost == (Lost("TP5", "dead"), Lost("TP6", "unresponsive"), Lost("rank 7 on 10.0.0.2", "absent"))
    assert found.failed == ("TP3",)


async def test_other_jobs_on_the_port_are_only_counted():
    """All jobs of a node share the port; a rank of another node may well have the same pid."""
    other, elsewhere = communicator([555, 556], [1, 2]), communicator(PIDS, [1] * 8, host="10.0.0.2")
    found = await reading(as_json(other, elsewhere, communicator(PIDS, [7] * 8, host="10.0.0.1")))
    answer = found.looks[0].answer
    assert (answer.others, [one.operations[0].counts[0].launched for one in answer.communicators]) == (2, [7])
    failure = await refused(as_json(other, elsewhere))
    assert (failure.reason, "2 communicators" in failure.detail) == ("other_job", True)


async def test_a_process_in_a_container_is_told_by_the_pid_it_has_there():
    """NCCL knows no other."""
    inside = {pid: (pid, pid - 70) for pid in PIDS}
    found = await reading(as_json(communicator(range(30, 38), [7] * 8)), namespaced=inside)
    assert found.looks[0].answer.communicators[0].operations[0].counts[0].ranks[5] == "TP5"
    async with RasServer(as_json(communicator(PIDS, [7] * 8))) as there:
        _, (failure,) = await read(there.port, inside)
    assert failure.reason == "other_job"


async def test_frozen_processes_that_share_the_port_are_got_past():
    """The kernel gives a connection to any of the listeners; one that never accepts costs an attempt."""
    frozen = listening()
    frozen.setblocking(False)
    port, body, reached = frozen.getsockname()[1], as_json(communicator(PIDS, [7] * 8)), False
    async with AsyncExitStack() as alive:
        for _ in range(6):
            await alive.enter_async_context(RasServer(body, port=port))
        while not reached:
            found, failures = await read(port, deadlines=Deadlines(attempt=0.1, between=0.0))
            assert (len(found.looks), failures) == (2, ())
            try:
                frozen.accept()[0].close()
                reached = True
            except BlockingIOError:
                continue
    frozen.close()


async def test_where_all_are_frozen_it_is_given_up():
    """Six attempts, no more."""
    with listening() as frozen:
        begun = time.monotonic()
        found, (failure,) = await read(frozen.getsockname()[1])
        frozen.setblocking(False)
        for _ in range(6):
            frozen.accept()[0].close()
        with pytest.raises(BlockingIOError):
            frozen.accept()
    assert (found, failure.reason) == (None, "timeout")
    assert 1.2 <= time.monotonic() - begun < 3


async def test_where_nobody_listens_it_is_not_waited():
    """Nor where the caller has seen no listener of the server: another job's would answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        _, (failure,) = await read(free.getsockname()[1])
    assert failure.reason == "refused"
    async with RasServer(as_json()) as there:
        _, (failure,) = await read(there.port, listens=False)
    assert (failure.reason, there.heard) == ("not_listening", [])


@pytest.mark.parametrize(
    "address", ["10.9.9.9:28028", "example.org:28028", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", ":", "[::2]:1"]
)
async def test_an_address_in_an_environment_leads_nowhere_else(address):
    """A server may set any."""
    _, (failure,) = await read(0, address=address)
    assert failure.reason == "not_local"


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0", "127.0.0.1"])
async def test_where_it_listens_it_is_asked(host):
    """The default is localhost, and an address that stands for all of them is asked on the loopback one."""
    async with RasServer(as_json(communicator(PIDS, [7] * 8))) as there:
        found, failures = await read(0, address=f"{host}:{there.port}")
    assert (len(found.looks), failures) == (2, ())


async def test_a_second_look_that_fails_leaves_the_first():
    """What was told once is kept, and that it was once is said."""
    async with RasServer(as_json(communicator(PIDS, [7] * 8)), b"no") as there:
        found, (failure,) = await read(there.port)
    assert (len(found.looks), failure.reason) == (1, "garbage")


async def test_a_reading_survives_json():
    """What is written into a bundle can be read from it again."""
    found = await reading(as_json(communicator(PIDS, [7] * 8, ((8, 1, True),))))
    assert msgspec.json.decode(msgspec.json.encode(found), type=RasReading) == found


DEEP = b'{"communicators": ' + b"[" * 100000


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "garbage"),
        (b"not JSON", "garbage"),
        (b'{"communicators": 3}', "garbage"),
        (as_json(communicator(PIDS, [1 << 70] * 8)), "garbage"),
        (as_json({**communicator(PIDS, [1] * 8), "size": -(1 << 80)}), "garbage"),
        (DEEP, "garbage"),
        (b'{"communicators": [], "nccl_version": "\xff"}', "garbage"),
        (b" " * (ras.MOST_BYTES + 1), "too_much"),
    ],
)
async def test_an_answer_of_a_stranger_is_a_failure(body, reason):
    """Any program may listen there."""
    assert (await refused(body)).reason == reason


async def test_what_a_stranger_names_is_cleaned_and_bounded():
    """A terminal or a page cannot be spoken to, and a flood of ranks is cut."""
    bad = communicator(PIDS, [7] * 8, hash="\x1b[2J" * 99)
    bad["ranks"] += [{"rank": 9 + n, "pid": 1, "host": "\x1b" * 99} for n in range(5000)]
    bad["ranks"][0]["collective_counts"] = {f"{n}\x07": 1 for n in range(99)}
    (one,) = (await reading(as_json(bad))).looks[0].answer.communicators
    assert "\x1b" not in one.id
    assert (len(one.id), len(one.operations), one.heard) == (64, 16, 5008)
    assert sum(count.size for count in one.operations[0].counts) == 2048
    assert one.operations[0].name == "0?"


@pytest.mark.parametrize(
    ("says", "stays", "reason"),
    [
        (b"x" * 99999, False, "garbage"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False, "garbage"),
        (b"", False, "refused"),
        (b"", True, "timeout"),
        (b"SERVER PROTOCOL 2\n", True, "timeout"),
        (b"SERVER PROTOCOL 2\nOK\nOK\n{", True, "timeout"),
    ],
)
async def test_one_that_only_listens_or_talks_of_other_things_is_given_up(says, stays, reason):
    """A line without an end, an HTTP server, and an answer that never ends."""
    gone = asyncio.Queue()

    async def talk(reader, writer):
        writer.write(says)
        while stays and await reader.read(99):
            continue
        writer.close()
        gone.put_nowait(None)

    there = await asyncio.start_server(talk, "127.0.0.1", 0)
    found, (failure,) = await read(there.sockets[0].getsockname()[1], deadlines=Deadlines(0.2, 0.3, 0.0))
    await gone.get()
    there.close()
    assert (found, failure.reason) == (None, reason)


async def test_an_older_nccl_is_read_as_text():
    """It says that it knows no JSON, which a stranger may say as well."""
    group = "#0-0 (00000000deadbeef) INCOMPLETE\n  Rank 3 -- GPU 3 managed by process 103 on node 127.0.0.1\n"
    async with RasServer(as_text(group), json_too=False) as there:
        found, failures = await read(there.port)
    assert there.heard[2:4] == ["SET FORMAT json", "VERBOSE STATUS"]
    assert (failures, [look.json for look in found.looks]) == ((), [False, False])
    assert found.looks[0].answer.communicators[0].lost == (Lost("TP3", "unresponsive"),)
    assert (await refused(b"hello\n", json_too=False)).reason == "garbage"
