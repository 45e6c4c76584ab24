"""Draws the status page of a played node as PNG files: `python docs/make_page_pictures.py docs` (needs Chromium)."""

import asyncio
import sys
import tempfile
from pathlib import Path

from aiohttp import web

from stallwatch.exposition import Exposition
from stallwatch.sections import WebConfig
from stallwatch.simulation.scenario import load_scenario
from stallwatch.simulation.shown import Shown, shown
from stallwatch.status import StatusPage
from stallwatch.web import Orders, application

NODE = "gpu-node-7"
AT = 41 * 60.0
NIGHT = Path(__file__).parent / "page_night.yml"
PICTURES = {
    "page_stalled.png": (1280, 925, "light"),
    "page_stalled_dark.png": (1280, 925, "dark"),
    "page_phone.png": (390, 844, "dark"),
}
SCHEMES = {"dark": 0, "light": 1}
FLAGS = (Path(__file__).parents[1] / "grafana/preview/chromium_flags.txt").read_text().split()


async def main(folder: Path) -> None:
    """Play the night, serve its page and take the pictures."""
    runner, address = await served(shown(load_scenario(NIGHT), AT))
    try:
        for name, (width, height, scheme) in PICTURES.items():
            await take(address, folder / name, width, height, scheme)
    finally:
        await runner.cleanup()


async def served(night: Shown) -> tuple[web.AppRunner, str]:
    """Serve what is shown as the exporter does, and return where."""
    now = night.view.snapshot.moment.monotonic
    page = StatusPage(lambda: night.view, night.trends, name=NODE, clock=lambda: now)
    runner = web.AppRunner(
        application(WebConfig(), Exposition(night.view), lambda: night.view, Orders(nothing, nothing), page)
    )
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    return runner, f"http://{host}:{port}/"


async def nothing(*_: object) -> None:
    """Obey no order."""


async def take(address: str, target: Path, width: int, height: int, scheme: str) -> None:
    """Have Chromium take one picture."""
    with tempfile.TemporaryDirectory() as profile:
        flags = (
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            f"--screenshot={target}",
            f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
        )
        browser = await asyncio.create_subprocess_exec(
            "chromium", *FLAGS, *flags, address, stderr=asyncio.subprocess.DEVNULL
        )
        if await browser.wait():
            sys.exit(f"no picture {target}: chromium ended with {browser.returncode}")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]).resolve()))
