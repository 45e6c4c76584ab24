"""What does the exporter serve? Never more than what is already at hand: no request reads anything of the node."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from stallwatch.exposition import Exposition
from stallwatch.gate.admission import Gate
from stallwatch.pages.node import READY_WITHIN
from stallwatch.release import USUAL_SECONDS, Released, seconds_of
from stallwatch.report import report
from stallwatch.sections import WebConfig
from stallwatch.status import StatusPage
from stallwatch.trends import Trends
from stallwatch.view import View

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "deny",
    "Referrer-Policy": "no-referrer",
}

RELEASE_REFUSED = """releasing the GPUs over HTTP needs --web.enable-lifecycle
without it, SIGUSR1 to the exporter releases them for 5 min: kill -USR1 PID
"""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Orders:
    """What the exporter can be told to do over HTTP.

    `reload` reads the configuration again and returns None or what is wrong with it; `release` lets go of the GPUs for
    so many seconds.
    """

    reload: Callable[[], Awaitable[str | None]]
    release: Callable[[float], Awaitable[Released]]


def application(  # noqa: PLR0913 one argument per part
    config: WebConfig,
    exposition: Exposition,
    view: Callable[[], View],
    orders: Orders,
    page: StatusPage | None = None,
    *,
    gate: Gate | None = None,
) -> web.Application:
    """Return the aiohttp application; without a gate, which dresses all answers too, everybody is answered."""

    async def metrics(request: web.Request) -> web.Response:
        scrape = exposition.page(request.headers.get("Accept", ""))
        headers = {"Content-Type": scrape.content_type, "Vary": "Accept, Accept-Encoding"}
        return _zipped_or_plain(request, scrape.zipped, scrape.plain, headers)

    async def status_json(_request: web.Request) -> web.Response:
        return web.json_response(report(view()))

    async def healthy(_request: web.Request) -> web.Response:
        return web.Response(text="stallwatch is healthy\n")

    async def ready(_request: web.Request) -> web.Response:
        current = view()
        age = time.monotonic() - current.snapshot.moment.monotonic
        if not current.lanes or age > READY_WITHIN:
            return web.Response(status=503, text="stallwatch has no fresh snapshot\n")
        return web.Response(text="stallwatch is ready\n")

    async def reload_now(_request: web.Request) -> web.Response:
        if not config.enable_lifecycle:
            return web.Response(status=403, text="reloading over HTTP needs --web.enable-lifecycle\n")
        error = await orders.reload()
        return web.Response(status=400, text=f"{error}\n") if error else web.Response(text="reloaded\n")

    app = web.Application(middlewares=[gate.admit if gate else _secured], client_max_size=64 * 1024)
    app.router.add_get(config.telemetry_path, metrics)
    _serve_page(app, page or StatusPage(view, Trends(), config.telemetry_path))
    app.router.add_get("/api/v1/status", status_json)
    app.router.add_get("/-/healthy", healthy)
    app.router.add_get("/-/ready", ready)
    app.router.add_post("/-/reload", _of_no_other_site(reload_now))
    app.router.add_post("/-/gpu/release", _of_no_other_site(_releasing(config, orders)))
    return app


def _serve_page(app: web.Application, page: StatusPage) -> None:
    async def index(request: web.Request) -> web.Response:
        rendered = await page.rendered()
        headers = {
            "Content-Type": "text/html; charset=utf-8",
            "Cache-Control": "no-cache",
            "Vary": "Accept-Encoding",
        }
        return _zipped_or_plain(request, rendered.zipped, rendered.plain, headers)

    async def asset(request: web.Request) -> web.Response:
        found = page.asset(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        headers = {"Cache-Control": found.caching(request.query.get("v"))}
        return web.Response(body=found.body, content_type=found.content_type, charset="utf-8", headers=headers)

    app.router.add_get("/", index)
    app.router.add_get("/assets/{name}", asset)


def _zipped_or_plain(request: web.Request, zipped: bytes, plain: bytes, headers: dict[str, str]) -> web.Response:
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        return web.Response(body=zipped, headers={**headers, "Content-Encoding": "gzip"})
    return web.Response(body=plain, headers=headers)


@web.middleware
async def _secured(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as answer:  # such as 404
        answer.headers.update(SECURITY_HEADERS)
        raise
    response.headers.update(SECURITY_HEADERS)
    return response


def _of_no_other_site(handler: Handler) -> Handler:
    """Refuse what a page of another site has a browser send, with the rights and the password of who looks at it."""

    async def handle(request: web.Request) -> web.StreamResponse:
        here = request.headers.get("Host", "")  # `request.host` would look our name up where there is none
        origin = request.headers.get("Origin", f"http://{here}").partition("://")[2]
        site = request.headers.get("Sec-Fetch-Site", "none")
        if origin.lower() != here.lower() or site not in {"same-origin", "none"}:
            return web.Response(status=403, text="refused: a web page of another site sent this\n")
        return await handler(request)

    return handle


def _releasing(config: WebConfig, orders: Orders) -> Handler:
    async def release_now(request: web.Request) -> web.Response:
        if not config.enable_lifecycle:
            return web.Response(status=403, text=RELEASE_REFUSED)
        try:
            seconds = seconds_of(request.query.get("for", f"{USUAL_SECONDS:g}s"))
        except ValueError as error:
            return web.Response(status=400, text=f"for: {error}\n")
        released = await orders.release(seconds)
        return web.Response(status=202 if released.holders else 200, text=released.text())

    return release_now
