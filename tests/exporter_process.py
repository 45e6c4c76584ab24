"""The exporter as its users run it: a process of its own, scraped over HTTP."""

import asyncio
import html
import os
import re
import signal
import sys
import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from stallwatch.simulation.pager import free_port


class Scrape:
    """The samples of one scrape."""

    def __init__(self, text):
        self.text = text
        families = text_string_to_metric_families(text)
        self.samples = [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]

    def all(self, name, **labels):
        """Return (labels, value) of every sample of this name with at least these labels."""
        wanted = labels.items()
        return [
            (known, value)
            for sample, known, value in self.samples
            if sample == f"stallwatch_{name}" and wanted <= known.items()
        ]

    def value(self, name, **labels):
        """Return the value of the one such sample, None where there is none."""
        found = self.all(name, **labels)
        assert len(found) <= 1, found
        return found[0][1] if found else None

    def age(self, name, **labels):
        """Return how long ago a published time was, None where there is none."""
        at = self.value(name, **labels)
        return None if at is None else self.value("snapshot_timestamp_seconds") - at

    def holding(self, name, label, **labels):
        """Return the members of a state set that hold."""
        return {known[label] for known, value in self.all(name, **labels) if value == 1}


class ExporterProcess:
    """`stallwatch serve` on a free port; settings are given as environment variables."""

    def __init__(self, environ=None, flags=(), python=sys.executable, user=None, **settings):
        self.port = free_port()
        names = {"STALLWATCH_STATE__ENABLED": "false", "STALLWATCH_EVIDENCE__ENABLED": "false"} | {
            f"STALLWATCH_{key}": str(value) for key, value in settings.items()
        }
        self._environ = {**os.environ, **(environ or {}), **names}
        self._flags = [f"--web.listen-address=127.0.0.1:{self.port}", *flags]
        self._python = python
        self._user = {} if user is None else {"user": user, "group": user, "extra_groups": ()}
        self.process = None
        self._stderr = os.memfd_create("log")  # a pipe would be held open by a worker that outlives its exporter

    def __del__(self):
        os.close(self._stderr)

    async def __aenter__(self):
        await self.start()
        try:
            await self.until(lambda scrape: scrape.value("collector_success", collector="discovery") == 1)
        except BaseException:
            await self.stop(signal.SIGKILL)
            raise
        return self

    async def start(self):
        """Start the process; it may not listen yet."""
        command = [self._python, "-m", "stallwatch", "serve", *self._flags]
        self.process = await asyncio.create_subprocess_exec(
            *command, stderr=self._stderr, env=self._environ, **self._user
        )

    @property
    def log(self):
        """What it has written to standard error so far."""
        return os.pread(self._stderr, 1 << 20, 0).decode()

    async def __aexit__(self, *_):
        await self.stop()

    async def stop(self, how=signal.SIGTERM):
        """End it and return how many seconds that took."""
        begin = time.monotonic()
        if self.process.returncode is None:
            self.process.send_signal(how)
        await self.process.wait()
        return time.monotonic() - begin

    async def get(self, path="/metrics"):
        """Return the text at a path."""
        return await asyncio.to_thread(self._get, path)

    def _get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return answer.read().decode()

    async def shown(self):
        """Return what a person reads on the page."""
        return html.unescape(re.sub(r"<[^>]+>", "", await self.get("/")))

    async def scrape(self):
        """Return one scrape."""
        return Scrape(await self.get())

    async def until(self, condition, within=30.0):
        """Return the first scrape for which a condition holds; fails with the last one when none does in time."""
        end = time.monotonic() + within
        scrape = None
        while time.monotonic() < end:
            assert self.process.returncode is None, self.log
            try:
                scrape = await self.scrape()
                if condition(scrape):
                    return scrape
            except OSError:
                pass  # it does not listen yet
            await asyncio.sleep(0.1)
        raise AssertionError(f"not within {within} s:\n{self.log}\n{scrape.text if scrape else 'no scrape'}")

    async def workers(self):
        """Return the pids of the worker processes by name."""
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
        return {name: pid for pid in pids if (name := _worker_of(pid, self.process.pid))}


def _worker_of(pid, parent):
    try:
        with open(f"/proc/{pid}/stat") as file:
            if int(file.read().rpartition(")")[2].split()[1]) != parent:
                return None
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return None
    return words[3].decode() if b"stallwatch.leanchild" in words else None
