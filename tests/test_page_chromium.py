"""The page in a real Chromium: played nodes through the real watcher, half hour and web application."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp import web

from chromium import Chromium
from stallwatch.exposition import Exposition
from stallwatch.sections import WebConfig
from stallwatch.simulation.scenario import load_scenario, scenario_file
from stallwatch.simulation.shown import shown
from stallwatch.snapshot import Failure
from stallwatch.status import StatusPage
from stallwatch.web import Orders, application

ROOT = Path(__file__).parents[1]
NODES = {
    "busy": (scenario_file("two_servers_one_hangs"), 230),
    "idle": (scenario_file("idle_asleep"), 1500),
    "starting": (scenario_file("compile_37_minutes"), 2000),
    "stalled": (scenario_file("split_ranks"), 900),
    "eight": (ROOT / "tests" / "data" / "eight_servers.yml", 2395),
}
CHARTS = ["GPU busy", "GPU power", "CPU cores", "Tokens", "Log age"]
HOSTILE = """<script>window.pwned=1</script>"><img src=x onerror="window.pwned=2">'"""
REFRESH = "document.dispatchEvent(new Event('visibilitychange'))"
OVERFLOW = "document.documentElement.scrollWidth - innerWidth"
CONTRASTS = """(() => {
  const rgba = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const linear = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = colour.map((part) => linear(part / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour.slice(0, 3);
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest("svg, .unseen")) continue;
    const [one, two] = [light(rgba(getComputedStyle(element).color)), light(ground(element))];
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    found.push([ratio, walker.currentNode.data.trim().slice(0, 40)]);
  }
  return found;
})()"""
FOCUSED = """(() => {
  const at = document.activeElement;
  return at === document.body ? "" : `${at.nodeName} ${at.id || at.getAttribute("href") || at.textContent}`;
})()"""


@pytest.fixture(scope="module")
def browser():
    """Start one browser for all tests of this file."""
    started = Chromium()
    yield started
    started.close()


@pytest.fixture(scope="module")
def played():
    """Play each node once, and return what is known of it at its moment."""
    known = {}

    def play(name):
        if name not in known:
            path, at = NODES[name]
            known[name] = shown(load_scenario(path), at)
        return known[name]

    return play


class Served:
    """A node that is served as the exporter does it; `view` and `age` may be changed meanwhile."""

    def __init__(self, node):
        self.view, self.age, self.asked = node.view, 1.0, 0
        page = StatusPage(self._ask, node.trends, name="gpu-node-7", clock=self._now)
        self._app = application(WebConfig(), Exposition(node.view), lambda: self.view, Orders(None, None), page)
        self._port = 0
        self._runner = None

    def _ask(self):
        self.asked += 1
        return self.view

    def _now(self):
        return self.view.snapshot.moment.monotonic + self.age

    @property
    def address(self):
        """Where it is served."""
        return f"http://127.0.0.1:{self._port}/"

    async def start(self):
        """Serve, at the same address as before."""
        self._runner = web.AppRunner(self._app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self):
        """Serve no longer."""
        await self._runner.cleanup()

    def judge(self, name, state):
        """Have another verdict on a server."""
        verdict = replace(self.view.verdicts[name], state=state, reason=f"Now it is {state}.")
        self.view = replace(self.view, verdicts={**self.view.verdicts, name: verdict})


@asynccontextmanager
async def serving(node):
    """Serve a node."""
    served = Served(node)
    await served.start()
    try:
        yield served
    finally:
        await served.stop()


@pytest.mark.parametrize("name", NODES)
async def test_it_is_shown_without_a_complaint_at_any_width_in_light_and_dark(browser, played, name):
    """No error, no violation of its policy, nothing that scrolls sideways, text that can be read, and a picture."""
    async with serving(played(name)) as served, browser.tab() as tab:
        for dark in (False, True):
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            await tab.send("Emulation.setEmulatedMedia", features=[scheme])
            await tab.open(served.address)
            for width in (1600, 768, 360):
                await tab.resize(width, 800)
                assert await tab.evaluate(OVERFLOW) <= 0, width
            contrasts = await tab.evaluate(CONTRASTS)
            assert len(contrasts) > 20
            assert [found for found in contrasts if found[0] < 4.5] == []
        assert tab.complaints == []
        states = [verdict.state for verdict in served.view.verdicts.values()]
        assert await tab.evaluate("document.querySelectorAll('article').length") == len(states)


async def test_the_picture_shows_the_verdict_first(browser, played):
    """Of eight servers the worst stands at the top of the window, and the first glance names it."""
    async with serving(played("eight")) as served, browser.tab(1280, 800) as tab:
        await tab.open(served.address)
        first = await tab.evaluate(
            "(({top, bottom}) => [top > 0, bottom < innerHeight])"
            "(document.querySelector('article h2').getBoundingClientRect())"
        )
        assert first == [True, True]
        order = await tab.evaluate("[...document.querySelectorAll('article')].map((card) => card.dataset.verdict)")
        assert order == ["dead", "stalled", "suspect", "unknown", "starting", "busy", "busy", "idle"]
        assert (await tab.evaluate("document.querySelector('h1').innerText")).startswith("1 dead")
        assert "dead.svg" in await tab.evaluate("document.querySelector('link[rel=icon]').href")


async def test_the_charts_stand_one_below_the_other(browser, played):
    """All rows of a server share one axis: same left edge, same width, and the mark at the same place without a gap."""
    async with serving(played("stalled")) as served, browser.tab() as tab:
        await tab.open(served.address)
        boxes = await tab.evaluate(
            "[...document.querySelectorAll('.chart svg')].map((svg) => svg.getBoundingClientRect().toJSON())"
        )
        marks = await tab.evaluate(
            "[...document.querySelectorAll('.chart path.mark')].map((path) => path.getBoundingClientRect().x)"
        )
        assert len(boxes) == len(marks) == 5
        assert len({(box["left"], box["width"]) for box in boxes}) == 1
        assert all(above["bottom"] == pytest.approx(below["top"], abs=0.6) for above, below in pairwise(boxes))
        assert max(marks) - min(marks) < 0.5


async def test_screen_readers_are_told_what_is_seen(browser, played):
    """Headings, landmarks, tables and charts have names, and nothing that can be used is without one."""
    async with serving(played("stalled")) as served, browser.tab() as tab:
        await tab.open(served.address)
        told = await tab.names()
        names = [(role, name) for role, name, _ in told]
        assert ("RootWebArea", "1 stalled on gpu-node-7 - Stallwatch") in names
        assert ("article", "stalled sglang:30000 split ranks") in names
        assert ("navigation", "Other addresses") in names
        assert ("region", "Ranks of sglang:30000") in names
        assert ("rowheader", "TP3 ◀ lags behind ◀ GPU at rest") in names
        assert [name for role, name in names if role == "image"] == CHARTS
        assert all("of 30 min that were read" in text for role, _, text in told if role == "image")
        used = {"link", "button", "heading", "image", "region", "article", "DisclosureTriangle", "columnheader"}
        assert [role for role, name in names if role in used and not name] == []
        assert {role for role, _ in names} >= {"main", "banner", "contentinfo", "heading", "link", "table"}


async def test_the_keyboard_reaches_everything(browser, played):
    """Skip link, addresses, counts, fold and tables come in order, each with a visible outline; Enter folds."""
    async with serving(played("stalled")) as served, browser.tab() as tab:
        await tab.open(served.address)
        reached = []
        for _ in range(9):
            await tab.press("Tab", 9)
            reached.append(await tab.evaluate(FOCUSED))
            assert await tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        assert reached[:6] == [
            "A #main",
            "A metrics",
            "A api/v1/status",
            "A -/healthy",
            "A -/ready",
            "A #server-sglang:30000",
        ]
        assert reached[6].startswith("SUMMARY Ranks, health and what is missing")
        assert reached[7:] == ["DIV server-sglang:30000-ranks", "DIV server-sglang:30000-health"]
        await tab.evaluate("document.querySelector('summary').focus()")
        await tab.press("Enter", 13, text="\r")
        assert await tab.evaluate("document.querySelector('details').open") is False


async def test_names_of_others_are_shown_as_text(browser, played):
    """A model, version, reason, endpoint or failure that holds a script runs nothing and is read as it is."""
    node = played("stalled")
    (name,) = node.view.pasts
    past = node.view.pasts[name]
    server = replace(past.server, version=HOSTILE, launch=replace(past.server.launch, model=HOSTILE))
    probes = tuple(replace(probe, path=HOSTILE) for probe in past.probes)
    failures = (Failure("log", "not_found", HOSTILE, name), Failure("gpu", "nvml_error", HOSTILE))
    view = replace(
        node.view,
        pasts={name: replace(past, server=server, probes=probes)},
        verdicts={name: replace(node.view.verdicts[name], reason=HOSTILE)},
        snapshot=replace(node.view.snapshot, failures=failures),
    )
    async with serving(replace(node, view=view)) as served, browser.tab() as tab:
        await tab.open(served.address)
        before = served.asked
        await tab.evaluate(REFRESH)
        while served.asked == before:
            await asyncio.sleep(0.02)
        await tab.until("document.querySelector('.looked') !== null")
        assert await tab.evaluate("window.pwned") is None
        assert await tab.evaluate("document.querySelectorAll('main script, main img').length") == 0
        assert await tab.evaluate("document.querySelector('.reason').textContent") == HOSTILE
        assert (await tab.evaluate("document.querySelector('main').textContent")).count(HOSTILE) == 6
        assert tab.complaints == []


async def test_a_new_verdict_comes_without_loading_again(browser, played):
    """Within a few seconds by itself: card, order, title and icon change, and it is spoken once."""
    async with serving(played("eight")) as served, browser.tab() as tab:
        await tab.open(served.address)
        await tab.evaluate("window.same = true")
        served.judge("sglang:30002", "dead")
        await tab.until("document.title.startsWith('2 dead')", within=15.0)
        assert await tab.evaluate("document.querySelector('article').dataset.server") == "sglang:30002"
        assert await tab.evaluate("document.getElementById('news').textContent") == "sglang:30002 is now dead."
        assert await tab.evaluate("window.same")
        assert tab.complaints == []


async def test_what_the_reader_did_stays_over_a_refresh(browser, played):
    """Folds, focus, selection and scrolling survive cards that change and move; an unchanged page speaks of nothing."""
    async with serving(played("eight")) as served, browser.tab(800, 700) as tab:
        await tab.open(served.address)
        kept = "document.getElementById('server-sglang:30005-rest')"
        await tab.evaluate(f"{kept}.open = true; {kept}.querySelector('summary').focus()")
        await tab.evaluate("document.getElementById('server-sglang:30001-rest').open = false; scrollTo(0, 900)")
        await tab.evaluate("getSelection().selectAllChildren(document.querySelector('.reason'))")
        served.view = replace(served.view)
        before = served.asked
        await tab.evaluate(REFRESH)
        while served.asked == before:
            await asyncio.sleep(0.02)
        served.judge("sglang:30000", "slow")
        await tab.evaluate(REFRESH)
        await tab.until("document.getElementById('news').textContent")
        assert await tab.evaluate("document.getElementById('news').textContent") == "sglang:30000 is now slow."
        assert await tab.evaluate(f"{kept}.open")
        assert not await tab.evaluate("document.getElementById('server-sglang:30001-rest').open")
        assert await tab.evaluate(f"document.activeElement === {kept}.querySelector('summary')")
        assert await tab.evaluate("scrollY") == 900
        reason = await tab.evaluate("document.querySelector('.reason').textContent")
        assert await tab.evaluate("String(getSelection()).trim()") == reason
        assert await tab.evaluate("document.getElementById('server-sglang:30000-rest').open")  # it is in trouble now
        assert tab.complaints == []


async def test_a_server_that_goes_leaves_the_page(browser, played):
    """Its card is taken away, a new one is put in, and both are spoken of."""
    async with serving(played("eight")) as served, browser.tab() as tab:
        await tab.open(served.address)
        whole = served.view
        served.view = replace(whole, verdicts={n: v for n, v in whole.verdicts.items() if n != "sglang:30005"})
        await tab.evaluate(REFRESH)
        await tab.until("document.querySelectorAll('article').length === 7")
        assert await tab.evaluate("document.getElementById('news').textContent") == "sglang:30005 is gone."
        served.view = whole
        await tab.evaluate(REFRESH)
        await tab.until("document.querySelectorAll('article').length === 8")
        assert await tab.evaluate("document.getElementById('news').textContent") == "sglang:30005 is now busy."
        assert tab.complaints == []


async def test_an_exporter_that_does_not_answer_is_told(browser, played):
    """Since when it cannot be reached, once and loudly, until it answers again."""
    async with serving(played("idle")) as served, browser.tab() as tab:
        await tab.open(served.address)
        assert not await tab.evaluate("document.getElementById('unreachable').checkVisibility()")
        await served.stop()
        await tab.evaluate(REFRESH)
        told = await tab.until("document.getElementById('unreachable').innerText")
        assert told.startswith("Cannot reach the exporter since ")
        assert "What stands below is how things were then." in told
        assert {entry["entry"]["source"] for entry in tab.complaints} == {"network"}
        await served.start()
        await tab.evaluate(REFRESH)
        await tab.until("!document.getElementById('unreachable').checkVisibility()")


async def test_a_stale_snapshot_is_loud(browser, played):
    """The exporter answers, but its watcher does not look any more: it is spoken of, and the old cards lose colour."""
    async with serving(played("busy")) as served, browser.tab() as tab:
        await tab.open(served.address)
        served.age = 95.0
        await tab.evaluate(REFRESH)
        await tab.until("document.title.startsWith('OLD: ')")
        assert await tab.evaluate("document.getElementById('news').textContent") == "Stallwatch itself is not well."
        assert "It last looked 95 s ago." in await tab.evaluate("document.querySelector('main > .warning').innerText")
        assert await tab.evaluate("getComputedStyle(document.querySelector('.cards')).filter") == "grayscale(1)"
        assert tab.complaints == []


async def test_a_hidden_tab_asks_nothing(browser, played):
    """And asks at once when it is seen again."""
    async with serving(played("idle")) as served, browser.tab() as tab:
        await tab.open(served.address)
        await tab.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
        await tab.evaluate(f"window.timers = []; window.setTimeout = (...all) => timers.push(all); {REFRESH}")
        before = served.asked
        assert await tab.evaluate("fetch('/-/healthy').then(() => timers.length)") == 0
        assert served.asked == before
        await tab.evaluate(f"delete document.hidden; {REFRESH}")
        await tab.until("timers.length === 1")
        assert served.asked == before + 1


async def test_without_javascript_it_is_the_same_page_and_loads_itself(browser, played):
    """All of it is there, and the browser is told to load it again in ten seconds."""
    async with serving(played("stalled")) as served, browser.tab(script=False) as tab:
        scheduled = tab.event("Page.frameScheduledNavigation")
        await tab.open(served.address)
        planned = await asyncio.wait_for(scheduled, 10)
        assert (planned["reason"], planned["delay"], planned["url"]) == ("metaTagRefresh", 10, served.address)
        told = await tab.names()
        assert ("article", "stalled sglang:30000 split ranks") in [one[:2] for one in told]
        assert [one[1] for one in told if one[0] == "image"] == CHARTS
        assert tab.complaints == []


async def test_the_policy_stops_what_would_get_through(browser, played):
    """A script or style that somebody got into the page does nothing."""
    async with serving(played("idle")) as served, browser.tab() as tab:
        await tab.open(served.address)
        await tab.evaluate(
            "document.body.insertAdjacentHTML('beforeend', '<b style=\"color:red\" onclick=\"window.pwned=1\">x</b>');"
            "document.querySelector('b:last-child').click();"
            "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.pwned=2'}))"
        )
        assert await tab.evaluate("window.pwned") is None
        assert await tab.evaluate("getComputedStyle(document.body.querySelector('b[style]')).color") != "rgb(255, 0, 0)"
        assert len(tab.complaints) >= 3
