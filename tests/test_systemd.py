"""Notify: what a service manager hears, with a real datagram socket in its place."""

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time

import pytest

from exporter_process import ExporterProcess
from health_servers import serving, silent
from stallwatch.assembly import exporting
from stallwatch.settings.sources import load
from stallwatch.simulation.pager import free_port
from stallwatch.systemd import Notifier

QUICK = {"INTERVAL": "200ms", "DISCOVERY__INTERVAL": "200ms"}


class Manager:
    """Listens as systemd does; `heard` holds each datagram with when it came."""

    def __init__(self, name):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(name)
        self.heard = []
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self):
        while data := self.socket.recv(4096):
            self.heard.append((time.monotonic(), data.decode()))

    def count(self, text):
        """Count the datagrams that begin so."""
        return sum(told.startswith(text) for _, told in self.heard)

    async def hears(self, text, times=1):
        """Wait until it was told so as often."""
        while self.count(text) < times:
            await asyncio.sleep(0.01)

    def close(self):
        """Stop listening."""
        self.socket.shutdown(socket.SHUT_RDWR)
        self._listening.join()
        self.socket.close()


@pytest.fixture(params=["file", "abstract"])
def manager(request, tmp_path):
    """Return a manager and the name of its socket in the environment."""
    name = str(tmp_path / "systemd") if request.param == "file" else f"@stallwatch-{os.getpid()}-{free_port()}"
    listening = Manager(name.replace("@", "\0"))
    yield listening, name
    listening.close()


def environment(name, seconds=30.0, **more):
    """Return what systemd gives a service."""
    return {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": str(round(seconds * 1e6)), **more}


async def test_the_life_of_a_service(manager):
    """It is ready when it serves, says each look, each reload and its end, and is killed for none of them."""
    listening, name = manager
    exporter = ExporterProcess(environ=environment(name), **QUICK)
    await exporter.start()
    try:
        await listening.hears("READY=1")
        assert await exporter.get("/-/healthy") == "stallwatch is healthy\n"
        await listening.hears("WATCHDOG=1", 3)
        exporter.process.send_signal(signal.SIGHUP)
        await listening.hears("RELOADING=1\nMONOTONIC_USEC=")
        await listening.hears("READY=1", 2)
    finally:
        await exporter.stop()
    await listening.hears("STOPPING=1")
    words = [told for _, told in listening.heard if not told.startswith("WATCHDOG")]
    assert [word.partition("\n")[0] for word in words] == ["READY=1", "RELOADING=1", "READY=1", "STOPPING=1"]


async def test_a_collector_that_is_stuck_does_not_stop_the_watchdog(manager, tmp_path):
    """A probe that is never answered and a worker that is stopped cost a signal, not the exporter."""
    listening, name = manager
    async with serving(silent) as port:
        file = tmp_path / "stallwatch.yml"
        file.write_text(f"servers: [{{name: mine, port: {port}}}]\n")
        flags = (f"--config.file={file}",)
        async with ExporterProcess(environ=environment(name), flags=flags, **QUICK) as exporter:
            workers = await exporter.workers()
            os.kill(workers["host"], signal.SIGSTOP)
            try:
                before = listening.count("WATCHDOG=1")
                await listening.hears("WATCHDOG=1", before + 10)
            finally:
                os.kill(workers["host"], signal.SIGCONT)


@pytest.fixture
def in_environment(monkeypatch):
    """Return a function that sets variables of this process."""

    def put(variables):
        for key, value in variables.items():
            monkeypatch.setenv(key, value)

    return put


async def test_an_event_loop_that_is_blocked_stops_the_watchdog(manager, in_environment):
    """Nothing feeds it from the side: while the loop does not turn, systemd hears nothing."""
    listening, name = manager
    in_environment(environment(name))
    flags = {"web.listen_address": f"127.0.0.1:{free_port()}", "interval": "100ms"}
    config = load(flags, {"STALLWATCH_STATE__ENABLED": "false"})
    async with exporting(lambda: config, None):
        await listening.hears("WATCHDOG=1", 3)
        begin = time.monotonic()
        time.sleep(1.5)
        end = time.monotonic()
        await listening.hears("WATCHDOG=1", listening.count("WATCHDOG=1") + 2)
        assert [at for at, _ in listening.heard if begin + 0.1 < at < end] == []


def told(environ, talk):
    """Return what a notifier tells a manager in this environment."""
    name = f"\0stallwatch-{os.getpid()}-{free_port()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name)
        listening.setblocking(False)
        talk(Notifier({"NOTIFY_SOCKET": name.replace("\0", "@"), **environ}))
        words = []
        with contextlib.suppress(BlockingIOError):
            while True:
                words.append(listening.recv(4096).decode())
        return words


def test_the_watchdog_is_fed_only_where_there_is_one():
    """Without its variable, with a strange one, or with that of another process, nothing is sent."""
    for environ in ({}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"}):
        assert told(environ, lambda notifier: notifier.alive()) == []
    assert told({"WATCHDOG_USEC": "9", "WATCHDOG_PID": str(os.getpid())}, lambda one: one.alive()) == ["WATCHDOG=1"]


def test_a_watchdog_that_is_too_quick_is_slowed_down():
    """Who looks each minute is not killed for it by a unit that says 30 s, before or after a reload."""

    def talk(notifier):
        for interval in (1.0, 60.0, 60.0, 5.0):
            notifier.pace(interval)

    assert told({"WATCHDOG_USEC": "30000000"}, talk) == ["WATCHDOG_USEC=180000000", "WATCHDOG_USEC=30000000"]
    assert told({}, talk) == []


def test_a_manager_that_is_gone_harms_nothing(tmp_path, caplog):
    """It is said once."""
    for name in (str(tmp_path / "absent"), "@absent", "x" * 500, ""):
        notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000000"})
        for _ in range(3):
            notifier.ready()
            notifier.alive()
    assert len(caplog.records) == 3


def test_a_manager_that_does_not_listen_holds_nothing_up(tmp_path):
    """What it has no room for is not waited for."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(tmp_path / "systemd"))
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "systemd"), "WATCHDOG_USEC": "1000000"})
        begin = time.monotonic()
        for _ in range(2000):
            notifier.alive()
        assert time.monotonic() - begin < 10
