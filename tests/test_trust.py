"""Tests of whom probes over TLS trust, and of CAs that cannot be read."""

import asyncio
import os
import ssl
import threading
import time

import pytest
import trustme

from dead_mount import DeadMount
from stallwatch import trust
from stallwatch.http_probe import NotMadeError
from stallwatch.snapshot import Launch, Server
from stallwatch.trust import Trust

CA = trustme.CA().cert_pem.bytes()


def server_at(address="127.0.0.1", *, tls=True):
    """Describe a server."""
    return Server("sglang:1", "sglang", Launch(port=1, tls=tls), address=address)


@pytest.fixture
def trusting():
    """Give what makes plain contexts."""
    return Trust(ssl.SSLContext)


async def refusal(trusting, file):
    """Return why no context can be had."""
    with pytest.raises(NotMadeError) as refused:
        await trusting.context(server_at(), str(file))
    return refused.value.reason, refused.value.detail


async def test_a_context_is_kept_until_the_ca_is_another_one(trusting, tmp_path):
    """CAs are taken in once, and a new one counts with the next probe."""
    file = tmp_path / "ca.pem"
    file.write_bytes(CA)
    first = await trusting.context(server_at(), str(file))
    assert await trusting.context(server_at(), str(file)) is first
    file.write_bytes(trustme.CA().cert_pem.bytes())
    second = await trusting.context(server_at(), str(file))
    assert second.get_ca_certs() != first.get_ca_certs()
    assert (second.verify_mode, second.check_hostname) == (ssl.CERT_REQUIRED, False)


async def test_the_cas_of_the_system_are_taken_in_once(trusting):
    """Beyond loopback they count, with the name; on loopback nothing is verified; without TLS nothing is made."""
    first = await trusting.context(server_at("192.0.2.1"), None)
    assert (first.verify_mode, first.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert await trusting.context(server_at("192.0.2.1"), None) is first
    assert (await trusting.context(server_at(), None)).verify_mode == ssl.CERT_NONE
    assert await trusting.context(server_at(tls=False), "/nonexistent") is None


async def test_cas_of_the_system_that_cannot_be_read_now_are_those_of_before(trusting, monkeypatch):
    """Their disk may hang with what a page is about; who never had any says so, and is held up no longer than told."""
    gate = threading.Event()
    monkeypatch.setattr(trust, "READ_SECONDS", 0.2)
    monkeypatch.setattr(trust, "_state_of_the_systems", lambda: gate.wait(20))
    with pytest.raises(NotMadeError) as refused:
        await trusting.of_system()
    assert refused.value.reason == "ca_unreadable"
    gate.set()
    monkeypatch.setattr(trust, "READ_SECONDS", 20.0)
    first = await trusting.of_system()
    gate.clear()
    monkeypatch.setattr(trust, "READ_SECONDS", 0.2)
    assert await trusting.of_system() is first
    gate.set()


async def test_a_ca_with_a_comment_of_any_language_is_one(trusting, tmp_path):
    """Only the certificates in a file count."""
    file = tmp_path / "ca.pem"
    file.write_bytes("# Büro\n".encode() + CA)
    assert len((await trusting.context(server_at(), str(file))).get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (None, "No such file or directory"),
        ("pipe", "not a regular file"),
        ("directory", "Is a directory"),
        (b"hello", "no PEM certificate is in it"),
        (b"#" * (trust.LARGEST_FILE + 1), "too large"),
    ],
)
async def test_a_file_that_is_no_ca_is_named(trusting, tmp_path, content, wrong):
    """A pipe is not waited for, and what is wrong is said."""
    file = tmp_path / "ca.pem"
    if content == "pipe":
        os.mkfifo(file)
    elif content == "directory":
        file.mkdir()
    elif content is not None:
        file.write_bytes(content)
    assert await refusal(trusting, file) == ("ca_unreadable", f"{file}: {wrong}")


async def test_a_ca_on_a_dead_mount_costs_its_probe_and_one_thread(trusting, tmp_path, monkeypatch):
    """The event loop never waits for it, no read is begun beside one that hangs, and the probe comes back with it."""
    monkeypatch.setattr(trust, "READ_SECONDS", 0.2)
    with DeadMount(tmp_path) as mount:
        mount.path.write_bytes(CA)
        first = await trusting.context(server_at(), str(mount.path))
        mount.die()
        try:
            ticking = asyncio.create_task(_longest_turn())
            for _ in range(3):
                assert await refusal(trusting, mount.path) == ("ca_unreadable", f"{mount.path}: not read within 0.2 s")
            assert [thread.name for thread in threading.enumerate()].count("ca") == 1
            ticking.cancel()
            longest = await ticking
        finally:
            mount.revive()
        assert longest < 0.1
        monkeypatch.setattr(trust, "READ_SECONDS", 20.0)
        assert await trusting.context(server_at(), str(mount.path)) is first


async def _longest_turn():
    """Return, once cancelled, how long the event loop was at most held up."""
    longest, last = 0.0, time.monotonic()
    try:
        while True:
            await asyncio.sleep(0.005)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
    except asyncio.CancelledError:
        return longest
