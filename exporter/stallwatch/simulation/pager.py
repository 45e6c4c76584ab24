"""Who pages? A real Prometheus and a real Alertmanager, where they are installed, fed by one exporter on this machine.

Started on free loopback ports in a directory of their own, with the rules that come with Stallwatch, at the pace of a
demo: scraped and evaluated each second. What Alertmanager sends arrives at a webhook of ours.
"""

import asyncio
import json
import re
import shutil
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from stallwatch.shipped import shipped_folder
from stallwatch.simulation.telling import INDENT, say, write

PROGRAMS = {"prometheus": ("prometheus",), "alertmanager": ("alertmanager", "prometheus-alertmanager")}


def programs() -> dict[str, str] | None:
    """Return the paths of Prometheus and Alertmanager, or None where one is missing."""
    found = {name: next(filter(None, map(shutil.which, names)), None) for name, names in PROGRAMS.items()}
    return {name: path for name, path in found.items() if path} if all(found.values()) else None


def free_port(wanted: int = 0) -> int:
    """Return the wanted TCP port of the loopback address where nobody listens on it, else another one."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Page:
    """One alert as it reaches the person on call."""

    alert: str
    severity: str
    server: str
    description: str
    runbook: str

    @classmethod
    def of(cls, sent: Mapping[str, Any]) -> "Page":
        """Take over what Alertmanager sent of one alert."""
        labels, annotations = sent["labels"], sent["annotations"]
        server, text = labels.get("server", ""), annotations.get("description", "")
        return cls(labels["alertname"], labels.get("severity", ""), server, text, annotations.get("runbook_url", ""))


def show(page: Page) -> None:
    """Print what the person on call gets."""
    say(f"PAGE  {page.alert} ({page.severity})")
    write(f"{INDENT}{page.description}")
    write(f"{INDENT}{page.runbook}")


async def paging(stack: AsyncExitStack, directory: Path, port: int, otherwise: str) -> "Pager | None":
    """Start a pager for the exporter on this port, to be ended with the stack; says what there is, or is instead."""
    found = programs()
    if found is None:
        say(f"Prometheus and Alertmanager are not installed here: {otherwise}")
        return None
    pager = Pager(directory / "pager", port)
    stack.push_async_callback(pager.close)
    await pager.start(found)
    say(f"Prometheus scrapes on http://127.0.0.1:{pager.prometheus_port}/, Alertmanager pages to this terminal")
    return pager


class Pager:
    """Prometheus, Alertmanager and the webhook at the end of the chain; `pages` holds what arrived."""

    def __init__(self, directory: Path, exporter_port: int) -> None:
        self.prometheus_port = free_port()
        self.pages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._directory = directory
        self._exporter_port = exporter_port
        self._alertmanager_port = free_port()
        self._runner: web.AppRunner | None = None
        self._processes: list[Process] = []

    async def start(self, found: Mapping[str, str]) -> None:
        """Start the three."""
        webhook_port = await self._listen()
        self._directory.mkdir(parents=True, exist_ok=True)
        prometheus = _write(self._directory / "prometheus.yml", self._prometheus())
        alertmanager = _write(self._directory / "alertmanager.yml", self._alertmanager(webhook_port))
        flags = {
            "prometheus": (
                f"--config.file={prometheus}",
                f"--storage.tsdb.path={self._directory / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{self.prometheus_port}",
            ),
            "alertmanager": (
                f"--config.file={alertmanager}",
                f"--storage.path={self._directory / 'am'}",
                f"--web.listen-address=127.0.0.1:{self._alertmanager_port}",
                "--cluster.listen-address=",
            ),
        }
        for name, arguments in flags.items():
            await self._spawn(name, found[name], arguments)

    async def _spawn(self, name: str, program: str, arguments: Sequence[str]) -> None:
        with (self._directory / f"{name}.log").open("wb") as log:
            self._processes.append(
                await asyncio.create_subprocess_exec(
                    program, *arguments, stdout=DEVNULL, stderr=log, start_new_session=True
                )
            )

    @property
    def alive(self) -> bool:
        """Tell whether both programs still run; one that is too old for the rules ends at once."""
        return all(process.returncode is None for process in self._processes)

    def next_page(self, *servers: str) -> Page | None:
        """Return the next alert about one of these that has arrived and fires, None while there is none."""
        while not self.pages.empty():
            for sent in self.pages.get_nowait()["alerts"]:
                if sent["status"] == "firing" and sent["labels"].get("server") in servers:
                    return Page.of(sent)
        return None

    async def close(self) -> None:
        """End what was started."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.terminate()
        await asyncio.gather(*(process.wait() for process in self._processes))
        if self._runner:
            await self._runner.cleanup()

    async def _listen(self) -> int:
        async def receive(request: web.Request) -> web.Response:
            await self.pages.put(await request.json())
            return web.Response()

        app = web.Application()
        app.router.add_post("/", receive)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        port = free_port()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        return port

    def _prometheus(self) -> dict[str, Any]:
        rules = self._directory / "rules"
        rules.mkdir(exist_ok=True)
        for source in sorted((shipped_folder("alerts") / "rules").glob("*.yml")):
            # The shipped rules, but at the pace of a demo: nobody waits a minute here to see an alert end.
            text = re.sub(r"keep_firing_for: \S+", "keep_firing_for: 2s", source.read_text())
            (rules / source.name).write_text(re.sub(r"(?m)^(\s+)interval: \S+", r"\1interval: 1s", text))
        return {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules / "*.yml")],
            "alerting": {
                "alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{self._alertmanager_port}"]}]}]
            },
            "scrape_configs": [
                {"job_name": "stallwatch", "static_configs": [{"targets": [f"127.0.0.1:{self._exporter_port}"]}]}
            ],
        }

    def _alertmanager(self, webhook_port: int) -> dict[str, Any]:
        """Return the shipped routes and inhibitions with one receiver that pages, ours."""
        shipped = yaml.safe_load((shipped_folder("alerts") / "alertmanager.yml").read_text())
        hook = {"webhook_configs": [{"url": f"http://127.0.0.1:{webhook_port}/", "send_resolved": True}]}
        route = _paced(shipped["route"])
        pager = {receiver for receiver in _receivers(route) if "page" in receiver}
        names = sorted(receiver["name"] for receiver in shipped["receivers"])
        receivers = [{"name": name, **(hook if name in pager else {})} for name in names]
        return {"route": route, "receivers": receivers, "inhibit_rules": shipped.get("inhibit_rules", [])}


def _paced(route: Mapping[str, Any]) -> dict[str, Any]:
    pace = {key: "1s" for key in ("group_wait", "group_interval") if key in route}
    return {**route, **pace, "routes": [_paced(inner) for inner in route.get("routes", ())]}


def _receivers(route: Mapping[str, Any]) -> set[str]:
    inner = [_receivers(child) for child in route.get("routes", ())]
    return {route.get("receiver", ""), *(name for names in inner for name in names)}


def _write(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(json.dumps(content, indent=1))  # JSON is YAML
    return path
