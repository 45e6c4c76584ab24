"""Servers in other network namespaces are asked there, and nowhere else."""

import asyncio
import os
import socket
import threading
from dataclasses import replace

import pytest

from contained import as_root, contained, nobody_listens
from procfs_tree import ProcTree
from stallwatch import networks
from stallwatch.api_keys import ApiKeys
from stallwatch.collectors.engine import EngineCollector
from stallwatch.collectors.health import HealthCollector
from stallwatch.config import EngineSettings, ProbeSettings
from stallwatch.http_probe import NotMadeError
from stallwatch.networks import Networks
from stallwatch.node.procfs import Procfs
from stallwatch.snapshot import Launch, Process, Server

LONG = ProbeSettings(timeout=10)
OURS = os.readlink("/proc/self/ns/net")


async def asked(server, doors=None, settings=LONG):
    """Return the result of one probe, and why there was none."""
    collector = HealthCollector(networks=doors or Networks())
    try:
        reading, failures = await collector.collect(server, settings)
    finally:
        await collector.close()
    result = reading.probes[0].result if reading else None
    return result, [(failure.reason, failure.detail) for failure in failures]


def server_of(*pids, network=OURS, address="127.0.0.1", port=1):
    """Return a server of these processes."""
    processes = tuple(Process(pid, 5, 0.0, "scheduler", f"scheduler_TP{pid}") for pid in pids)
    return Server("mine", "sglang", Launch(port=port), processes, address=address, network=network, incarnation="1")


def stay(_handle):
    """Enter no other namespace."""


@as_root
@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0"])
async def test_the_server_in_the_container_is_asked_and_not_the_one_beside_it(tmp_path, bound):
    """Both listen on one port of 127.0.0.1, each of its own; ours answers 500."""
    with (
        contained(tmp_path, bound=bound) as inside,
        contained(tmp_path, isolate=False, STATUS="500", port=inside.port) as ours,
    ):
        theirs, mine = inside.found(), ours.found()
        assert (theirs.address, theirs.listening, theirs.network) == (
            "127.0.0.1",
            True,
            os.readlink(f"/proc/{inside.pid}/ns/net"),
        )
        assert (mine.address, mine.network) == ("127.0.0.1", "")
        assert await asyncio.gather(asked(theirs), asked(mine), asked(theirs)) == [
            ("ok", []),
            ("http_error", []),
            ("ok", []),
        ]
        assert os.readlink("/proc/thread-self/ns/net") == OURS
        assert {os.readlink(f"/proc/self/task/{task}/ns/net") for task in os.listdir("/proc/self/task")} == {OURS}


@as_root
async def test_the_metrics_of_the_engine_are_read_there(tmp_path):
    """Its gauges say what is owed."""
    collector = EngineCollector()
    with contained(tmp_path) as inside:
        assert nobody_listens(inside.port)
        try:
            reading, failures = await collector.collect(inside.found(), EngineSettings())
        finally:
            await collector.close()
    assert failures == ()
    assert [rank.running for rank in reading.ranks] == [3.0]


@as_root
async def test_a_port_that_is_not_open_yet_refuses_there(tmp_path):
    """As a starting server does; what listens here on that port is not asked."""
    with contained(tmp_path) as inside, socket.create_server(("127.0.0.1", 0)) as here:
        server = inside.found()
        closed = replace(server, launch=replace(server.launch, port=here.getsockname()[1]))
        assert await asked(closed) == ("refused", [])


@as_root
@pytest.mark.parametrize(("uid", "result"), [(0, "ok"), (None, "unauthorized"), (65534, "unauthorized")])
async def test_a_key_goes_into_a_container_only_where_its_user_is_configured(tmp_path, uid, result):
    """Root there may be anybody who was given a container."""
    key = tmp_path / "key"
    key.write_text("sk-canary\n")
    settings = replace(LONG, api_key_file=str(key), uid=uid)
    with contained(tmp_path, KEY="Bearer sk-canary") as inside:
        found, failures = await asked(inside.found(), settings=settings)
    assert found == result
    assert [reason for reason, _ in failures] == ([] if result == "ok" else ["api_key_withheld"])


async def test_no_key_is_for_a_place_where_nobody_is_seen_to_listen(tmp_path):
    """Who owns a network namespace can lead connections elsewhere."""
    key = tmp_path / "key"
    key.write_text("sk-canary\n")
    tree = ProcTree(tmp_path)
    tree.add(7, "x", network="net:[5]")
    tree.network("net:[5]", [("127.0.0.1", 8000, 700)])
    keys = ApiKeys(Procfs(str(tree.root)))
    server = replace(server_of(7, network="net:[5]", port=8000), listening=True)
    assert (await keys.authorization("health", server, str(key), 0))[0]
    assert await keys.authorization("health", replace(server, listening=False), str(key), 0) == ({}, ())
    for change in (lambda: tree.network("net:[5]"), lambda: tree.add(7, "x", network="net:[6]")):
        change()
        headers, (failure,) = await keys.authorization("health", server, str(key), 0)
        assert (headers, failure.reason) == ({}, "api_key_withheld")
        tree.network("net:[5]", [("127.0.0.1", 8000, 700)])


async def test_what_is_left_out_of_it_is_not_asked_here_instead():
    """A pid that is another's by now, or nobody's: no connection is made."""
    taken = server_of(os.getpid(), network="net:[1]")
    gone = server_of(2**22 + 1, network="net:[1]")
    for server in (taken, gone):
        result, ((reason, detail),) = await asked(server)
        assert (result, reason) == (None, "other_network_namespace")
        assert detail == "none of its processes is there any more"


async def test_without_the_right_to_enter_it_is_told_what_to_do():
    """In words, and the probe is not made."""

    def refuse(_handle):
        raise PermissionError(1, "Operation not permitted")

    result, ((reason, detail),) = await asked(server_of(os.getpid()), Networks(enter=refuse))
    assert (result, reason) == (None, "other_network_namespace")
    assert "CAP_SYS_ADMIN" in detail
    assert "servers[].host" in detail


async def test_entering_that_hangs_costs_one_thread():
    """The next one waits for the same thread, and takes its socket once it is there."""
    thawed, begun = threading.Event(), []

    def hang(handle):
        begun.append(handle)
        thawed.wait(20.0)

    doors, server = Networks(enter=hang, seconds=0.05), server_of(os.getpid())
    for _ in range(2):
        with pytest.raises(NotMadeError) as caught:
            async with doors.within(server):
                pytest.fail("nothing is there to go through")
        assert caught.value.detail == "it was not entered within 0.05 s"
    assert len(begun) == 1
    thawed.set()
    doors.seconds = 20.0
    async with doors.within(server):
        networks.open_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ())).close()
    assert len(begun) == 1


async def test_one_socket_is_given_out_once():
    """A second connection in the same request would be made here, to another server."""
    address = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))
    async with Networks(enter=stay).within(server_of(os.getpid())):
        assert networks.here() == OURS
        with networks.open_socket(address), pytest.raises(NotMadeError):
            networks.open_socket(address)
    assert networks.here() == ""
    networks.open_socket(address).close()


@pytest.mark.parametrize(("address", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
async def test_the_socket_is_of_the_family_of_the_address(address, family):
    """An IPv6 address takes an IPv6 socket."""
    async with Networks(enter=stay).within(server_of(os.getpid(), address=address)):
        with networks.open_socket((family, socket.SOCK_STREAM, 0, "", ())) as made:
            assert made.family == family


async def test_a_socket_that_nobody_took_is_closed():
    """As where the key turns out to be for somebody else."""
    before = len(os.listdir("/proc/self/fd"))
    async with Networks(enter=stay).within(server_of(os.getpid())):
        assert len(os.listdir("/proc/self/fd")) == before + 1
    assert len(os.listdir("/proc/self/fd")) == before
