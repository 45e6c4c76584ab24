"""A real Chromium, driven through its DevTools protocol: what it shows, what it complains of, what it reads out."""

import asyncio
import itertools
import subprocess
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

FLAGS = (
    *(Path(__file__).parents[1] / "grafana/preview/chromium_flags.txt").read_text().split(),
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)
COMPLAINTS = {"Runtime.exceptionThrown", "Log.entryAdded"}
LOUD = {"error", "warning", "assert"}


class Chromium:
    """A browser process with a profile of its own."""

    def __init__(self):
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        command = ["chromium", *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.port = self._wait_for_port(time.monotonic() + 30)

    def _wait_for_port(self, until):
        file = Path(self._profile.name) / "DevToolsActivePort"
        while time.monotonic() < until:
            assert self._process.poll() is None, "chromium has ended"
            lines = file.read_text().splitlines() if file.exists() else []
            if len(lines) == 2:
                return int(lines[0])
            time.sleep(0.05)
        self.close()
        raise AssertionError("chromium does not say its port")

    def close(self):
        """End the browser and what it wrote."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._profile.cleanup()

    @asynccontextmanager
    async def tab(self, width=1280, height=900, *, dark=False, script=True):
        """Open a tab with a window of this size and close it at the end."""
        async with aiohttp.ClientSession() as session:
            base = f"http://127.0.0.1:{self.port}/json"
            async with session.put(f"{base}/new?about:blank") as answer:
                target = await answer.json()
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                tab = Tab(socket)
                await tab.begin(width, height, dark=dark, script=script)
                yield tab
                await tab.end()
            async with session.get(f"{base}/close/{target['id']}"):
                pass


class Tab:
    """One page and all that it complained of: exceptions, console errors, violations of its policy, failed loads."""

    def __init__(self, socket):
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers = {}
        self._reader = asyncio.create_task(self._read())
        self._waiting = {}
        self.complaints = []

    async def _read(self):
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
            else:
                self._take(told)

    def _take(self, event):
        method, parameters = event["method"], event["params"]
        if method in COMPLAINTS or (method == "Runtime.consoleAPICalled" and parameters["type"] in LOUD):
            self.complaints.append(parameters)
        if waiting := self._waiting.pop(method, None):
            waiting.set_result(parameters)

    async def send(self, method, **parameters):
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        self._answers[number] = answer = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        told = await asyncio.wait_for(answer, 20)
        assert "error" not in told, (method, told["error"])
        return told["result"]

    def event(self, method):
        """Return a future of the next event of this kind."""
        self._waiting[method] = asyncio.get_running_loop().create_future()
        return self._waiting[method]

    async def begin(self, width, height, *, dark, script):
        """Set the window up and listen."""
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            await self.send(f"{domain}.enable")
        await self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])
        await self.send("Emulation.setScriptExecutionDisabled", value=not script)

    async def resize(self, width, height):
        """Give the window another size."""
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def end(self):
        """Listen no longer."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def open(self, address):
        """Load a page and wait until it is there."""
        loaded = self.event("Page.loadEventFired")
        await self.send("Page.navigate", url=str(address))
        await asyncio.wait_for(loaded, 20)

    async def evaluate(self, expression):
        """Return the value of an expression, awaited where it is a promise."""
        result = await self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    async def until(self, expression, within=10.0):
        """Return the value of an expression once it is true."""
        end = time.monotonic() + within
        while not (value := await self.evaluate(expression)):
            assert time.monotonic() < end, f"never true: {expression}"
            await asyncio.sleep(0.05)
        return value

    async def press(self, key, code, text=""):
        """Press and release a key, which may type something."""
        for kind, typed in (("keyDown", text), ("keyUp", "")):
            await self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=typed
            )

    async def names(self):
        """Return (role, name, description) of all that a screen reader is told of, in order."""
        nodes = (await self.send("Accessibility.getFullAXTree"))["nodes"]
        told = [node for node in nodes if not node.get("ignored")]
        return [tuple(node.get(part, {}).get("value", "") for part in ("role", "name", "description")) for node in told]
