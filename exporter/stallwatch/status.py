"""What does a person see? The page at `/`: the verdict on each server, what it rests on, and what cannot be read."""

import asyncio
import gzip
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stallwatch import __version__, aside
from stallwatch.pages import cards, node, verdicts
from stallwatch.pages.assets import Asset, Assets
from stallwatch.pages.markup import Html, tag
from stallwatch.past import Past
from stallwatch.snapshot import Moment, Server
from stallwatch.trends import Trends
from stallwatch.view import View
from stallwatch.wording import duration

RELOAD_SECONDS = 10
"""How often a browser without JavaScript loads the page again."""
REFRESH_SECONDS = 5
"""How often the script fetches it."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A page as it is sent."""

    plain: bytes
    zipped: bytes


class StatusPage:
    """The page of the latest view, rendered when somebody asks, once for all who do; `clock` is monotonic.

    Server by server, so that a scrape comes in between: all cards of a large node take a tenth of a second.
    """

    def __init__(
        self,
        view: Callable[[], View],
        trends: Trends,
        telemetry_path: str = "/metrics",
        name: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view, self._trends, self._clock = view, trends, clock
        self._telemetry_path = telemetry_path
        self._name = name or platform.node() or "this node"
        self._assets = Assets()
        self._last: tuple[View, int, Rendered] | None = None
        self._rendering: asyncio.Task[Rendered] | None = None

    async def rendered(self) -> Rendered:
        """Return the page as it is now; while the view stays the same only a growing age makes another one of it."""
        if self._rendering is None:
            view = self._view()
            watch = node.Watch(view, self._name, max(0.0, self._clock() - view.snapshot.moment.monotonic))
            age = int(watch.age) if watch.stale else 0
            if self._last and self._last[0] is view and self._last[1] == age:
                return self._last[2]
            self._rendering = asyncio.create_task(self._render(watch, age))
        return await asyncio.shield(self._rendering)

    async def _render(self, watch: node.Watch, age: int) -> Rendered:
        try:
            shown = []
            for name in verdicts.by_urgency(watch.view.verdicts):
                shown.append(cards.card(watch.view, name, self._trends.of(name)))
                await asyncio.sleep(0)
            text = page(watch, shown, self._assets, self._telemetry_path)
            rendered = await aside.begin(lambda: _packed(text), "page")
            self._last = (watch.view, age, rendered)
            return rendered
        finally:
            self._rendering = None

    def asset(self, file: str) -> Asset | None:
        """Return a file that the page needs, None where there is none of this name."""
        return self._assets.files.get(file)


def _packed(text: str) -> Rendered:
    body = text.encode(errors="replace")  # a name that is no Unicode, as a file may have, becomes readable
    return Rendered(body, gzip.compress(body, compresslevel=1))


def page(watch: node.Watch, servers: Sequence[Html], assets: Assets, telemetry_path: str) -> str:
    """Return the whole page as HTML; everything that a watched process names is escaped."""
    body = tag(
        "body",
        tag("a", "Skip to the servers", href="#main", class_="skip"),
        _header(telemetry_path),
        tag("p", id="unreachable", class_="warning", role="alert", hidden=True),
        tag("p", id="news", class_="unseen", role="status", aria_live="polite"),
        _main(watch, servers),
        tag("footer", tag("p", f"Stallwatch {__version__}")),
    )
    html = tag("html", _head(watch, assets), body, lang="en", data_build=assets.version, data_refresh=REFRESH_SECONDS)
    return f"<!doctype html>\n{html}\n"


def _head(watch: node.Watch, assets: Assets) -> Html:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="robots", content="noindex"),
        tag("noscript", tag("meta", http_equiv="refresh", content=RELOAD_SECONDS)),
        tag("title", node.title(watch)),
        tag("link", rel="icon", type="image/svg+xml", href=assets.address(f"{watch.worst}.svg")),
        tag("link", rel="stylesheet", href=assets.address("style.css")),
        tag("script", src=assets.address("refresh.js"), defer=True),
    )


def _header(telemetry_path: str) -> Html:
    links = (
        ("Metrics", telemetry_path.lstrip("/")),
        ("Status as JSON", "api/v1/status"),
        ("Healthy", "-/healthy"),
        ("Ready", "-/ready"),
    )
    nav = tag("nav", (tag("a", text, href=href) for text, href in links), aria_label="Other addresses")
    return tag("header", tag("p", "Stallwatch", class_="brand"), nav, class_="top")


def _main(watch: node.Watch, servers: Sequence[Html]) -> Html:
    return tag(
        "main",
        node.warnings(watch),
        tag("div", node.summary(watch), node.looked(watch), class_="headline"),
        tag("div", servers, class_="cards", id="cards") if servers else node.nobody(watch),
        node.unread(watch),
        id="main",
        class_="old" if watch.stale else None,
        tabindex=-1,
    )


def sentence(server: Server, past: Past, moment: Moment) -> str:
    """Return one line on a server: its phase, its GPUs, and how long ago anything moved."""
    parts = [past.phase or "phase unknown"]
    held = past.gpus.holding
    if held.memory_max is not None:
        parts.append(f"up to {held.memory_max / 1024**3:.0f} GiB on each of {len(server.gpus)} GPUs")
    if held.utilization_max is not None:
        parts.append(f"GPUs at most {held.utilization_max:.0%} busy")
    if past.moved:
        signal, at = max(past.moved.items(), key=lambda item: item[1])
        parts.append(f"last movement {duration(moment.monotonic - at)} ago ({signal})")
    for reason, since in past.demand_since.items():
        parts.append(f"{reason.replace('_', ' ')} for {duration(moment.monotonic - since)}")
    return f"{server.name}: {', '.join(parts)}"
