"""One POST: what each answer means, what is not followed or read, and what may hang."""

import asyncio
import json
import os
import socket
import ssl
import threading
import time

import pytest
import trustme

import health_servers as servers
from stallwatch.notify import post as module
from stallwatch.notify.address import AddressError
from stallwatch.notify.names import Names
from stallwatch.notify.post import Outcome, Post
from webhook_receiver import Receiver

BODY = json.dumps({"version": "4"}).encode()


@pytest.fixture
def file(tmp_path):
    """Return a function that writes the file with the URL."""

    def write(url):
        path = tmp_path / "url"
        path.write_text(f"{url}\n")
        return path

    return write


async def outcome_at(file, behave, url="http://127.0.0.1:{}/canary", **options):
    """Return what comes of one POST to a server that behaves so."""
    async with servers.serving(behave) as port:
        return await Post(**options).send(file(url.format(port)), BODY)


async def test_the_body_arrives_where_the_file_says(file):
    """Path and query are those of the URL, and it is plain JSON from a client that says who it is."""
    receiver = Receiver()
    async with receiver.listening():
        assert await Post().send(file(receiver.url), BODY) == Outcome("delivered")
    path, headers, body = receiver.posts.get_nowait()
    assert (path, body) == ("/hook/canary-path?token=canary-token", {"version": "4"})
    assert headers["content-type"] == "application/json"
    assert headers["user-agent"].startswith("stallwatch/")


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("200 OK", "delivered"),
        ("202 Accepted", "delivered"),
        ("204 No Content", "delivered"),
        ("400 Bad Request", "given_up"),
        ("401 Unauthorized", "given_up"),
        ("404 Not Found", "given_up"),
        ("410 Gone", "given_up"),
        ("408 Request Timeout", "failed"),
        ("429 Too Many Requests", "failed"),
        ("500 Internal Server Error", "failed"),
        ("503 Service Unavailable", "failed"),
    ],
)
async def test_what_an_answer_means(file, line, result):
    """What was taken, what is wrong with the request for good, and what may go well later."""
    outcome = await outcome_at(file, servers.status(line))
    assert outcome == Outcome(result, "" if result == "delivered" else f"HTTP {line[:3]}")


@pytest.mark.parametrize("line", ["301 Moved Permanently", "302 Found", "307 Temporary Redirect"])
async def test_a_redirect_is_not_followed(file, line):
    """It could lead anywhere, and is said for what it is."""
    elsewhere = Receiver()
    async with elsewhere.listening():
        outcome = await outcome_at(file, servers.status(line, f"Location: {elsewhere.url}"))
    assert outcome == Outcome("failed", f"HTTP {line[:3]}, a redirect, which is not followed")
    assert elsewhere.posts.empty()


@pytest.mark.parametrize(
    ("behave", "why"),
    [
        (servers.silent, "timeout"),
        (servers.resetting, "reset"),
        (servers.answering(b""), "empty"),
        (servers.answering(b"SSH-2.0-canary\r\n\r\n"), "invalid"),
    ],
)
async def test_what_is_no_answer_is_tried_again(file, behave, why):
    """A server that hangs is waited for so long, and what is said of it is a word of ours."""
    assert await outcome_at(file, behave, within=0.5) == Outcome("failed", why)


async def test_a_port_that_refuses_is_tried_again(file):
    """As while the receiver restarts."""
    async with servers.serving(servers.silent) as port:
        pass
    assert await Post().send(file(f"http://127.0.0.1:{port}/canary"), BODY) == Outcome("failed", "refused")


async def test_the_body_of_an_answer_is_not_read(file):
    """One without an end costs neither time nor memory: the connection is closed once the status is there."""
    sent = 0

    async def endless(reader, writer):
        nonlocal sent
        await servers.answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")(reader, writer)
        while True:
            writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            await writer.drain()
            sent += 0x10000

    begun = time.monotonic()
    assert await outcome_at(file, endless) == Outcome("delivered")
    assert (time.monotonic() - begun < 5, sent < 32 * 1024**2) == (True, True)


async def test_a_wrong_file_is_said_and_read_again(file, tmp_path):
    """Each try reads it anew, so that a secret that comes late or changes needs no reload."""
    post, receiver = Post(), Receiver()
    assert await post.send(tmp_path / "url", BODY) == Outcome("failed", "its file: no such file or directory")
    async with receiver.listening():
        assert (await post.send(file(receiver.url), BODY)).result == "delivered"


async def test_a_file_that_hangs_costs_one_thread(file, monkeypatch):
    """A dead mount fails each try within moments, and no second thread goes after the first."""
    thawed, reads = threading.Event(), []

    def stuck(path):
        reads.append(path)
        thawed.wait(20)
        raise AddressError("thawed")

    monkeypatch.setattr(module, "read_url", stuck)
    monkeypatch.setattr(module, "READ_WITHIN", 0.05)
    post, path = Post(), file("http://127.0.0.1:1/")
    for _ in range(3):
        assert await post.send(path, BODY) == Outcome("failed", "its file: not read within 0.05 s")
    thawed.set()
    monkeypatch.setattr(module, "READ_WITHIN", 10.0)
    assert await post.send(path, BODY) == Outcome("failed", "its file: thawed")
    assert len(reads) == 1


class Resolver:
    """Stands in for the system's resolver: it hangs until thawed, then knows one name."""

    def __init__(self, *, thawed=True):
        self.asked = 0
        self.thawed = threading.Event()
        if thawed:
            self.thawed.set()

    def __call__(self, host, port, **_):
        """Return where it is."""
        self.asked += 1
        self.thawed.wait(20)
        if host != "hooks.example.org":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]


async def test_a_name_is_looked_up_and_its_header_kept(file):
    """The receiver is asked under its name."""
    receiver = Receiver()
    async with receiver.listening():
        url = receiver.url.replace("127.0.0.1", "hooks.example.org")
        assert (await Post(Names(Resolver())).send(file(url), BODY)).result == "delivered"
    assert receiver.posts.get_nowait()[1]["host"] == f"hooks.example.org:{receiver.port}"


async def test_a_name_that_is_not_known_is_said(file):
    """It may be known later; what is said does not name it."""
    outcome = await Post(Names(Resolver())).send(file("http://nowhere.example.org/canary"), BODY)
    assert outcome == Outcome("failed", "name_not_resolved")


@pytest.mark.parametrize("host", ["a..b", f"{'x' * 70}.org"])
async def test_what_can_be_no_name_is_said(file, host):
    """The system's resolver refuses it with an error of another kind."""
    outcome = await Post().send(file(f"http://{host}/canary"), BODY)
    assert outcome == Outcome("failed", "name_not_resolved")


def test_a_resolver_that_hangs_keeps_neither_a_try_nor_the_end(file):
    """Each try ends in its time, only one thread hangs, and the event loop ends without waiting for it."""
    resolver, path = Resolver(thawed=False), file("http://hooks.example.org/canary")

    async def tries():
        post = Post(Names(resolver), within=0.1)
        return [await post.send(path, BODY) for _ in range(3)]

    begun = time.monotonic()
    assert asyncio.run(tries()) == [Outcome("failed", "timeout")] * 3
    assert time.monotonic() - begun < 5
    assert resolver.asked == 1
    resolver.thawed.set()


async def test_a_resolver_that_hung_is_asked_again(file):
    """Once it is back, the next try goes on with what it found."""
    resolver, receiver = Resolver(thawed=False), Receiver()
    async with receiver.listening():
        path, post = file(receiver.url.replace("127.0.0.1", "hooks.example.org")), Post(Names(resolver), within=0.1)
        assert await post.send(path, BODY) == Outcome("failed", "timeout")
        resolver.thawed.set()
        post = Post(post._names)
        assert await post.send(path, BODY) == Outcome("delivered")


def authority_for(host):
    """Return a server's context for this host, one that trusts it, and the CA's certificate as a file would hold it."""
    authority = trustme.CA()
    theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert(host).configure_cert(theirs)
    authority.configure_trust(ours)
    return theirs, ours, authority.cert_pem.bytes()


async def test_a_ca_that_the_system_comes_to_trust_counts_from_the_next_message_on(file, tmp_path, monkeypatch):
    """The system's CAs are read when they are needed, whatever was read as aiohttp was loaded."""
    theirs, _, certificate = authority_for("127.0.0.1")
    cas, receiver, post = tmp_path / "cas.pem", Receiver(), Post()
    monkeypatch.setenv("SSL_CERT_FILE", str(cas))
    async with servers.serving(receiver._behave, tls=theirs) as port:
        path = file(f"https://127.0.0.1:{port}/canary")
        assert await post.send(path, BODY) == Outcome("failed", "tls_error")
        cas.write_bytes(certificate)
        assert await post.send(path, BODY) == Outcome("delivered")


@pytest.mark.parametrize(("host", "result"), [("127.0.0.1", "delivered"), ("127.0.0.2", "failed")])
async def test_certificates_are_verified(file, host, result):
    """Name and chain; the secret is in the path, and a stranger must not get to read it."""
    theirs, ours, _ = authority_for("127.0.0.1")
    receiver = Receiver()
    async with servers.serving(receiver._behave, tls=theirs) as port:
        path = file(f"https://{host}:{port}/canary")
        if host == "127.0.0.1":
            assert await Post().send(path, BODY) == Outcome("failed", "tls_error")  # not signed by the system's CAs
        assert (await Post(trust=ours).send(path, BODY)).result == result
    assert receiver.posts.empty() == (result == "failed")


async def test_a_proxy_is_asked_for_the_receiver(file, monkeypatch):
    """It gets the whole URL, as it must; with TLS it is asked for a tunnel, and its refusal is said."""
    proxy = Receiver()
    async with proxy.listening():
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        assert (await Post().send(file("http://hooks.example.org/canary"), BODY)).result == "delivered"
        assert proxy.posts.get_nowait()[0] == "http://hooks.example.org/canary"
    async with servers.serving(servers.status("407 Proxy Authentication Required")) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{port}")
        outcome = await Post().send(file("https://hooks.example.org/canary"), BODY)
    assert outcome == Outcome("failed", "the proxy answers HTTP 407")


async def test_a_proxy_behind_tls_is_verified_with_the_cas_of_the_system(file, tmp_path, monkeypatch):
    """Also where the receiver itself speaks none; one that nobody vouches for gets no message."""
    theirs, _, certificate = authority_for("127.0.0.1")
    cas, proxy, message = tmp_path / "cas.pem", Receiver(), file("http://hooks.example.org/canary")
    monkeypatch.setenv("SSL_CERT_FILE", str(cas))
    async with servers.serving(proxy._behave, tls=theirs) as port:
        monkeypatch.setenv("HTTP_PROXY", f"https://127.0.0.1:{port}")
        assert (await Post().send(message, BODY)).result == "failed"
        assert proxy.posts.empty()
        cas.write_bytes(certificate)
        assert await Post().send(message, BODY) == Outcome("delivered")


async def test_no_connection_is_left(file):
    """A POST keeps no descriptor, however it ended."""
    post, counts = Post(within=0.2), []
    for behave in (servers.status("200 OK"), servers.silent, servers.resetting) * 2:
        async with servers.serving(behave) as port:
            await post.send(file(f"http://127.0.0.1:{port}/"), BODY)
        await asyncio.sleep(0)  # a closed transport lets go of its socket at the next turn
        counts.append(len(os.listdir("/proc/self/fd")))
    assert len(set(counts)) == 1
