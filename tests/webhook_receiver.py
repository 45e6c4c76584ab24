"""A receiver of webhooks that takes, refuses or keeps waiting, and views of servers that it is told of."""

import asyncio
import contextlib
import json

import health_servers as servers
from readings import a_server, a_snapshot
from stallwatch.verdict import Verdict
from stallwatch.view import View


class Receiver:
    """Answers each POST with the next of `answers` (a status line; None: never), the last one again and again."""

    def __init__(self, *answers):
        self.answers = list(answers) or ["200 OK"]
        self.posts = asyncio.Queue()  # (path, headers, decoded body)
        self.port = None
        self.in_flight = 0
        self.most_in_flight = 0

    @property
    def url(self):
        """Return where it is, with a path that nobody else has."""
        return f"http://127.0.0.1:{self.port}/hook/canary-path?token=canary-token"

    @contextlib.asynccontextmanager
    async def listening(self, tls=None):
        """Listen on a free port until the block ends."""
        async with servers.serving(self._behave, tls=tls) as self.port:
            yield self

    async def _behave(self, reader, writer):
        path, headers = await servers.request(reader)
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        try:
            self.posts.put_nowait((path, headers, body))
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if answer is None:
                await reader.read()  # until the client has gone
                return
            writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
        finally:
            self.in_flight -= 1

    async def told(self, within=10.0):
        """Return the body of the next POST."""
        _, _, body = await asyncio.wait_for(self.posts.get(), within)
        return body


def said(body):
    """Return what a body says of its alerts, in short: alert, server, status."""
    return [(one["labels"]["alertname"], one["labels"]["server"], one["status"]) for one in body["alerts"]]


def stalled(since=50.0, signature="cold_deadlock"):
    """Return the verdict of a hang."""
    return Verdict("stalled", signature, since, "Requests run but nothing has moved for 5 min.")


def dead(since=90.0, signature="lost_process"):
    """Return the verdict of a death."""
    return Verdict("dead", signature, since, "TP3 has been gone for 15 s while the server lives on.")


def well(since=10.0):
    """Return the verdict of a server that works."""
    return Verdict("busy", "", since, "Requests run.")


def a_view(now, **verdicts):
    """Return what is published when these servers are judged so."""
    snapshot = a_snapshot(now, servers=tuple(a_server(name=name) for name in verdicts))
    return View(snapshot, {}, (), (), verdicts)
