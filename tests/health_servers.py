"""Small real servers that answer a probe in every way a server can, kept apart from the tests that use them."""

import asyncio
import contextlib
import signal
import socket
import struct
import sys

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextlib.asynccontextmanager
async def serving(behave, *, tls=None):
    """Serve with `behave(reader, writer)` per connection on a free port, which is yielded."""
    tasks = set()

    async def run(reader, writer):
        try:
            await behave(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()
        else:
            writer.close()

    def accept(reader, writer):
        tasks.add(asyncio.ensure_future(run(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def request(reader):
    """Read one request: its path and its headers in lower case."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return first.split(" ")[1], headers


def answering(answer):
    """Answer every request with these bytes and close."""

    async def behave(reader, writer):
        await request(reader)
        writer.write(answer)
        await writer.drain()

    return behave


def status(line, *headers):
    """Answer with this status and no body."""
    return answering("\r\n".join([f"HTTP/1.1 {line}", "Content-Length: 0", *headers, "", ""]).encode())


async def silent(reader, writer):
    """Accept and never say a word."""
    await asyncio.Event().wait()


async def resetting(reader, writer):
    """Read the request and reset the connection."""
    await request(reader)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def stalling_body(reader, writer):
    """Send headers and half a body, and no more."""
    await answering(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")(reader, writer)
    await asyncio.Event().wait()


async def stalling_headers(reader, writer):
    """Send half of the headers, and no more."""
    await answering(b"HTTP/1.1 200 OK\r\nContent-Le")(reader, writer)
    await asyncio.Event().wait()


async def dripping(reader, writer):
    """Send an endless body, a byte at a time."""
    await answering(b"HTTP/1.1 200 OK\r\n\r\n")(reader, writer)
    while True:
        writer.write(b".")
        await writer.drain()
        await asyncio.sleep(0.02)


async def flooding(reader, writer):
    """Send an endless body as fast as it is taken."""
    await answering(b"HTTP/1.1 200 OK\r\n\r\n")(reader, writer)
    while True:
        writer.write(b"." * 65536)
        await writer.drain()


def closed_port():
    """Return a port on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@contextlib.contextmanager
def full_backlog():
    """Listen without accepting, with the queue of connections already full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@contextlib.asynccontextmanager
async def stopped_process():
    """Run an HTTP server as a process of its own and stop it with SIGSTOP."""
    code = (
        "import http.server as h\n"
        "s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler)\n"
        "print(s.server_port, flush=True)\n"
        "s.serve_forever()"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    try:
        port = int(await process.stdout.readline())
        process.send_signal(signal.SIGSTOP)
        yield port
    finally:
        process.kill()
        await process.communicate()
