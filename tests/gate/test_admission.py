"""Admission: what is answered to requests of every kind, and how many are worked on at once."""

import asyncio
import base64
import contextlib
import gzip
import socket
import time

import bcrypt
import pytest

from doors import HEADERS, answer, opened
from stallwatch.gate.admission import Bucket, Gate, Policy, credentials
from stallwatch.gate.webfile import Rate, WebFile

HASH = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()


def basic(user, password):
    """Return the header that carries a password."""
    return f"Authorization: Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/metrics", 200),
        ("HEAD", "/metrics", 200),
        ("GET", "/nothing", 404),
        ("HEAD", "/nothing", 404),
        ("POST", "/metrics", 405),
        ("PUT", "/-/reload", 405),
        ("GET", "/-/reload", 405),
        ("POST", "/-/reload", 200),
        ("DELETE", "/nothing", 405),
        ("OPTIONS", "*", 405),
        ("TRACE", "/", 405),
        ("PATCH", "/metrics", 405),
        ("GET", "/fail", 500),
    ],
)
async def test_every_answer_is_dressed_and_every_method_sorted(method, path, status):
    """Errors carry the security headers too, 405 says what is allowed, and no header tells a version."""
    async with opened() as door:
        got, headers, body = await door.get(path, method=method)
    assert got == status
    for name, value in HEADERS.items():
        assert headers[name.lower()] == value
    assert headers["server"] == "stallwatch"
    assert "traceback" not in body.decode().lower()
    assert "a fault of ours" not in body.decode()
    if status == 405:
        assert headers["allow"] == ("POST" if path == "/-/reload" else "GET, HEAD")
    if method == "HEAD":
        assert body == b""


GARBAGE = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    "raw bytes in the path": b"GET /\xff\xfe\x80 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "a NUL in the path": b"GET /metrics\0 HTTP/1.1\r\nHost: x\r\n\r\n",
    "an encoded NUL": b"GET /%00 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "an encoded line break": b"GET /%0d%0aX:%20y HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "a space in the path": b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
    "an absolute URL": b"GET http://169.254.169.254/metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "a huge path": b"GET /" + b"a" * 60000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "a huge header": b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 60000 + b"\r\n\r\n",
    "many headers": b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
    "a header without a name": b"GET /metrics HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n",
    "two lengths": b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a length and chunks": b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a way out": b"GET /../../../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "an encoded way out": b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "an encoded slash": b"GET /..%2f..%2fetc%2fpasswd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "a bad escape": b"GET /%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "a bad expectation": b"GET /metrics HTTP/1.1\r\nHost: x\r\nExpect: a miracle\r\nConnection: close\r\n\r\n",
    "no method of HTTP": b"BREW /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    "another protocol": b"GET /metrics HTTP/9.9\r\nHost: x\r\n\r\n",
    "a tunnel": b"CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "an empty line": b"\r\n\r\n\r\n\r\nGET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_is_answered_with_a_word(what, caplog):
    """A short 4xx in our dress, no line in the log, and the next client is served."""
    async with opened() as door:
        status, headers, body = answer(await door.say(GARBAGE[what]))
        assert (await door.get())[0] == 200
    assert status in {400, 404, 405, 417}, (status, body)
    for name, value in HEADERS.items():
        assert headers[name.lower()] == value
    assert len(body) < 60
    assert b"passwd" not in body
    assert [record for record in caplog.records if record.name != "asyncio"] == []


async def test_a_body_is_not_taken():
    """A large one is refused by its length, one without a length is cut off, and a bomb is not unpacked."""
    bomb = gzip.compress(bytes(10 << 20))
    head = b"POST /-/reload HTTP/1.1\r\nHost: x\r\n"
    async with opened() as door:
        assert answer(await door.say(head + b"Content-Length: 100000000\r\n\r\nx"))[0] == 413
        chunks = head + b"Transfer-Encoding: chunked\r\n\r\n" + b"ffff\r\n" + b"x" * 65535 + b"\r\n"
        with pytest.raises(ConnectionError):
            await door.say(chunks * 1000)
        unpacked = head + b"Content-Encoding: gzip\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(bomb)
        assert answer(await door.say(unpacked + bomb))[0] == 200


async def test_requests_beyond_the_limit_are_sent_away():
    """503 at once; whether the exporter lives is told all the same, and a place that is free again is given."""
    async with opened(most_requests=2) as door:
        waiting = [asyncio.create_task(door.get("/wait")) for _ in range(2)]
        while len(door.gate._running) < 2:
            await asyncio.sleep(0.01)
        status, headers, body = await door.get()
        assert (status, headers["retry-after"], body) == (503, "1", b"too many requests at once\n")
        assert (await door.get("/-/healthy"))[0] == 200
        door.go_on.set()
        assert [status for status, *_ in await asyncio.gather(*waiting)] == [200, 200]
        assert (await door.get())[0] == 200


async def test_a_client_that_goes_leaves_its_place():
    """Also while its request is worked on."""
    async with opened(most_requests=1) as door:
        _, writer = await door.connect()
        writer.write(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        while not door.gate._running:
            await asyncio.sleep(0.01)
        writer.transport.abort()
        while door.gate._running:
            await asyncio.sleep(0.01)
        assert (await door.get())[0] == 200


async def test_no_limit(caplog):
    """With 0 as many are answered as come."""
    async with opened(most_requests=0) as door:
        waiting = [asyncio.create_task(door.get("/wait")) for _ in range(50)]
        while len(door.gate._running) < 50:
            await asyncio.sleep(0.01)
        assert (await door.get())[0] == 200
        door.go_on.set()
        await asyncio.gather(*waiting)


async def test_who_does_not_take_an_answer_gives_way():
    """Clients that ask for much and read nothing hold all places for a second and not longer."""
    later = [-1000.0]
    async with opened(most_requests=3, clock=lambda: time.monotonic() + later[0]) as door:
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                deaf = stack.enter_context(socket.socket())
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                deaf.connect(("127.0.0.1", door.port))
                deaf.sendall(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
            while len([one for one in door.gate._running if one.sending_since]) < 3:
                await asyncio.sleep(0.01)
            assert (await door.get())[0] == 503
            later[0] = 1000.0
            assert (await door.get())[0] == 200
            assert len(door.gate._running) == 2


async def test_a_password_is_needed():
    """401 with a challenge on every path, whatever else is wrong; with the password all is as without."""
    async with opened(Policy(WebFile(users={"ann": HASH}))) as door:
        for path in ("/metrics", "/nothing", "/-/healthy"):
            status, headers, body = await door.get(path)
            assert (status, body) == (401, b"unauthorized\n")
            assert headers["www-authenticate"].startswith("Basic realm=")
            assert headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
        assert (await door.get("/metrics", basic("ann", "right")))[0] == 200
        assert (await door.get("/nothing", basic("ann", "right")))[0] == 404
        begin = asyncio.get_running_loop().time()
        assert (await door.get("/metrics", basic("ann", "wrong")))[0] == 401
        assert asyncio.get_running_loop().time() - begin >= 1


async def test_a_flood_of_wrong_passwords_does_not_keep_a_scrape_out():
    """A scrape whose password was right before waits for none of them, and most of the flood gets 429."""
    slow = bcrypt.hashpw(b"right", bcrypt.gensalt(11)).decode()
    async with opened(Policy(WebFile(users={"ann": slow})), most_requests=4) as door:
        assert (await door.get("/metrics", basic("ann", "right")))[0] == 200
        flood = [asyncio.create_task(door.get("/metrics", basic("ann", str(n)))) for n in range(100)]
        await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
        assert (await door.get("/metrics", basic("ann", "right")))[0] == 200
        assert not all(guess.done() for guess in flood)
        statuses = [status for status, *_ in await asyncio.gather(*flood)]
        assert set(statuses) == {401, 429}
        assert statuses.count(401) <= 8


async def test_another_password_counts_at_once_and_the_same_is_remembered():
    """After a reload the old password is none; users that did not change are not checked again."""
    before, after = (
        Policy(WebFile(users={"ann": one})) for one in (HASH, bcrypt.hashpw(b"new", bcrypt.gensalt(4)).decode())
    )
    gate = Gate({})
    gate.apply(before)
    known = gate._passwords
    gate.apply(Policy(WebFile(users={"ann": HASH}, headers={"X-Frame-Options": "deny"})))
    assert gate._passwords is known
    async with opened(before) as door:
        assert (await door.get("/metrics", basic("ann", "right")))[0] == 200
        door.gate.apply(after)
        assert (await door.get("/metrics", basic("ann", "right")))[0] == 401
        assert (await door.get("/metrics", basic("ann", "new")))[0] == 200


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("Basic YTpi", (b"a", b"b")),
        ("basic  YTpiOmM=", (b"a", b"b:c")),
        ("Basic Og==", (b"", b"")),
        ("Basic YQ==", None),
        ("Basic !!!", None),
        ("Basic é", None),
        ("Bearer YTpi", None),
        ("", None),
    ],
)
def test_credentials(header, found):
    """What is no name with a password is none."""
    assert credentials(header) == found


def test_a_bucket_gives_a_burst_and_then_its_rate():
    """Tokens come back one per interval, and never more than the burst."""
    now = [0.0]
    bucket = Bucket(Rate(0.5, 3), lambda: now[0])
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    now[0] += 0.6
    assert [bucket.take() for _ in range(2)] == [True, False]
    now[0] += 100
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]


async def test_the_rate_that_the_file_allows():
    """429 beyond it, and a reload that says the same gives no new burst."""
    policy = Policy(WebFile(rate=Rate(600.0, 2)))
    async with opened(policy) as door:
        assert [(await door.get())[0] for _ in range(2)] == [200, 200]
        door.gate.apply(Policy(WebFile(rate=Rate(600.0, 2))))
        status, headers, _ = await door.get()
        assert (status, headers["retry-after"]) == (429, "600")


async def test_headers_of_the_file_win():
    """One that is given replaces ours, an empty one takes it away."""
    told = {
        "Content-Security-Policy": "",
        "Strict-Transport-Security": "max-age=1",
        "X-Content-Type-Options": "nosniff",
    }
    async with opened(Policy(WebFile(headers=told))) as door:
        for path in ("/metrics", "/nothing"):
            _, headers, _ = await door.get(path)
            assert "content-security-policy" not in headers
            assert headers["strict-transport-security"] == "max-age=1"
            assert headers["x-content-type-options"] == "nosniff"
