"""How does a dashboard look? Drawn by Grafana's own components in a headless Chromium, with data from a Prometheus."""

import argparse
import asyncio
import base64
import json
import math
import re
import shutil
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse, web

BUNDLE = Path(__file__).parent / "dist"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
PATIENCE = 60.0
SETTLE = 0.5
DURATION = re.compile(r"(\d+)([smhd])")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class DrawError(Exception):
    """Why there is no picture."""


async def draw(job: dict[str, Any], picture: Path, width: int, height: int | None = None) -> list[str]:
    """Write the picture of a dashboard as PNG; returns what could not be drawn as Grafana would, one line each."""
    async with _page(job) as url, _browser() as page:
        await page.resize(width, 100)
        await page.ask("Page.navigate", url=url)
        drawn = await page.value("window.drawn", PATIENCE)
        if not drawn["height"]:
            raise DrawError("; ".join(drawn["problems"]))
        await page.resize(width, min(drawn["height"], height or math.inf))  # tables are only painted where they are seen
        await asyncio.sleep(SETTLE)
        shot = await page.ask("Page.captureScreenshot", format="png")
    picture.write_bytes(base64.b64decode(shot["data"]))
    return [*drawn["problems"], *(f"{panel}: no data" for panel in drawn["empty"]), *page.complaints]


class Page:
    """One page of the browser, spoken to through its debugging protocol; `complaints` are errors of its scripts."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        self._socket = socket
        self._asked = 0

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return what the browser answers to a command."""
        self._asked += 1
        await self._socket.send_json({"id": self._asked, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json(timeout=PATIENCE)
            self.complaints += _complaints(message)
            if message.get("id") == self._asked:
                if "error" in message:
                    raise DrawError(f"{method}: {message['error']['message']}")
                return dict(message["result"])

    async def resize(self, width: int, height: float) -> None:
        """Give the page a size in pixels."""
        size = {"width": width, "height": int(height), "deviceScaleFactor": 1, "mobile": False}
        await self.ask("Emulation.setDeviceMetricsOverride", **size)

    async def value(self, expression: str, patience: float) -> Any:
        """Return the value of an expression as soon as it has one."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            answer = await self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
            if (value := answer["result"].get("value")) is not None:
                return value
            await asyncio.sleep(0.2)
        raise DrawError(f"nothing drawn within {patience:.0f} s; {'; '.join(self.complaints) or 'no error was seen'}")


def _complaints(message: dict[str, Any]) -> list[str]:
    """Return what a message of the browser tells of errors."""
    parameters = message.get("params", {})
    if message.get("method") == "Runtime.exceptionThrown":
        details = parameters["exceptionDetails"]
        return [details.get("exception", {}).get("description", details["text"])]
    if message.get("method") == "Runtime.consoleAPICalled" and parameters["type"] == "error":
        return [" ".join(str(part.get("description") or part.get("value")) for part in parameters["args"])]
    return []


@asynccontextmanager
async def _page(job: dict[str, Any]) -> AsyncIterator[str]:
    """Serve the bundle and what it is to draw on a free loopback port."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(job)

    app = web.Application()
    app.router.add_get("/job.json", answer)
    app.router.add_static("/", BUNDLE)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/index.html"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _browser() -> AsyncIterator[Page]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise DrawError(f"no browser found: one of {', '.join(BROWSERS)} is needed")
    with tempfile.TemporaryDirectory(prefix="stallwatch-preview-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            program, *FLAGS, f"--user-data-dir={profile}", "about:blank", stdout=DEVNULL, stderr=PIPE
        )
        try:
            assert process.stderr
            address = await asyncio.wait_for(_debugger(process.stderr), PATIENCE)
            draining = asyncio.create_task(process.stderr.read())
            async with ClientSession() as session:
                async with session.get(f"http://{address}/json/list") as answer:
                    pages = [one for one in await answer.json(content_type=None) if one["type"] == "page"]
                async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    await page.ask("Runtime.enable")
                    yield page
            draining.cancel()
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def _debugger(stderr: asyncio.StreamReader) -> str:
    while line := await stderr.readline():
        if found := re.search(rb"DevTools listening on ws://([^/]+)/", line):
            return found[1].decode()
    raise DrawError("the browser ended before it listened")


def seconds(text: str) -> int:
    """Read a duration such as 90s or 15m."""
    parts = DURATION.fullmatch(text)
    if not parts:
        raise argparse.ArgumentTypeError(f"{text}: not a duration such as 90s, 15m or 6h")
    return int(parts[1]) * UNITS[parts[2]]


def variables(pairs: list[str]) -> dict[str, list[str]]:
    """Read NAME=VALUE pairs; a name that comes again has several values."""
    values: dict[str, list[str]] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise DrawError(f"--var {pair}: NAME=VALUE is needed")
        values.setdefault(name, []).append(value)
    return values


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dashboard", type=Path, help="its JSON")
    parser.add_argument("picture", type=Path, help="the PNG to write")
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", metavar="URL")
    parser.add_argument("--var", action="append", default=[], metavar="NAME=VALUE", help="a variable; else its default")
    parser.add_argument("--last", type=seconds, default=seconds("15m"), metavar="DURATION", help="how far back (15m)")
    parser.add_argument("--end", type=float, default=None, metavar="EPOCH", help="the end of the range (now)")
    parser.add_argument("--scrape-interval", type=seconds, default=15, metavar="DURATION", help="as in the data source")
    parser.add_argument("--width", type=int, default=1600, help="in pixels (1600)")
    parser.add_argument("--height", type=int, default=None, help="cut off below so many pixels (not at all)")
    parser.add_argument("--theme", choices=("dark", "light"), default="dark")
    parser.add_argument("--time-zone", default="utc")
    return parser.parse_args()


def job_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the page is to draw."""
    end = arguments.end or time.time()
    return {
        "dashboard": json.loads(arguments.dashboard.read_text()),
        "prometheus": arguments.prometheus.rstrip("/"),
        "variables": variables(arguments.var),
        "from": int((end - arguments.last) * 1000),
        "to": int(end * 1000),
        "timeZone": arguments.time_zone,
        "theme": arguments.theme,
        "scrapeInterval": arguments.scrape_interval,
    }


def main() -> int:
    """Draw, say what is not as it would be in Grafana, and return the exit code: 1 where there is no picture."""
    arguments = _arguments()
    try:
        problems = asyncio.run(draw(job_of(arguments), arguments.picture, arguments.width, arguments.height))
    except (DrawError, OSError, json.JSONDecodeError) as error:
        print(f"{arguments.dashboard}: {error}", file=sys.stderr)
        return 1
    for problem in problems:
        print(f"{arguments.dashboard}: {problem}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
