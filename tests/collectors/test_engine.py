"""Tests of reading an engine's metrics, against real servers on loopback."""

import asyncio
import os
import ssl

import pytest
import pytest_asyncio
import trustme

import health_servers as servers
from engine_pages import DATA, beating, busy, load, pack, page
from stallwatch.collectors import engine
from stallwatch.collectors.engine import EngineCollector, EngineRank, EngineReading, EngineSettings, families
from stallwatch.loads import Load
from stallwatch.node.procfs import Procfs
from stallwatch.snapshot import Failure, Launch, Moment, Process, Server

WALL = 1_000_000.0


class Clock:
    """Stands still until it is told to go on."""

    def __init__(self, now):
        self.now = now

    def __call__(self):
        """Return the time."""
        return self.now


class Files:
    """Shared memory that holds what a test puts there."""

    def __init__(self):
        self.loads = ()
        self.kept = []

    async def read(self, server, now):
        """Return it."""
        return self.loads

    def forget(self, names_alive):
        """Remember what was to be kept."""
        self.kept.append(list(names_alive))


@pytest_asyncio.fixture
async def collector():
    """Give a collector at 100 s, with empty shared memory, and close it."""
    collector = EngineCollector(Clock(100.0), Clock(WALL), Files())
    yield collector
    await collector.close()


def server_at(port, name="sglang", *, address="127.0.0.1", worker=False, tls=False, incarnation="1", absence=""):
    """Describe a server that listens on this port."""
    launch = Launch(port=port, worker=worker, tls=tls)
    return Server(f"{name}:1", name, launch, address=address, address_absence=absence, incarnation=incarnation)


def ok(body, *headers):
    """Answer with this page."""
    head = "\r\n".join(["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers, "", ""])
    return servers.answering(head.encode() + body)


class Pages:
    """Answers with one page after another."""

    def __init__(self, *pages):
        self.pages = list(pages)

    async def __call__(self, reader, writer):
        """Answer one request."""
        await ok(self.pages.pop(0))(reader, writer)


async def outcome_of(collector, behave, settings=None, **server):
    """Collect once from a server that behaves so."""
    async with servers.serving(behave) as port:
        return await collector.collect(server_at(port, **server), settings or EngineSettings(timeout=10))


async def readings_of(collector, *pages):
    """Collect these pages, 5 s apart."""
    readings = []
    async with servers.serving(Pages(*pages)) as port:
        for _ in pages:
            reading, failures = await collector.collect(server_at(port), EngineSettings(timeout=10))
            assert failures == ()
            readings.append(reading)
            collector.clock.now += 5
            collector.wall.now += 5
    return readings


def failed(reason, detail="", name="sglang:1"):
    """Return what a collector says of a server that gave no reading."""
    return None, (Failure("engine", reason, detail, name),)


@pytest.mark.parametrize("name", ["sglang_0.5.9_busy.http", "sglang_0.5.9_ready.http", "vllm_0.32.0_ready.http"])
async def test_recorded_replies_are_read(collector, name):
    """The replies of real servers, with their own headers, give a reading without a failure."""
    kind = name.partition("_")[0]
    head, _, body = (DATA / name).read_bytes().partition(b"\r\n\r\n")
    lines = [line for line in head.decode().split("\r\n")[1:] if not line.lower().startswith(("content-l", "transfer"))]
    reading, failures = await outcome_of(collector, ok(body, *lines), name=kind)
    assert failures == ()
    assert (reading.at, reading.server, reading.heartbeat_source) == (100.0, f"{kind}:1", "")
    (rank,) = reading.ranks
    assert (rank.dp_rank, rank.queued, rank.live, rank.heartbeat) == ("0", 0.0, True, None)
    assert rank.running == float("busy" in name)
    assert rank.tokens


@pytest.mark.parametrize(
    ("behave", "reason", "detail"),
    [
        (servers.status("404 Not Found"), "not_enabled", "HTTP 404"),
        (servers.status("405 Method Not Allowed"), "not_enabled", "HTTP 405"),
        (servers.status("401 Unauthorized"), "unauthorized", "HTTP 401"),
        (servers.status("403 Forbidden"), "unauthorized", "HTTP 403"),
        (servers.status("500 Internal Server Error"), "http_error", "HTTP 500"),
        (servers.status("307 Temporary Redirect", "Location: /metrics/"), "http_error", "HTTP 307"),
        (servers.answering(servers.OK), "no_engine_metrics", "none of the known names is on the page"),
        (ok(b""), "no_engine_metrics", "none of the known names is on the page"),
        (ok(b"\x1f\x8b\x08\x00\xff\n" * 1000), "no_engine_metrics", "none of the known names is on the page"),
        (ok(page("sglang:num_running_reqs{ 1")), "invalid", ""),
        (ok(page("sglang:num_running_reqs NaN")), "invalid", ""),
        (servers.answering(b"\x00\x01 what is this\r\n\r\n"), "invalid", ""),
        (servers.answering(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"), "invalid", ""),
        (servers.answering(b""), "empty", ""),
        (servers.resetting, "reset", ""),
        (servers.silent, "timeout", ""),
        (servers.stalling_headers, "timeout", ""),
        (servers.stalling_body, "timeout", ""),
        (servers.dripping, "timeout", ""),
    ],
)
async def test_each_way_to_fail_has_its_reason(collector, behave, reason, detail):
    """What is no page of the engine is a failure and never a reading, least of all one of an idle server."""
    settings = EngineSettings(timeout=0.5 if reason == "timeout" else 10)
    assert await outcome_of(collector, behave, settings) == failed(reason, detail)


async def test_a_closed_port_is_refused(collector):
    """A port on which nobody listens is refused."""
    assert await collector.collect(server_at(servers.closed_port()), EngineSettings()) == failed("refused")


async def test_a_stopped_process_is_a_timeout(collector):
    """The kernel still accepts for a stopped process, which then never answers."""
    async with servers.stopped_process() as port:
        assert await collector.collect(server_at(port), EngineSettings(timeout=0.5)) == failed("timeout")


async def test_the_pages_of_all_servers_take_only_so_much(collector, monkeypatch):
    """A large one is cut off while others take all there is; a small one is always read, and later the large one is."""
    monkeypatch.setattr(engine, "BODIES_LIMIT", 3_000_000)
    large, small = page(*busy()) + b"# comment\n" * 200_000, page(*busy())
    held = asyncio.Event()

    async def behave(reader, writer):
        await servers.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(large), large[:-1]))
        await held.wait()
        writer.write(large[-1:])
        await writer.drain()

    async with (
        servers.serving(behave) as first,
        servers.serving(ok(large)) as second,
        servers.serving(ok(small)) as third,
    ):
        waiting = asyncio.ensure_future(collector.collect(server_at(first), EngineSettings()))
        while collector._held < len(large) - 1:
            await asyncio.sleep(0.01)
        reason = f"over {engine.BODIES_LIMIT} bytes with other pages"
        assert await collector.collect(server_at(second), EngineSettings()) == failed("too_large", reason)
        assert (await collector.collect(server_at(third), EngineSettings()))[1] == ()
        held.set()
        assert (await waiting)[1] == ()
        assert (await collector.collect(server_at(second), EngineSettings()))[1] == ()
    assert collector._held == 0


async def test_a_page_that_is_too_large_is_cut_off(collector):
    """Of 50 MB no more is taken than the limit and what the sockets hold, and what stands in it is not used."""
    sent = 0

    async def behave(reader, writer):
        nonlocal sent
        await servers.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n" + page(*busy()))
        while sent < 50_000_000:
            writer.write(b"# comment\n" * 10_000)
            await writer.drain()
            sent += 100_000

    outcome = await outcome_of(collector, behave)
    assert outcome == failed("too_large", "over 16777216 bytes")
    assert engine.BODY_LIMIT - 1_000_000 < sent < 40_000_000


async def test_a_page_as_large_as_allowed_is_read(collector):
    """A page of many MB with the one line at its end is still read."""
    body = page(*busy()).rjust(engine.BODY_LIMIT, b"\n")
    reading, failures = await outcome_of(collector, ok(body))
    assert (failures, reading.ranks) == ((), (EngineRank("0", 1.0, None, {"decode": 7.0}, live=True),))


async def test_the_request_asks_for_plain_text(collector, tmp_path):
    """Only /metrics is asked, in the format that keeps the names, with the key, which is shown nowhere."""
    seen = []

    async def behave(reader, writer):
        seen.append(await servers.request(reader))
        await ok(page(*busy()))(reader_of(b"GET / HTTP/1.1\r\n\r\n"), writer)

    key = tmp_path / "key"
    key.write_text("s3cret\n")
    outcome = await outcome_of(collector, behave, EngineSettings(timeout=10, api_key_file=str(key)))
    ((path, headers),) = seen
    assert path == "/metrics"
    assert headers["accept"] == "text/plain;version=0.0.4"
    assert headers["authorization"] == "bearer s3cret"
    assert headers["accept-encoding"] == "identity"
    assert outcome[0] is not None
    assert "s3cret" not in repr(outcome)


def reader_of(data):
    """Give a stream that holds these bytes."""
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    return reader


async def test_without_a_usable_key_the_page_is_still_read(collector):
    """A key that cannot be read is a failure beside the reading."""
    settings = EngineSettings(timeout=10, api_key_file="/nonexistent/key")
    reading, failures = await outcome_of(collector, ok(page(*busy())), settings)
    assert reading.ranks[0].running == 1.0
    assert failures == (Failure("engine", "api_key_unreadable", "/nonexistent/key", "sglang:1"),)


@pytest.mark.parametrize(("trusted", "reason"), [("its own", None), ("another", "tls_error"), (None, None)])
async def test_tls_is_verified_as_for_a_probe(collector, tmp_path, trusted, reason):
    """The chain is verified where a CA is given; loopback without one is not."""
    authority, ca_file = trustme.CA(), tmp_path / "ca.pem"
    (trustme.CA() if trusted == "another" else authority).cert_pem.write_to_path(ca_file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("inference.example.org").configure_cert(context)
    settings = EngineSettings(timeout=10, ca_file=str(ca_file) if trusted else None)
    async with servers.serving(ok(page(*busy())), tls=context) as port:
        reading, failures = await collector.collect(server_at(port, tls=True), settings)
    assert [failure.reason for failure in failures] == [reason] * (reason is not None)
    assert (reading is None) == (reason is not None)


@pytest.mark.parametrize(
    ("given", "reason", "detail"),
    [
        ({"worker": True}, "worker_node", "the first node answers for this server"),
        ({"address": None, "absence": "no_port: it has no port"}, "no_port", "it has no port"),
        ({"address": None, "absence": "port_taken: by another"}, "port_taken", "by another"),
        ({"address": "localhost"}, "address_not_literal", "only a literal address is probed"),
    ],
)
async def test_what_has_no_page_says_why(collector, given, reason, detail):
    """A worker node, an embedded engine and an address that may not be asked are failures with their reason."""
    assert await collector.collect(server_at(9, **given), EngineSettings()) == failed(reason, detail)


async def test_an_engine_of_which_nothing_is_known_is_not_asked(collector):
    """Another engine has no names to look for."""
    outcome = await collector.collect(server_at(servers.closed_port(), "other"), EngineSettings())
    assert outcome == failed("no_engine_metrics", "nothing is known of this engine's metrics", "other:1")


async def test_an_unreadable_ca_is_no_result(collector):
    """Without the CA that was asked for, nothing is asked."""
    outcome = await collector.collect(server_at(9, tls=True), EngineSettings(ca_file="/nonexistent/ca.pem"))
    assert outcome == failed("ca_unreadable", "/nonexistent/ca.pem: No such file or directory")


async def test_counters_make_a_heartbeat_once_they_move(collector):
    """The first look tells nothing; from the first change on, the heartbeat is the look that saw the last change."""
    values = (7.0, 7.0, 8.0, 8.0, 9.0)
    readings = await readings_of(collector, *(page(*busy(), beating(value)) for value in values))
    assert [reading.ranks[0].heartbeat for reading in readings] == [None, None, 110.0, 110.0, 120.0]
    assert [reading.heartbeat_source for reading in readings] == ["", "", "metrics", "metrics", "metrics"]


async def test_another_life_begins_without_heartbeat(collector):
    """What an earlier life of a server has shown, or one that was forgotten, is not compared with this one."""
    async with servers.serving(Pages(*(page(beating(value)) for value in range(7)))) as port:
        beats = []
        for life in ("1", "1", "2", "2", "forget", "2", "2"):
            if life == "forget":
                collector.forget([])
                continue
            reading, _ = await collector.collect(server_at(port, incarnation=life), EngineSettings(timeout=10))
            beats.append(reading.ranks[0].heartbeat)
    assert beats == [None, 100.0, None, 100.0, None, 100.0]
    assert collector.load_files.kept == [[]]


async def test_ranks_keep_their_own_heartbeats(collector):
    """Of four ranks the one that stands is told from those that turn."""
    pages = [
        page(*(beating(min(look, 2) if rank == 2 else look, dp_rank=rank) for rank in range(4))) for look in (1, 2, 3)
    ]
    reading = (await readings_of(collector, *pages))[-1]
    assert [(rank.dp_rank, rank.heartbeat) for rank in reading.ranks] == [
        ("0", 110.0),
        ("1", 110.0),
        ("2", 105.0),
        ("3", 110.0),
    ]


async def test_loads_make_a_heartbeat_where_counters_do_not(collector):
    """Shared memory gives the heartbeat of each rank, and a rank that is not on the page, until counters have moved."""
    collector.load_files.loads = (Load("0", WALL - 40, 9.0, 9.0), Load("1", WALL - 2, 3.0, 4.0))
    first, second = await readings_of(collector, page(*busy(7), beating(1)), page(*busy(8), beating(2)))
    assert first.ranks == (
        EngineRank("0", 1.0, None, {"decode": 7.0}, live=True, heartbeat=60.0),
        EngineRank("1", 3.0, 4.0, heartbeat=98.0),
    )
    assert [first.heartbeat_source, second.heartbeat_source] == ["shm", "metrics"]
    assert [rank.heartbeat for rank in second.ranks] == [105.0, 98.0]


@pytest.mark.parametrize(
    ("behave", "reason"), [(servers.status("404 Not Found"), "not_enabled"), (servers.silent, "timeout")]
)
async def test_loads_are_a_reading_of_their_own(collector, behave, reason):
    """Where the page is off or silent, shared memory still tells of the work, and the failure stands beside it."""
    collector.load_files.loads = (Load("0", WALL - 3, 5.0, 6.0),)
    reading, failures = await outcome_of(collector, behave, EngineSettings(timeout=0.5))
    assert reading == EngineReading(100.0, "sglang:1", (EngineRank("0", 5.0, 6.0, heartbeat=97.0),), "shm")
    assert [failure.reason for failure in failures] == [reason]


async def test_loads_without_a_port_are_read(collector):
    """An engine embedded in another program has no port, and its schedulers' loads all the same."""
    collector.load_files.loads = (Load("0", WALL - 3, 0.0, 0.0),)
    reading, failures = await collector.collect(server_at(None, absence="no_port"), EngineSettings())
    assert reading.ranks == (EngineRank("0", 0.0, 0.0, heartbeat=97.0),)
    assert [failure.reason for failure in failures] == ["no_port"]


async def test_loads_belong_to_sglang(collector):
    """No other engine writes them."""
    collector.load_files.loads = (Load("0", WALL - 3, 0.0, 0.0),)
    outcome = await collector.collect(server_at(servers.closed_port(), "vllm"), EngineSettings())
    assert outcome == failed("refused", name="vllm:1")


async def test_a_real_file_of_this_process_is_read():
    """From /proc to the reading, on the clocks that the exporter goes by, with the file of this very process."""
    path = f"/dev/shm/sglang_loads_stallwatch-engine-{os.getpid()}_0123abcd.shm"
    collector = EngineCollector()
    stat = Procfs().stat(os.getpid())
    process = Process(stat.pid, stat.start_ticks, stat.started, "scheduler", "scheduler_TP0", "TP0")
    server = Server("s", "sglang", Launch(), (process,))
    with open(path, "wb") as file:
        try:
            file.write(pack(load(0, collector.wall(), num_running_reqs=2)))
            file.flush()
            reading, failures = await collector.collect(server, EngineSettings())
        finally:
            os.unlink(path)
    assert [failure.reason for failure in failures] == ["no_address"]
    (rank,) = reading.ranks
    assert (rank.dp_rank, rank.running, rank.queued) == ("0", 2.0, 0.0)
    assert reading.at - 60 < rank.heartbeat <= reading.at


async def test_the_collector_can_be_closed_unopened_and_opened_again():
    """Closing is harmless at any time."""
    collector = EngineCollector()
    await collector.close()
    for _ in range(2):
        assert await collector.collect(server_at(servers.closed_port()), EngineSettings()) == failed("refused")
        await collector.close()


def test_families_state_what_is_known():
    """Each rank has its samples, times are Unix times, and what is not known is absent."""
    full = EngineRank("0", 1.0, 2.0, {"prompt": 5.0, "decode": 6.0}, live=True, heartbeat=50.0, paused=1.0)
    reading = EngineReading(55.0, "s", (full, EngineRank("1")), "metrics")
    found = {family.name: family for family in families([reading], Moment(unix=1000.0, monotonic=60.0, boottime=60.0))}
    assert {name: (family.kind, family.labels, family.samples) for name, family in found.items()} == {
        "stallwatch_engine_requests_running": ("gauge", ("server", "dp_rank"), ((("s", "0"), 1.0),)),
        "stallwatch_engine_requests_queued": ("gauge", ("server", "dp_rank"), ((("s", "0"), 2.0),)),
        "stallwatch_engine_heartbeat_timestamp_seconds": ("gauge", ("server", "dp_rank"), ((("s", "0"), 990.0),)),
        "stallwatch_engine_tokens_total": (
            "counter",
            ("server", "dp_rank", "kind"),
            ((("s", "0", "prompt"), 5.0), (("s", "0", "decode"), 6.0)),
        ),
    }


def test_zero_is_stated():
    """An idle rank has its zeros, unlike one of which nothing is known."""
    reading = EngineReading(55.0, "s", (EngineRank("0", 0.0, 0.0, {"decode": 0.0}),))
    counts = [family.samples for family in families([reading], Moment(1000.0, 60.0, 60.0))]
    assert [len(samples) for samples in counts] == [1, 1, 0, 1]
