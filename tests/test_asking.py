"""Asking: a literal address, no proxy, no redirect, and an end whatever the other side does."""

import asyncio
import json
import time

import pytest
import trustme

import health_servers as servers
from doors import opened, policy, tls
from stallwatch.asking import LOCKED, RefusedError, asked
from stallwatch.cli import main
from stallwatch.config import ConfigError

STATUS = {"time": 0.0, "servers": []}
BODY = json.dumps(STATUS).encode()
GOOD = servers.answering(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY))


async def outcome(behave, timeout=5.0):
    """Return what is made of a server that behaves so."""
    async with servers.serving(behave) as port:
        return await asyncio.to_thread(asked, f"http://127.0.0.1:{port}", timeout)


async def test_a_good_answer():
    """Also under a path, and under the name of this node."""
    assert await outcome(GOOD) == STATUS
    async with servers.serving(GOOD) as port:
        assert await asyncio.to_thread(asked, f"http://localhost:{port}/") == STATUS


@pytest.mark.parametrize(
    "behave", [servers.silent, servers.dripping, servers.stalling_body, servers.stalling_headers, servers.flooding]
)
async def test_whoever_is_slow_is_waited_for_as_long_as_said(behave):
    """Though each of its bytes comes in time."""
    begin = time.monotonic()
    assert await outcome(behave, 0.5) is None
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("behave", [servers.resetting, servers.answering(b"220 ESMTP\r\n"), servers.answering(b"")])
async def test_what_is_no_exporter_is_no_answer(behave):
    """Nor is a port on which nobody listens."""
    assert await outcome(behave) is None
    assert asked(f"http://127.0.0.1:{servers.closed_port()}") is None


async def test_a_redirect_is_not_followed_and_a_proxy_not_used(monkeypatch):
    """What is asked is what was named."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{servers.closed_port()}")
    assert await outcome(GOOD) == STATUS
    async with servers.serving(GOOD) as port:
        moved = servers.status("302 Found", f"Location: http://127.0.0.1:{port}/api/v1/status")
        with pytest.raises(RefusedError, match="HTTP 302"):
            await outcome(moved)


@pytest.mark.parametrize(
    "url",
    [
        "http://exporter.example:19847",
        "127.0.0.1:19847",
        "ftp://127.0.0.1",
        "http://",
        "http://[::1",
        "http://1.1.1.1:x",
    ],
)
def test_only_an_address_is_asked(url, capsys):
    """A name would have to be resolved, which nobody can end; the exit code is that of what is not known."""
    with pytest.raises(ConfigError, match="expected http:// or https://"):
        asked(url)
    assert main(["check", "--url", url]) == 3
    assert capsys.readouterr().err.startswith("stallwatch: --url: expected http")


async def test_an_exporter_that_speaks_tls_is_asked_on_this_node():
    """Its certificate seldom names the loopback address."""
    authority = trustme.CA()
    async with opened(policy(tls(authority.issue_cert("other.example.org")))) as door:
        with pytest.raises(RefusedError, match="HTTP 404"):  # so it was understood
            await asyncio.to_thread(asked, f"https://127.0.0.1:{door.port}")


async def test_a_refusal_is_told(capsys):
    """An exporter that wants a password is there: what it says is not guessed by a look of seconds."""
    async with servers.serving(servers.status("401 Unauthorized")) as port:
        url = f"http://127.0.0.1:{port}"
        assert await asyncio.to_thread(main, ["check", "--url", url]) == 3
    told = f"stallwatch: the exporter at {url} does not tell us: HTTP 401, {LOCKED} (--look looks itself)\n"
    assert capsys.readouterr() == ("", told)
