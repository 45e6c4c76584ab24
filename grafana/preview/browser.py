"""How is a browser made to draw a page? A headless Chromium, spoken to through its debugging protocol."""

import asyncio
import shutil
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (*Path(__file__).with_name("chromium_flags.txt").read_text().split(), "--remote-debugging-port=0")
PATIENCE = 60.0


class DrawError(Exception):
    """Why there is no picture."""


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

    async def resize(self, width: int, height: int) -> None:
        """Give the page a size in pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
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
async def browser() -> AsyncIterator[Page]:
    """Start a browser with an empty profile; yields its page, and ends it."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise DrawError(f"no browser found: one of {', '.join(BROWSERS)} is needed")
    with tempfile.TemporaryDirectory(prefix="stallwatch-preview-", ignore_cleanup_errors=True) as profile:
        command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = await asyncio.create_subprocess_exec(*command, stdout=DEVNULL, stderr=DEVNULL)
        try:
            async with ClientSession() as session, _page(session, await _port(profile)) as page:
                await page.ask("Runtime.enable")
                yield page
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def _port(profile: str) -> int:
    """Return where the browser listens, which it writes to a file once it does."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if port := _written(Path(profile, "DevToolsActivePort")):
            return port
        await asyncio.sleep(0.1)
    raise DrawError(f"the browser does not listen within {PATIENCE:.0f} s")


def _written(file: Path) -> int:
    """Return the first line of a file as a number, 0 where there is none yet."""
    lines = file.read_text().splitlines() if file.exists() else []
    return int(lines[0]) if lines else 0


@asynccontextmanager
async def _page(session: ClientSession, port: int) -> AsyncIterator[Page]:
    async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
        pages = [one for one in await answer.json(content_type=None) if one["type"] == "page"]
    async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
        yield Page(socket)
