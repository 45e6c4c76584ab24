"""What does the exporter serve? Never more than what is already at hand: no request reads anything of the node."""

import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from stallwatch import status
from stallwatch.config import WebConfig
from stallwatch.exposition import Exposition
from stallwatch.gate.admission import Gate
from stallwatch.monitor import View
from stallwatch.report import report

READY_WITHIN = 30.0
"""A snapshot older than this many seconds means that the exporter itself is not well."""

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "deny",
    "Referrer-Policy": "no-referrer",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(
    config: WebConfig,
    exposition: Exposition,
    view: Callable[[], View],
    reload: Callable[[], Awaitable[str | None]],
    gate: Gate | None = None,
) -> web.Application:
    """Return the aiohttp application; `reload` returns None or what is wrong with the configuration."""

    async def metrics(request: web.Request) -> web.Response:
        page = exposition.page(request.headers.get("Accept", ""))
        headers = {"Content-Type": page.content_type, "Vary": "Accept, Accept-Encoding"}
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=page.zipped, headers={**headers, "Content-Encoding": "gzip"})
        return web.Response(body=page.plain, headers=headers)

    async def index(_request: web.Request) -> web.Response:
        return web.Response(text=status.page(view(), config.telemetry_path), content_type="text/html")

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
        error = await reload()
        return web.Response(status=400, text=f"{error}\n") if error else web.Response(text="reloaded\n")

    app = web.Application(middlewares=[*([gate.admit] if gate else []), _secured], client_max_size=64 * 1024)
    app.router.add_get(config.telemetry_path, metrics)
    app.router.add_get("/", index)
    app.router.add_get("/api/v1/status", status_json)
    app.router.add_get("/-/healthy", healthy)
    app.router.add_get("/-/ready", ready)
    app.router.add_post("/-/reload", reload_now)
    return app


@web.middleware
async def _secured(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as answer:  # such as 404
        answer.headers.update(SECURITY_HEADERS)
        raise
    response.headers.update(SECURITY_HEADERS)
    return response
