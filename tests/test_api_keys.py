"""API keys: only those who may know a key get to see it, whoever has taken the server's port meanwhile."""

import asyncio
import contextlib
import os
import socket
import threading

import pytest

import health_servers as servers
from stallwatch import api_keys
from stallwatch.api_keys import ApiKeys, read_key
from stallwatch.collectors.engine import EngineCollector
from stallwatch.collectors.health import HealthCollector
from stallwatch.config import EngineSettings, ProbeSettings
from stallwatch.http_probe import NotMadeError
from stallwatch.node.procfs import Listener, Procfs
from stallwatch.snapshot import Launch, Server

STRANGER, FRIEND = 65534, 1234
LISTENING = "  {}: {}:{:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 {:5} 0 {} 1 0 100 0 0 10 0\n"
PACKED = {"127.0.0.1": "0100007F", "0.0.0.0": "00000000", "127.0.0.2": "0200007F"}
PACKED_6 = {"::1": "00000000000000000000000001000000", "::": "0" * 32}


def server_at(address, port):
    """Return a server at this place."""
    return Server("mine", "sglang", Launch(port=port), address=address)


@pytest.fixture
def key(tmp_path):
    """Return a file with a key."""
    path = tmp_path / "key"
    path.write_text("sk-canary\n")
    return path


@pytest.fixture
def table(tmp_path):
    """Return a function that writes who listens on port 8000, and returns a /proc that says so."""

    def write(*listeners):
        for name, packed in (("tcp", PACKED), ("tcp6", PACKED_6)):
            lines = [
                LISTENING.format(n, packed[address], 8000, uid, 100 + n)
                for n, (address, uid) in enumerate(listeners)
                if address in packed
            ]
            path = tmp_path / "proc" / "self" / "net" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("heading\n" + "".join(lines))
        return Procfs(str(tmp_path / "proc"))

    return write


@pytest.mark.parametrize(
    "case",
    [
        ("127.0.0.1", [("127.0.0.1", 0)], None, True),
        ("127.0.0.1", [("127.0.0.1", STRANGER)], None, False),
        ("127.0.0.1", [("0.0.0.0", STRANGER)], None, False),
        ("127.0.0.1", [("::", STRANGER)], None, False),
        ("127.0.0.1", [("0.0.0.0", FRIEND)], FRIEND, True),
        ("127.0.0.1", [("0.0.0.0", FRIEND)], STRANGER, False),
        ("127.0.0.1", [("127.0.0.1", 0), ("0.0.0.0", STRANGER)], None, True),
        ("127.0.0.1", [("127.0.0.1", STRANGER), ("0.0.0.0", 0)], None, False),
        ("127.0.0.1", [("127.0.0.2", STRANGER)], None, True),
        ("127.0.0.1", [], None, True),
        ("0.0.0.0", [("127.0.0.1", STRANGER)], None, False),
        ("::ffff:127.0.0.1", [("127.0.0.1", STRANGER)], None, False),
        ("::1", [("::", STRANGER)], None, False),
        ("0:0:0:0:0:0:0:1", [("::1", STRANGER)], None, False),
        ("::", [("::1", STRANGER)], None, False),
        ("192.0.2.7", [("0.0.0.0", STRANGER)], None, True),
    ],
)
async def test_who_may_know_a_key(key, table, case):
    """Root, ourselves, the owner of the file and the user that is configured; nobody where nobody listens yet."""
    address, listeners, uid, is_shown = case
    keys = ApiKeys(table(*listeners))
    headers, failures = await keys.authorization("health", server_at(address, 8000), str(key), uid)
    assert headers == ({"Authorization": "Bearer sk-canary"} if is_shown else {})
    assert [failure.reason for failure in failures] == ([] if is_shown else ["api_key_withheld"])
    if not is_shown:
        assert "listens on port 8000" in failures[0].detail
        assert "canary" not in failures[0].detail


async def test_the_owner_of_the_file_knows_its_key(key, table, monkeypatch):
    """A server that runs as the user whose file it is needs no setting."""
    owner = key.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    keys = ApiKeys(table(("127.0.0.1", owner)))
    headers, _ = await keys.authorization("health", server_at("127.0.0.1", 8000), str(key), None)
    assert headers


async def test_a_key_file_on_a_dead_mount_costs_the_key_and_one_thread(key, table, monkeypatch):
    """Neither the event loop nor a probe waits for it, no read is begun beside one that hangs, and it comes back."""
    monkeypatch.setattr(api_keys, "READ_SECONDS", 0.05)
    thawed, begun = threading.Event(), []

    def read(file):
        begun.append(file)
        thawed.wait(20.0)
        return read_key(file)

    keys = ApiKeys(table(("127.0.0.1", 0)), read)
    for _ in range(3):
        headers, failures = await keys.authorization("health", server_at("127.0.0.1", 8000), str(key), None)
        assert (headers, [failure.reason for failure in failures]) == ({}, ["api_key_unreadable"])
    assert begun == [key]
    thawed.set()
    monkeypatch.setattr(api_keys, "READ_SECONDS", 20.0)
    headers, failures = await keys.authorization("health", server_at("127.0.0.1", 8000), str(key), None)
    assert (headers, failures) == ({"Authorization": "Bearer sk-canary"}, ())


async def test_a_port_that_changes_hands_is_noticed_before_anything_is_sent(key, table):
    """The second look refuses what the first allowed, and a key that was never allowed for this place."""
    keys = ApiKeys(table(("127.0.0.1", 0)))
    headers, _ = await keys.authorization("health", server_at("127.0.0.1", 8000), str(key), None)
    keys.require("127.0.0.1", 8000, headers["Authorization"])
    with pytest.raises(NotMadeError):
        keys.require("127.0.0.1", 8001, headers["Authorization"])
    with pytest.raises(NotMadeError):
        keys.require("127.0.0.1", 8000, "Bearer another")
    table(("127.0.0.1", STRANGER))
    with pytest.raises(NotMadeError) as caught:
        keys.require("127.0.0.1", 8000, headers["Authorization"])
    assert (caught.value.reason, "user 65534" in caught.value.detail) == ("api_key_withheld", True)


class Changing:
    """A /proc in which the port goes to a stranger after the first look."""

    def __init__(self, port):
        self.port, self.looks = port, 0

    def listeners(self, pid):
        """Say who listens."""
        self.looks += 1
        return [Listener("127.0.0.1", self.port, 7, 0 if self.looks == 1 else STRANGER)]


@contextlib.asynccontextmanager
async def listening(seen, as_user=0):
    """Serve as a user, and note all that is received; yields the port."""

    async def behave(reader, writer):
        seen.append(b"")
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(4096):
                seen[-1] += data
                if b"\r\n\r\n" in data:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        writer.close()

    if as_user:
        os.seteuid(as_user)
    try:
        one = socket.create_server(("127.0.0.1", 0))
    finally:
        if as_user:
            os.seteuid(0)
    server = await asyncio.start_server(behave, sock=one)
    try:
        yield one.getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("kind", ["health", "engine"])
async def test_nothing_is_sent_to_who_took_the_port_during_the_connect(key, kind):
    """The connection is closed again, and the reason says what happened."""
    seen = []
    async with listening(seen) as port:
        procfs = Changing(port)
        keys = ApiKeys(procfs)
        collector, settings = {
            "health": (HealthCollector(keys=keys), ProbeSettings(timeout=10, api_key_file=str(key))),
            "engine": (EngineCollector(keys=keys), EngineSettings(timeout=10, api_key_file=str(key))),
        }[kind]
        _, failures = await collector.collect(server_at("127.0.0.1", port), settings)
        assert [failure.reason for failure in failures] == ["api_key_withheld"]
        assert procfs.looks == 2
        await asyncio.sleep(0.1)
        assert b"".join(seen) == b""
        await collector.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can listen as another user")
@pytest.mark.parametrize(("uid", "is_shown"), [(None, False), (STRANGER, True)])
async def test_a_port_that_a_real_stranger_took_is_probed_without_the_key(key, uid, is_shown):
    """The kernel says who listens; the probe itself is made, and the user may be one that is configured."""
    seen = []
    async with listening(seen, STRANGER) as port:
        collector = HealthCollector()
        settings = ProbeSettings(timeout=10, api_key_file=str(key), uid=uid)
        reading, failures = await collector.collect(server_at("127.0.0.1", port), settings)
        assert reading.probes[0].result == "ok"
        assert [failure.reason for failure in failures] == ([] if is_shown else ["api_key_withheld"])
        assert (b"canary" in b"".join(seen)) is is_shown
        await collector.close()


async def test_a_redirect_gets_nothing(key):
    """Neither the request nor the key goes where a server points."""
    seen = []
    async with listening(seen) as other:
        moved = servers.status("307 Temporary Redirect", f"Location: http://127.0.0.1:{other}/health")
        async with servers.serving(moved) as port:
            collector = HealthCollector()
            settings = ProbeSettings(timeout=10, api_key_file=str(key))
            reading, _ = await collector.collect(server_at("127.0.0.1", port), settings)
            assert (reading.probes[0].result, reading.probes[0].status) == ("http_error", 307)
            await collector.close()
    assert seen == []
