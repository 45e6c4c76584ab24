"""Web: what each address answers, and that nothing it says can be more than text."""

import asyncio
import gzip
import re
import time
from dataclasses import replace

import pytest
from aiohttp.test_utils import TestClient, TestServer

from readings import a_server
from stallwatch.exposition import Exposition
from stallwatch.release import Released
from stallwatch.sections import WebConfig
from stallwatch.snapshot import Failure, Moment, Snapshot
from stallwatch.status import StatusPage
from stallwatch.trends import Trends
from stallwatch.view import View
from stallwatch.web import Orders, application
from test_exposition import OPENMETRICS, a_view

EMPTY = View(Snapshot(Moment(0.0, 0.0, 0.0)), {}, (), ())


@pytest.fixture
async def serve():
    """Serve an application and return a client of it."""
    clients = []

    async def start(view=EMPTY, reload_error=None, **config):
        async def reload():
            return reload_error

        async def release(_seconds):
            return Released(0.0)

        app = application(WebConfig(**config), Exposition(view), lambda: view, Orders(reload, release))
        clients.append(TestClient(TestServer(app)))
        await clients[-1].start_server()
        return clients[-1]

    yield start
    for client in clients:
        await client.close()


async def test_metrics_in_the_format_that_is_asked_for(serve):
    """Prometheus gets OpenMetrics, others text, gzipped where they take it."""
    client = await serve(a_view())
    text = await client.get("/metrics")
    assert text.headers["Content-Type"].startswith("text/plain; version=")
    assert b"stallwatch_build_info" in await text.read()
    openmetrics = await client.get("/metrics", headers={"Accept": OPENMETRICS})
    assert openmetrics.headers["Content-Type"].startswith("application/openmetrics-text")
    assert openmetrics.headers["Content-Encoding"] == "gzip"
    assert (await openmetrics.read()).endswith(b"# EOF\n")


async def test_metrics_are_plain_for_those_who_cannot_unzip(serve):
    """Without Accept-Encoding the bytes are plain."""
    client = await serve(a_view())
    response = await client.get("/metrics", headers={"Accept-Encoding": "identity"}, auto_decompress=False)
    assert "Content-Encoding" not in response.headers
    with pytest.raises(gzip.BadGzipFile):
        gzip.decompress(await response.read())


async def test_the_path_of_the_metrics_is_configured(serve):
    """Another telemetry path is served and linked, and the usual one is not there."""
    client = await serve(a_view(), telemetry_path="/stats")
    assert (await client.get("/stats")).status == 200
    assert (await client.get("/metrics")).status == 404
    assert 'href="stats"' in await (await client.get("/")).text()


async def test_the_page_says_how_each_server_is(serve):
    """A person sees the verdict on each server with its reason, and what cannot be read."""
    view = a_view()
    view = replace(
        view, snapshot=replace(view.snapshot, failures=(Failure("log", "terminal", "writes to a terminal", "a"),))
    )
    text = await (await (await serve(view)).get("/")).text()
    assert 'data-server="sglang:30000" data-verdict="idle"' in text
    assert "its scheduler answers" in text or "no request" in text
    assert "<bdi>a</bdi>: <b>log</b>: terminal (<bdi>writes to a terminal</bdi>)" in text


async def test_what_a_server_calls_itself_is_escaped(serve):
    """A server named like a script is text on the page."""
    view = a_view(servers=(a_server(name="<script>alert(1)</script>"),))
    response = await (await serve(view)).get("/")
    text = await response.text()
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_the_page_is_zipped_for_those_who_can_unzip(serve):
    """The same page either way, never kept without asking, and HEAD answers without a body."""
    client = await serve(a_view(now=time.monotonic()))
    plain = await client.get("/", headers={"Accept-Encoding": "identity"})
    zipped = await client.get("/")
    assert (plain.headers.get("Content-Encoding"), zipped.headers["Content-Encoding"]) == (None, "gzip")
    assert await plain.read() == await zipped.read()
    assert zipped.headers["Cache-Control"] == "no-cache"
    assert zipped.headers["Content-Type"] == "text/html; charset=utf-8"
    head = await client.head("/", headers={"Accept-Encoding": "identity"})
    assert (head.status, await head.read()) == (200, b"")
    assert head.headers["Content-Length"] == plain.headers["Content-Length"]


async def test_a_scrape_does_not_wait_for_the_page():
    """The page of a large node is still being rendered when a scrape that came after it has its answer."""
    view = a_view(now=time.monotonic(), servers=[a_server(name=f"a:{number}") for number in range(256)])
    begun = asyncio.Event()

    def seen():
        begun.set()
        return view

    app = application(
        WebConfig(), Exposition(view), lambda: view, Orders(None, None), StatusPage(seen, Trends(), "/metrics")
    )
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/metrics")).status == 200
        page = asyncio.create_task(client.get("/"))
        await begun.wait()
        assert (await client.get("/metrics")).status == 200
        assert not page.done()
        assert (await page).status == 200


async def test_style_script_and_icon_are_kept_until_they_change(serve):
    """What the page refers to is there under the address of its content; under any other it is asked for again."""
    client = await serve(a_view(now=time.monotonic()))
    found = re.findall(r'(?:href|src)="(assets/[^"]+)"', await (await client.get("/")).text())
    kinds = {}
    for address in found:
        response = await client.get(f"/{address}")
        assert (response.status, response.headers["Cache-Control"]) == (200, "public, max-age=31536000, immutable")
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        kinds[address.partition("?")[0]] = response.content_type
    assert kinds == {
        "assets/idle.svg": "image/svg+xml",
        "assets/style.css": "text/css",
        "assets/refresh.js": "text/javascript",
    }
    assert (await client.get("/assets/style.css?v=older")).headers["Cache-Control"] == "no-cache"
    assert (await client.head("/assets/style.css")).status == 200


@pytest.mark.parametrize("name", ["..%2fcards.py", "cards.py", "", "style.css/"])
async def test_nothing_else_is_served_beside_them(serve, name):
    """No other file of the package can be reached."""
    assert (await (await serve(a_view())).get(f"/assets/{name}")).status == 404


async def test_healthy_is_about_the_process_and_ready_about_the_snapshot(serve):
    """Before the first look the exporter is healthy but not ready; with a fresh snapshot it is both."""
    client = await serve()
    assert (await client.get("/-/healthy")).status == 200
    assert (await client.get("/-/ready")).status == 503
    assert (await (await serve(a_view(now=time.monotonic()))).get("/-/ready")).status == 200
    assert (await (await serve(a_view(now=time.monotonic() - 31))).get("/-/ready")).status == 503


async def test_reload_over_http_is_off_unless_enabled(serve):
    """POST /-/reload is refused by default, and says what is wrong with a bad file when it is on."""
    assert (await (await serve()).post("/-/reload")).status == 403
    assert (await (await serve(enable_lifecycle=True)).post("/-/reload")).status == 200
    bad = await (await serve(enable_lifecycle=True, reload_error="stallwatch.yml: x: unknown key")).post("/-/reload")
    assert (bad.status, await bad.text()) == (400, "stallwatch.yml: x: unknown key\n")
    assert (await (await serve(enable_lifecycle=True)).get("/-/reload")).status == 405


ORDERS = ("/-/reload", "/-/gpu/release")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://{host}"},
        {"Origin": "https://example.org"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://{host}.example.org"},
    ],
)
async def test_a_page_of_another_site_cannot_give_orders(serve, order, headers):
    """What somebody's browser is made to send is refused, whoever looks at that page."""
    client = await serve(enable_lifecycle=True)
    sent = {name: value.format(host=f"127.0.0.1:{client.port}") for name, value in headers.items()}
    answer = await client.post(order, headers=sent)
    assert (answer.status, await answer.text()) == (403, "refused: a web page of another site sent this\n")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "headers",
    [{}, {"Sec-Fetch-Site": "none"}, {"Sec-Fetch-Site": "same-origin", "Origin": "http://{host}"}],
)
async def test_who_gives_orders_at_first_hand_is_heard(serve, order, headers):
    """A command sends neither header, a browser that is at this address says so."""
    client = await serve(enable_lifecycle=True)
    sent = {name: value.format(host=f"127.0.0.1:{client.port}") for name, value in headers.items()}
    assert (await client.post(order, headers=sent)).status == 200
