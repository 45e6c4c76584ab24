"""A gate with a small application behind it, on a real port, and clients that say exactly what they are told to say."""

import asyncio
import contextlib
import ssl
from dataclasses import dataclass

from aiohttp import web

from stallwatch.gate.admission import Gate, Policy
from stallwatch.gate.listener import Listener
from stallwatch.gate.tls import TlsLoader
from stallwatch.gate.webfile import Pem, Tls, WebFile

BIG = b"x" * (16 << 20)
HEADERS = {"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff"}


@dataclass
class Door:
    """What a test needs of an open gate."""

    gate: Gate
    listener: Listener
    port: int
    go_on: asyncio.Event  # lets go of the requests to /wait

    async def connect(self, context=None, **options):
        """Return a reader and a writer."""
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context, **options)

    async def say(self, data, context=None):
        """Send bytes and return all that comes back until the end."""
        reader, writer = await self.connect(context)
        try:
            writer.write(data)
            return await asyncio.wait_for(reader.read(), 20)
        finally:
            writer.close()

    async def get(self, path="/metrics", *lines, method="GET", context=None):
        """Return status, headers in lower case, and body of one request."""
        head = "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *lines, "", ""])
        return answer(await self.say(head.encode(), context))


def answer(data):
    """Take an answer apart."""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split(" ")[1]) if first else 0, headers, body


@contextlib.asynccontextmanager
async def opened(policy=None, most_connections=None, **options):
    """Open a gate."""
    gate, go_on = Gate(HEADERS, **options), asyncio.Event()
    gate.apply(policy or Policy())

    async def metrics(_request):
        return web.Response(text="up 1\n")

    async def big(_request):
        return web.Response(body=BIG)

    async def wait(_request):
        await go_on.wait()
        return web.Response(text="waited\n")

    async def fail(_request):
        raise RuntimeError("a fault of ours")

    app = web.Application(middlewares=[gate.admit], client_max_size=64 * 1024)
    for path, handler in (
        ("/metrics", metrics),
        ("/big", big),
        ("/wait", wait),
        ("/fail", fail),
        ("/-/healthy", metrics),
    ):
        app.router.add_get(path, handler)
    app.router.add_post("/-/reload", metrics)
    listener = Listener(app, gate, most_connections)
    await listener.open("127.0.0.1:0")
    try:
        yield Door(gate, listener, int(listener.names[0].rpartition(":")[2]), go_on)
    finally:
        go_on.set()
        await listener.close()


def tls(server, **more):
    """Return settings with this certificate, written out."""
    chain = b"".join(blob.bytes() for blob in server.cert_chain_pems).decode()
    return Tls(Pem(text=chain), Pem(text=server.private_key_pem.bytes().decode()), **more)


def policy(settings):
    """Return the policy of these settings."""
    return Policy(WebFile(settings), TlsLoader("web.yml").context(settings))


def trusting(authority, certificate=None):
    """Return the context of a client that trusts this authority, and shows a certificate of its own."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    authority.configure_trust(context)
    if certificate:
        certificate.configure_cert(context)
    return context
