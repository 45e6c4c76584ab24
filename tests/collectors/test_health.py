"""Tests of the health probe, against real servers on loopback that misbehave."""

import asyncio
import os
import resource
import ssl

import pytest
import pytest_asyncio
import trustme
from aiohttp import web
from aiohttp.test_utils import TestServer

import health_servers as servers
from stallwatch import __version__
from stallwatch.collectors.health import (
    RESULTS,
    HealthCollector,
    HealthReading,
    Probe,
    families,
)
from stallwatch.config import ProbeSettings
from stallwatch.snapshot import Failure, Launch, Moment, Process, Server

SHORT = ProbeSettings(timeout=0.5)
LONG = ProbeSettings(timeout=10)


class Clock:
    """Stands still until it is told to go on."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        """Return the time."""
        return self.now


@pytest_asyncio.fixture
async def collector():
    """Give a collector on the real clock and close it."""
    collector = HealthCollector()
    yield collector
    await collector.close()


@pytest_asyncio.fixture
async def timed():
    """Give a collector together with the clock that it goes by."""
    clock = Clock()
    collector = HealthCollector(clock)
    yield collector, clock
    await collector.close()


def server_at(port, *, engine="sglang", version="", worker=False, tls=False, address="127.0.0.1", started=5):
    """Describe a server that listens on this port."""
    process = Process(pid=40, start_ticks=started, started=0.05, role="launcher", name="launcher")
    launch = Launch(port=port, worker=worker, tls=tls)
    return Server(
        f"{engine}:30000", engine, launch, (process,), version=version, address=address, incarnation=str(started)
    )


async def probe_of(collector, server, settings=LONG):
    """Probe the one path and check what holds for every probe."""
    reading, failures = await collector.collect(server, settings)
    assert failures == ()
    assert reading.server == server.name
    (probe,) = reading.probes
    assert sum(probe.phases.values()) <= probe.latency
    assert probe.at <= reading.at
    return probe


async def result_against(collector, behave, settings=LONG):
    """Probe a server that behaves so: result, status and completed phases."""
    async with servers.serving(behave) as port:
        probe = await probe_of(collector, server_at(port), settings)
    return probe.result, probe.status, set(probe.phases)


HEADERS = {"connect", "first_byte"}
ANSWERED = {*HEADERS, "transfer"}


@pytest.mark.parametrize(
    ("behave", "result", "status", "phases"),
    [
        (servers.answering(servers.OK), "ok", 200, ANSWERED),
        (servers.status("204 No Content"), "ok", 204, ANSWERED),
        (servers.status("401 Unauthorized"), "unauthorized", 401, ANSWERED),
        (servers.status("403 Forbidden"), "unauthorized", 403, ANSWERED),
        (servers.status("404 Not Found"), "http_error", 404, ANSWERED),
        (servers.status("503 Service Unavailable"), "http_error", 503, ANSWERED),
        (servers.status("302 Found", "Location: /health"), "http_error", 302, ANSWERED),
        (servers.silent, "timeout", None, {"connect"}),
        (servers.stalling_headers, "timeout", None, {"connect"}),
        (servers.stalling_body, "timeout", 200, HEADERS),
        (servers.dripping, "timeout", 200, HEADERS),
        (servers.flooding, "ok", 200, ANSWERED),
        (servers.resetting, "reset", None, {"connect"}),
        (servers.answering(b""), "empty", None, {"connect"}),
        (servers.answering(b"\x00\x01 what is this\r\n\r\n"), "invalid", None, {"connect"}),
        (servers.answering(b"HTTP/1.1 200 OK\r\nContent-Le"), "empty", None, {"connect"}),
        (servers.answering(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"), "invalid", 200, HEADERS),
        (
            servers.answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
            "invalid",
            None,
            {"connect"},
        ),
    ],
)
async def test_each_way_to_answer_has_its_result(collector, behave, result, status, phases):
    """Every way a server can answer or not answer is told apart, with the phases that were completed."""
    settings = SHORT if result == "timeout" else LONG
    assert await result_against(collector, behave, settings) == (result, status, phases)


async def test_refused_is_not_a_timeout(collector):
    """A port on which nobody listens is refused, and no phase was completed."""
    probe = await probe_of(collector, server_at(servers.closed_port()))
    assert (probe.result, probe.status, probe.phases) == ("refused", None, {})


async def test_full_backlog_is_a_timeout_before_connect(collector):
    """A server whose queue is full times out in the connect phase."""
    with servers.full_backlog() as port:
        probe = await probe_of(collector, server_at(port), SHORT)
    assert (probe.result, probe.phases) == ("timeout", {})


async def test_stopped_process_is_a_timeout_after_connect(collector):
    """The kernel still accepts for a stopped process, which then never answers."""
    async with servers.stopped_process() as port:
        probe = await probe_of(collector, server_at(port), SHORT)
    assert (probe.result, set(probe.phases)) == ("timeout", {"connect"})


async def test_no_route_is_unreachable(collector):
    """An address that the network refuses is neither refused nor a timeout."""
    probe = await probe_of(collector, server_at(9, address="255.255.255.255"))
    assert probe.result == "unreachable"


async def test_our_own_shortage_is_no_result(collector):
    """A probe for which the exporter has no file descriptor left says nothing about the server."""
    collector.open()
    free = os.dup(0)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        reading, failures = await collector.collect(server_at(9), SHORT)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert reading is None
    assert [(failure.reason, failure.server) for failure in failures] == [("no_socket", "sglang:30000")]


def tls_context(authority, name):
    """Make the TLS side of a server with a certificate for this name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


@pytest.mark.parametrize(("trusted", "result"), [("its own", "ok"), ("another", "tls_error"), (None, "ok")])
async def test_tls_verifies_the_chain_where_a_ca_is_given(collector, tmp_path, trusted, result):
    """The chain is verified against the CA that is given, whatever the name; loopback without a CA is not verified."""
    authority, other = trustme.CA(), trustme.CA()
    ca_file = tmp_path / "ca.pem"
    (other if trusted == "another" else authority).cert_pem.write_to_path(ca_file)
    settings = ProbeSettings(timeout=10, ca_file=str(ca_file) if trusted else None)
    context = tls_context(authority, "inference.example.org")
    async with servers.serving(servers.answering(servers.OK), tls=context) as port:
        probe = await probe_of(collector, server_at(port, tls=True), settings)
    assert probe.result == result
    assert ("tls" in probe.phases) == (result == "ok")


async def test_unverified_tls_beyond_loopback_is_an_error(collector):
    """Without a CA, an address beyond loopback needs a certificate that the system trusts."""
    context = tls_context(trustme.CA(), "0.0.0.0")
    async with servers.serving(servers.answering(servers.OK), tls=context) as port:
        probe = await probe_of(collector, server_at(port, tls=True, address="0.0.0.0"))
    assert probe.result == "tls_error"


async def test_tls_handshake_that_stalls_is_a_timeout_after_connect(collector):
    """A server that accepts and never shakes hands times out after connect."""
    async with servers.serving(servers.silent) as port:
        probe = await probe_of(collector, server_at(port, tls=True), SHORT)
    assert (probe.result, set(probe.phases)) == ("timeout", {"connect"})


async def test_tls_to_a_plain_port_is_a_tls_error(collector):
    """A server that was taken to speak TLS and does not is told from one that is down."""

    async def plain(reader, writer):
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    async with servers.serving(plain) as port:
        probe = await probe_of(collector, server_at(port, tls=True))
    assert probe.result == "tls_error"


async def test_unreadable_ca_is_no_result(collector):
    """Without the CA that was asked for nothing is probed, least of all unverified."""
    settings = ProbeSettings(ca_file="/nonexistent/ca.pem")
    reading, failures = await collector.collect(server_at(9, tls=True), settings)
    assert reading is None
    assert [failure.reason for failure in failures] == ["ca_unreadable"]


async def test_paths_are_probed_one_after_another_on_connections_of_their_own(collector):
    """Two paths are two connections, in order and never at once."""
    seen, open_now = [], 0

    async def behave(reader, writer):
        nonlocal open_now
        open_now += 1
        path, headers = await servers.request(reader)
        await asyncio.sleep(0)
        seen.append((path, open_now, headers.get("cookie")))
        writer.write(b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        await reader.read()
        open_now -= 1

    async with servers.serving(behave) as port:
        reading, _ = await collector.collect(server_at(port), ProbeSettings(("/health", "/ready"), timeout=10))
        assert [probe.path for probe in reading.probes] == ["/health", "/ready"]
        await collector.collect(server_at(port), LONG)
    assert seen == [("/health", 1, None), ("/ready", 1, None), ("/health", 1, None)]


async def test_the_environment_does_not_divert_probes(collector, monkeypatch):
    """A proxy in the environment is not used."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{servers.closed_port()}")
    assert (await result_against(collector, servers.answering(servers.OK)))[0] == "ok"


async def headers_seen(collector, settings):
    """Return the headers that a server saw, and what the collector said."""
    seen = []

    async def behave(reader, writer):
        seen.append((await servers.request(reader))[1])
        writer.write(servers.OK)
        await writer.drain()

    async with servers.serving(behave) as port:
        outcome = await collector.collect(server_at(port), settings)
    return seen[0], outcome


async def test_key_is_sent_and_shown_nowhere(collector, tmp_path):
    """The key of the file goes into the request, stripped, and into nothing that is published."""
    key = tmp_path / "key"
    key.write_text("  s3cret \n")
    headers, outcome = await headers_seen(collector, ProbeSettings(api_key_file=str(key)))
    assert headers["authorization"] == "bearer s3cret"
    assert headers["user-agent"] == f"stallwatch/{__version__}"
    assert "s3cret" not in repr(outcome)
    key.write_text("changed")
    headers, _ = await headers_seen(collector, ProbeSettings(api_key_file=str(key)))
    assert headers["authorization"] == "bearer changed"


@pytest.mark.parametrize("content", [None, "pipe", "", "two\nlines", "schl\u00fcssel"])
async def test_without_a_usable_key_the_probe_is_still_made(collector, tmp_path, content):
    """A key that is missing or that no header can carry is a failure beside the reading."""
    key = tmp_path / "key"
    if content == "pipe":
        os.mkfifo(key)
    elif content is not None:
        key.write_text(content)
    headers, (reading, failures) = await headers_seen(collector, ProbeSettings(api_key_file=str(key)))
    assert "authorization" not in headers
    assert reading.probes[0].result == "ok"
    assert failures == (Failure("health", "api_key_unreadable", str(key), "sglang:30000"),)


async def test_missing_address_says_why(collector):
    """A server that cannot be probed is a failure with the word that discovery gave."""
    server = Server("a", "sglang", Launch(port=1), address_absence="other_network: it listens in another namespace")
    outcome = await collector.collect(server, SHORT)
    assert outcome == (None, (Failure("health", "other_network", "it listens in another namespace", "a"),))


@pytest.mark.parametrize(
    ("address", "port", "reason"),
    [(None, 1, "no_address"), ("127.0.0.1", None, "no_address"), ("localhost", 1, "address_not_literal")],
)
async def test_only_a_literal_address_with_a_port_is_probed(collector, address, port, reason):
    """No name is ever resolved, and no port guessed."""
    reading, failures = await collector.collect(server_at(port, address=address), SHORT)
    assert reading is None
    assert [failure.reason for failure in failures] == [reason]


def answering_after(clock, seconds, line="200 OK"):
    """Answer after so many seconds of the clock that the collector goes by."""

    async def behave(reader, writer):
        await servers.request(reader)
        clock.now += seconds
        writer.write(f"HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()

    return behave


async def scope_after(timed, seconds, path="/health", line="200 OK", **server):
    """Return the scope that a probe found."""
    collector, clock = timed
    async with servers.serving(answering_after(clock, seconds, line)) as port:
        probe = await probe_of(collector, server_at(port, **server), ProbeSettings((path,)))
    return probe.scope


@pytest.mark.parametrize(
    ("seconds", "given", "scope"),
    [
        (1.0, {}, "scheduler"),
        (0.9, {}, "scheduler"),
        (0.8, {}, "http"),
        (1.0, {"path": "/health_generate"}, "scheduler"),
        (1.0, {"path": "/v1/models"}, "http"),
        (1.0, {"engine": "vllm"}, "http"),
        (1.0, {"worker": True}, "http"),
        (1.0, {"version": "0.4.10.post1"}, "http"),
        (1.0, {"version": "0.4.10.post2"}, "scheduler"),
        (1.0, {"version": "0.5.2rc1"}, "scheduler"),
        (1.0, {"version": "0.10"}, "scheduler"),
        (1.0, {"version": "main"}, "scheduler"),
        (1.0, {"version": "0.4.3.post3", "path": "/health_generate"}, "http"),
        (1.0, {"version": "0.4.3.post4", "path": "/health_generate"}, "scheduler"),
        (0.0, {"line": "503 Service Unavailable"}, "scheduler"),
        (20.0, {"line": "503 Service Unavailable", "version": "0.4.9"}, "http"),
        (20.0, {"line": "503 Service Unavailable", "engine": "vllm"}, "http"),
    ],
)
async def test_scope_is_what_a_good_answer_proves(timed, seconds, given, scope):
    """Only an answer that took as long as asking the scheduler takes, of a version that asks, reaches the scheduler."""
    assert await scope_after(timed, seconds, **given) == scope


async def test_a_fast_answer_settles_the_scope_for_this_life(timed):
    """A server that once answered without its scheduler keeps that scope when its web process is slow or fails."""
    assert await scope_after(timed, 1.0) == "scheduler"
    assert await scope_after(timed, 0.1) == "http"
    assert await scope_after(timed, 20.0, line="503 Service Unavailable") == "http"
    assert await scope_after(timed, 1.5) == "http"
    assert await scope_after(timed, 1.5, started=6) == "scheduler"


async def test_an_answer_of_one_second_on_the_real_clock_is_the_schedulers(collector):
    """The rule holds on the clock that the exporter goes by."""

    async def behave(reader, writer):
        await servers.request(reader)
        await asyncio.sleep(1)
        writer.write(servers.OK)
        await writer.drain()

    async with servers.serving(behave) as port:
        probe = await probe_of(collector, server_at(port), LONG)
    assert probe.scope == "scheduler"
    assert probe.phases["first_byte"] > probe.phases["connect"]


async def test_past_is_kept_for_this_life_and_path(timed):
    """Failures are counted and the last success kept until the server is started again or forgotten."""
    collector, clock = timed
    states = []

    async def look(port, started=5):
        clock.now += 10
        probe = await probe_of(collector, server_at(port, started=started))
        states.append((probe.consecutive_failures, probe.last_success))

    async with servers.serving(servers.answering(servers.OK)) as port:
        await look(servers.closed_port())
        await look(servers.closed_port())
        await look(port)
        await look(servers.closed_port())
        collector.forget(["sglang:30000"])
        await look(servers.closed_port())
        await look(servers.closed_port(), started=6)
        await look(port, started=6)
        collector.forget([])
        await look(servers.closed_port(), started=6)
    assert states == [(1, None), (2, None), (0, 130.0), (1, 130.0), (2, 130.0), (1, None), (0, 170.0), (1, None)]


async def test_collector_can_be_closed_unopened_and_opened_again():
    """Closing is harmless at any time."""
    collector = HealthCollector()
    await collector.close()
    assert (await probe_of(collector, server_at(servers.closed_port()))).result == "refused"
    await collector.close()
    assert (await probe_of(collector, server_at(servers.closed_port()))).result == "refused"
    await collector.close()


def families_of(probe):
    """Return the families of one probe by name, 10 s after it ended."""
    reading = HealthReading(at=50.0, server="s", probes=(probe,))
    return {family.name: family for family in families([reading], Moment(unix=1000.0, monotonic=60.0, boottime=60.0))}


def test_families_state_the_last_probe():
    """A good probe gives every family, with times as Unix time and one member of each set at 1."""
    probe = Probe("/health", "ok", "http", 1.25, 200, {"connect": 0.25, "first_byte": 1.0}, 50.0, 50.0, 0)
    found = families_of(probe)
    key = ("s", "/health")
    prefix = "stallwatch_health_"
    assert {name: found[prefix + name].samples for name in ("success", "latency_seconds", "status_code")} == {
        "success": ((key, 1.0),),
        "latency_seconds": ((key, 1.25),),
        "status_code": ((key, 200.0),),
    }
    assert found[prefix + "last_success_timestamp_seconds"].samples == ((key, 990.0),)
    assert found[prefix + "consecutive_failures"].samples == ((key, 0.0),)
    assert found[prefix + "scope"].samples == (((*key, "scheduler"), 0.0), ((*key, "http"), 1.0))
    assert dict(found[prefix + "result"].samples) == {(*key, result): float(result == "ok") for result in RESULTS}
    assert found[prefix + "phase_seconds"].samples == (((*key, "connect"), 0.25), ((*key, "first_byte"), 1.0))
    assert all(family.labels[:2] == key_labels for family in found.values() for key_labels in [("server", "path")])
    assert all(len(family.labels) == len(labels) for family in found.values() for labels, _ in family.samples)


def test_families_leave_out_what_is_not_known():
    """A refused probe has no status and no phases, and a server that never answered no last success."""
    found = families_of(Probe("/health", "refused", "scheduler", 0.01, None, {}, 50.0, None, 3))
    empty = {name.removeprefix("stallwatch_health_") for name, family in found.items() if not family.samples}
    assert empty == {"status_code", "phase_seconds", "last_success_timestamp_seconds"}


@pytest.mark.parametrize(("engine", "path"), [("sglang", "/generate"), ("vllm", "/v1/completions")])
async def test_a_token_is_asked_for_now_and_then(engine, path):
    """Where it is switched on, a ready server is asked for one token at its interval, which proves the scheduler."""
    asked = []

    async def answer(request):
        asked.append((request.method, request.path, await request.json() if request.can_read_body else None))
        return web.Response(text="{}")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    clock = Clock()
    async with TestServer(app) as here:
        collector = HealthCollector(clock)
        server, settings = server_at(here.port, engine=engine), ProbeSettings(timeout=5.0, end_to_end=300.0)
        for now in (0.0, 15.0, 300.0):
            clock.now = now
            reading, failures = await collector.collect(server, settings)
            assert failures == ()
        await collector.close()
    posts = [request for request in asked if request[0] == "POST"]
    assert [request[1] for request in posts] == [path] * 2
    assert 1 in {posts[0][2].get("max_tokens"), posts[0][2].get("sampling_params", {}).get("max_new_tokens")}
    probe = next(probe for probe in reading.probes if probe.path == path)
    assert (probe.result, probe.scope) == ("ok", "scheduler")


async def test_no_token_is_asked_for_unless_it_is_switched_on():
    """Without the setting, and before a server has ever answered, nothing is generated."""
    assert _token_paths(await paths_asked(ProbeSettings(timeout=5.0), status=200)) == []
    assert _token_paths(await paths_asked(ProbeSettings(timeout=5.0, end_to_end=300.0), status=503)) == []


async def paths_asked(settings, status):
    """Return the paths that one round asks of a server that answers so."""
    asked = []

    async def answer(request):
        asked.append(request.path)
        return web.Response(status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as here:
        collector = HealthCollector(Clock())
        await collector.collect(server_at(here.port), settings)
        await collector.close()
    return asked


def _token_paths(paths):
    return [path for path in paths if path != "/health"]
