"""How does a dashboard look? Drawn by Grafana's own components in a headless Chromium, with data from a Prometheus."""

import argparse
import asyncio
import base64
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from browser import PATIENCE, DrawError, browser

BUNDLE = Path(__file__).parent / "dist"
SETTLE = 0.5
DURATION = re.compile(r"(\d+)([smhd])")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Drawing:
    """A PNG, and what of it is not as Grafana would draw it, one line each."""

    png: bytes
    problems: tuple[str, ...]


async def draw(job: dict[str, Any], width: int, height: int | None = None) -> Drawing:
    """Draw a dashboard so many pixels wide; panels that end below the height are left out."""
    async with _served(job) as url, browser() as page:
        await page.resize(width, 100)
        await page.ask("Page.navigate", url=url)
        drawn = await page.value("window.drawn", PATIENCE)
        if not drawn["height"]:
            raise DrawError("; ".join(drawn["problems"]))
        # Tables are only painted where they are seen.
        await page.resize(width, _cut(drawn["cuts"], drawn["height"], height))
        await asyncio.sleep(SETTLE)
        shot = await page.ask("Page.captureScreenshot", format="png")
    empty = (f"{panel}: no data" for panel in drawn["empty"])
    return Drawing(base64.b64decode(shot["data"]), (*drawn["problems"], *empty, *page.complaints))


def _cut(cuts: Sequence[int], whole: int, height: int | None) -> int:
    """Return how high the picture is: whole, or up to the last cut above the height."""
    return whole if height is None else max((cut for cut in cuts if cut <= height), default=whole)


@asynccontextmanager
async def _served(job: dict[str, Any]) -> AsyncIterator[str]:
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
    parser.add_argument(
        "--height", type=int, default=None, help="leave out panels that end below so many pixels (none)"
    )
    parser.add_argument("--theme", choices=("dark", "light"), default="dark")
    parser.add_argument("--time-zone", default="utc")
    return parser.parse_args()


def job_for(
    dashboard: Path,
    prometheus: str,
    *,
    begin: float,
    end: float,
    scrape_interval: int = 15,
    variables: Mapping[str, list[str]] | None = None,
    theme: str = "dark",
    time_zone: str = "utc",
) -> dict[str, Any]:
    """Return what the page is to draw; begin and end are seconds since the epoch."""
    return {
        "dashboard": json.loads(dashboard.read_text()),
        "prometheus": prometheus.rstrip("/"),
        "variables": variables or {},
        "from": int(begin * 1000),
        "to": int(end * 1000),
        "timeZone": time_zone,
        "theme": theme,
        "scrapeInterval": scrape_interval,
    }


def _job_of(arguments: argparse.Namespace) -> dict[str, Any]:
    end = arguments.end or time.time()
    return job_for(
        arguments.dashboard,
        arguments.prometheus,
        begin=end - arguments.last,
        end=end,
        scrape_interval=arguments.scrape_interval,
        variables=variables(arguments.var),
        theme=arguments.theme,
        time_zone=arguments.time_zone,
    )


def main() -> int:
    """Draw, say what is not as it would be in Grafana, and return the exit code: 1 where there is no picture."""
    arguments = _arguments()
    try:
        drawing = asyncio.run(draw(_job_of(arguments), arguments.width, arguments.height))
        arguments.picture.write_bytes(drawing.png)
    except (DrawError, OSError, json.JSONDecodeError) as error:
        print(f"{arguments.dashboard}: {error}", file=sys.stderr)
        return 1
    for problem in drawing.problems:
        print(f"{arguments.dashboard}: {problem}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
