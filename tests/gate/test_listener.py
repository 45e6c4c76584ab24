"""Listener: clients that say nothing, say it slowly or come by the hundred keep nobody else out."""

import asyncio
import contextlib
import socket
import ssl

import pytest
import trustme
from aiohttp import web

from doors import answer, opened, policy, tls, trusting
from stallwatch.gate.admission import Gate, Policy
from stallwatch.gate.connections import IDLE, PATIENCE
from stallwatch.gate.listener import Listener, ListenError


async def until(condition):
    """Wait for a condition."""
    while not condition():
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def crowd(door, count, say=b"", context=None):
    """Connect so many clients, which each say this; none of them has to get anywhere."""
    connected = []

    async def one():
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            _, writer = await door.connect(context)
            writer.write(say)
            connected.append(writer)

    await asyncio.gather(*(one() for _ in range(count)))
    try:
        yield connected
    finally:
        for writer in connected:
            writer.transport.abort()


@pytest.mark.parametrize("say", [b"", b"GET /metrics HTT", b"GET /metrics HTTP/1.1\r\nX-a: b\r\n"])
async def test_there_are_never_more_connections_than_allowed(say):
    """For each new one the oldest goes that never got an answer, and a scraper between its scrapes stays."""
    async with opened(most_connections=8) as door:
        reader, writer = await door.connect()
        request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
        writer.write(request)
        await reader.readuntil(b"up 1\n")
        async with crowd(door, 50, say):
            await until(lambda: len(door.listener.connections) == 8)
            assert (await door.get())[0] == 200
            writer.write(request)
            assert b"200 OK" in await reader.readuntil(b"up 1\n")
            assert len(door.listener.connections) <= 8
        writer.close()


async def test_a_stranger_who_is_refused_counts_as_one_that_got_no_answer():
    """An error makes nobody welcome."""
    async with opened(most_connections=4) as door:
        good, bad = [await door.connect() for _ in range(2)]
        bad[1].write(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
        await bad[0].readuntil(b"Not Found")
        good[1].write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        await good[0].readuntil(b"up 1\n")
        assert sorted(one.welcome for one in door.listener.connections) == [False, True]
        good[1].close()
        bad[1].close()


async def test_who_never_begins_a_handshake_keeps_nobody_out():
    """Neither do half of one, and plain HTTP on a port that speaks TLS."""
    authority = trustme.CA()
    secured = policy(tls(authority.issue_cert("127.0.0.1")))
    async with opened(secured, most_connections=8) as door, crowd(door, 30, b"\x16\x03\x01"):
        await until(lambda: len(door.listener.connections) == 8)
        assert (await door.get(context=trusting(authority)))[0] == 200


async def overdue(door, seconds):
    """Say how many connections are over their time so many seconds from now."""
    now = asyncio.get_running_loop().time() + seconds
    return [one.is_overdue(now) for one in door.listener.connections].count(True)


async def test_how_long_each_may_take():
    """An exchange has its time from the first byte, whatever drips in; a pause between two has more."""
    async with opened() as door:
        silent, dripping, idle = [await door.connect() for _ in range(3)]
        dripping[1].write(b"GET /metr")
        idle[1].write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        await idle[0].readuntil(b"up 1\n")
        assert await overdue(door, PATIENCE - 5) == 0
        dripping[1].write(b"ics")
        assert await overdue(door, PATIENCE + 1) == 2
        assert await overdue(door, IDLE + 1) == 3
        idle[1].write(b"GET")
        await until(lambda: all(one.asking for one in door.listener.connections))
        assert await overdue(door, PATIENCE + 1) == 3
        for _, writer in (silent, dripping, idle):
            writer.close()


async def test_who_is_overdue_is_dropped(monkeypatch):
    """Looked after once a second."""
    monkeypatch.setattr("stallwatch.gate.connections.PATIENCE", 0.1)
    async with opened() as door:
        reader, writer = await door.connect()
        writer.write(b"GET /metrics HTT")
        assert await asyncio.wait_for(reader.read(), 20) == b""
        assert door.listener.connections == set()
        writer.close()


async def test_a_client_that_takes_nothing_is_overdue():
    """Also when all of the answer is handed over to the kernel's side and only waits to go out."""
    async with opened() as door:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", door.port))
            deaf.sendall(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: any(one.sending_since for one in door.listener.connections))
            assert await overdue(door, PATIENCE + 1) == 1


async def test_a_new_certificate_is_for_those_who_come_and_ends_those_who_are_there():
    """A connection under the old one is closed after what it is doing."""
    old, new = trustme.CA(), trustme.CA()
    async with opened(policy(tls(old.issue_cert("127.0.0.1")))) as door:
        idle = await door.connect(trusting(old))
        busy = await door.connect(trusting(old))
        for _, writer in (idle, busy):
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        for reader, _ in (idle, busy):
            await reader.readuntil(b"up 1\n")
        busy[1].write(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: door.gate._running)
        door.gate.apply(policy(tls(new.issue_cert("127.0.0.1"))))
        assert (await door.get(context=trusting(new)))[0] == 200
        with pytest.raises(ssl.SSLError):
            await door.connect(trusting(old))
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(idle[0].read(), 20) == b""
        await until(lambda: all(one.context is door.gate.context or one.asking for one in door.listener.connections))
        door.go_on.set()
        assert answer(await asyncio.wait_for(busy[0].read(), 20))[1]["connection"] == "close"
        for _, writer in (idle, busy):
            writer.close()


async def test_tls_begins_and_ends_without_a_restart():
    """A file that names a certificate for the first time is enough."""
    authority = trustme.CA()
    async with opened() as door:
        assert (await door.get())[0] == 200
        door.gate.apply(policy(tls(authority.issue_cert("127.0.0.1"))))
        assert (await door.get(context=trusting(authority)))[0] == 200
        assert await door.say(b"GET /metrics HTTP/1.1\r\n\r\n") == b""
        door.gate.apply(Policy())
        assert (await door.get())[0] == 200


async def test_the_end_waits_for_nobody():
    """Whoever is in a handshake, silent, or does not read."""
    authority = trustme.CA()
    async with opened(policy(tls(authority.issue_cert("127.0.0.1")))) as door:
        silent = await door.connect()
        deaf = await door.connect(trusting(authority))
        deaf[1].write(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: any(one.sending_since for one in door.listener.connections if one.transport))
        await asyncio.wait_for(door.listener.close(), 5)
        with pytest.raises(ConnectionError):
            await door.connect()
        for _, writer in (silent, deaf):
            writer.transport.abort()


async def test_an_address_that_is_taken_is_named():
    """In words, with the address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ListenError, match=f"{address}: address already in use"):
            await Listener(an_app(), Gate({})).open(address)


@pytest.mark.parametrize(("address", "hosts"), [(":0", ("127.0.0.1", "::1")), ("localhost:0", ("127.0.0.1", "::1"))])
async def test_where_it_listens(address, hosts):
    """Without a host everywhere, with both kinds of addresses where the node has both."""
    listener = Listener(an_app(), Gate({}))
    await listener.open(address)
    try:
        port = int(listener.names[0].rpartition(":")[2])
        assert {name.rpartition(":")[2] for name in listener.names} == {str(port)}
        for host in hosts if socket.has_dualstack_ipv6() else hosts[:1]:
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
    finally:
        await listener.close()


def an_app():
    """Return an application that knows no path."""
    return web.Application()
