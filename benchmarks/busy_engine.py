"""How does an engine fare whose event loop is busy? Steps of some milliseconds, and answers to probes in between.

It runs as `python -m sglang.launch_server --port N` through a stub of that name. `/health` takes a second, as SGLang's
does, and `/metrics` is written by prometheus_client out of as many series as a real page has. For each line of standard
input it tells as JSON how long its steps took since the line before.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

STEP_SECONDS = 0.002
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"


class Page:
    """The families of a recorded page, written anew for each who asks."""

    def __init__(self, page: Path) -> None:
        text = page.read_bytes().partition(b"\r\n\r\n")[2].decode()
        self._families = list(text_string_to_metric_families(text))

    def collect(self) -> list[object]:
        """Return the families, as prometheus_client asks a registry for them."""
        return list(self._families)


class Engine:
    """A loop that works, and answers."""

    def __init__(self, page: Path) -> None:
        self._page, self._steps, self._asked = Page(page), [], 0

    async def work(self) -> None:
        """Work step by step; what answers take of the loop makes a step longer. Counted is CPU time of this thread."""
        while True:
            begin = time.thread_time()
            while time.thread_time() - begin < STEP_SECONDS:
                pass
            await asyncio.sleep(0)
            self._steps.append(time.thread_time() - begin)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        path = (await reader.readline()).split()[1]
        self._asked += 1
        if path == b"/metrics":
            body = generate_latest(self._page)  # type: ignore[arg-type]
        else:
            await asyncio.sleep(1.0)
            body = b""
        writer.write(HEAD % len(body) + body)
        writer.close()

    async def run(self, port: int) -> None:
        """Work, answer, and tell, until standard input ends."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        await asyncio.start_server(self.answer, "127.0.0.1", port)
        working = asyncio.create_task(self.work())
        while await reader.readline():
            print(json.dumps({"steps": self._steps, "asked": self._asked}), flush=True)
            self._steps, self._asked = [], 0
        working.cancel()


def main() -> None:
    """Run on the port that the flags name."""
    asyncio.run(Engine(Path(sys.argv[-1])).run(int(sys.argv[sys.argv.index("--port") + 1])))
