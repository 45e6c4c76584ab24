"""Status: what the page at `/` says of a node, as text and structure; tests/test_page_chromium.py looks at it."""

import asyncio
import gzip
import re
from dataclasses import replace

import pytest

from pasts import NOW, a_past, moment, probe, ranks, replica, serving
from readings import a_server, a_snapshot, gpus
from stallwatch import status
from stallwatch.lanes import LaneState
from stallwatch.pages.verdicts import SHAPES
from stallwatch.snapshot import Failure, Launch, Snapshot
from stallwatch.status import StatusPage
from stallwatch.trends import Trends
from stallwatch.verdict import VERDICTS, WORST_FIRST, Verdict
from stallwatch.view import View
from stallwatch.workers import WorkerState

HOSTILE = """<script>alert("1")</script>' onload='x"""
LANES = (LaneState("gpu", "", True, 0.01, NOW, ()),)


def a_view(*, failures=(), workers=(), readings=(), lanes=LANES, **states):
    """Return a view of servers by their names and verdicts."""
    servers = tuple(a_server(name=name.replace("_", ":")) for name in states)
    pasts = {server.name: replace(serving(), server=server) for server in servers}
    verdicts = {
        server.name: Verdict(state, "", moment().unix - 600, f"{server.name} is {state}.")
        for server, state in zip(servers, states.values(), strict=True)
    }
    return View(Snapshot(moment(), servers, readings, failures), pasts, lanes, workers, verdicts)


def of_one(past, state="stalled", **fields):
    """Return a view of one server with this past."""
    view = a_view(a_1=state, **fields)
    past = replace(past, server=replace(past.server, name="a:1"))
    return replace(view, pasts={"a:1": past}, snapshot=replace(view.snapshot, servers=(past.server,)))


def page(view, age=1.0, trends=None):
    """Return the page of a view that is so old."""
    made = StatusPage(lambda: view, trends or Trends(), name="gpu-node-7", clock=lambda: NOW + age)
    return asyncio.run(made.rendered()).plain.decode()


def text(html):
    """Return what a person reads."""
    html = re.sub(r"<(svg|head)\b.*?</\1>", "", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", html))


def title(html):
    """Return the title."""
    return re.search(r"<title>(.*?)</title>", html)[1]


def test_the_worst_server_comes_first():
    """From dead to idle, and by name among equals, whatever the order of the view."""
    states = dict(
        zip(
            "cbidefgha",
            ["idle", "busy", "stopping", "starting", "unknown", "slow", "suspect", "stalled", "dead"],
            strict=True,
        )
    )
    html = page(a_view(**states, z="idle", y="idle"))
    assert re.findall(r'data-verdict="(\w+)"', html) == [*WORST_FIRST, "idle", "idle"]
    assert re.findall(r'data-server="(\w+)"', html)[-3:] == ["c", "y", "z"]


def test_every_verdict_has_a_shape_and_a_colour():
    """The three lists are the verdicts that there are, and no two look alike."""
    assert set(WORST_FIRST) == set(VERDICTS)
    assert len({SHAPES[state] for state in VERDICTS}) == len(VERDICTS)
    html = page(a_view(**{state: state for state in VERDICTS}))
    assert {f"v-{state}" for state in VERDICTS} == set(re.findall(r"card (v-\w+)", html))


def test_the_line_at_the_top_counts_and_names_the_node():
    """Worst first; the title says the same; each count leads to the first such server."""
    html = page(a_view(a_1="busy", b_1="stalled", c_1="busy"))
    assert "1 stalled · 2 busy on gpu-node-7" in text(html)
    assert title(html) == "1 stalled · 2 busy on gpu-node-7 - Stallwatch"
    assert 'href="#server-b:1"' in html
    assert 'id="server-b:1"' in html


@pytest.mark.parametrize("state", VERDICTS)
def test_the_icon_of_the_tab_is_the_worst_verdict(state):
    """One file for each verdict."""
    assert f'href="assets/{state}.svg?v=' in page(a_view(a_1="idle", b_1=state))


def test_a_card_says_verdict_reason_and_since_when():
    """In words, with the time of day and how long ago."""
    view = a_view(a_1="stalled")
    verdict = replace(view.verdicts["a:1"], signature="cold_deadlock")
    said = text(page(replace(view, verdicts={"a:1": verdict})))
    assert "stalled a:1 cold deadlock" in said
    assert "a:1 is stalled." in said
    assert "for 10 min since 07:50:00 UTC" in said


def test_what_the_server_does_is_told_in_facts():
    """Its phase with progress, its requests, what moved last, its restarts."""
    past = serving(still=480.0, owed={"running": 900.0})
    past = replace(past, progress=0.25, phase="loading_weights", replicas=(replica(3.0, 2.0),))
    said = text(page(of_one(replace(past, ending=replace(past.ending, restarts=2, crash_looping=True)))))
    assert "Phase loading weights for 60 min, 25 % 25 %" in said.replace("Phaseloading", "Phase loading")
    assert "Requests3 running, 2 waiting" in said
    assert "tokens 8 min · log 8 min ago" in said
    assert "Restarts2, never ready in between: it crashes in a loop" in said


def test_health_ranks_and_what_is_missing_are_on_the_card():
    """Each with its words; what concerns the whole node is told there and in short on the card."""
    failures = (
        Failure("log", "no_permission", "another user's", "a:1"),
        Failure("gpu", "library_not_found", "libnvidia-ml.so.1"),
    )
    past = replace(serving(), probes=(probe("refused"),), ranks=ranks(1.0, 0.0))
    view = of_one(past, failures=failures)
    view = replace(view, verdicts={"a:1": replace(view.verdicts["a:1"], missing=("log: no_permission", "engine"))})
    said = text(page(view))
    assert "✕ refuses connections" in said
    assert "TP1 ◀ lags behind" in said
    assert "log: no permission (another user&#39;s)" in said
    assert "engine: no reading of it yet" in said
    assert "gpu: library not found, of the whole node" in said
    assert "What is missing of this node and why gpu: library not found (libnvidia-ml.so.1)" in said.replace(
        "whygpu", "why gpu"
    )


def test_nothing_missing_is_said_too():
    """An empty list would not say whether anything was looked at."""
    said = text(page(a_view(a_1="idle")))
    assert "Nothing: every signal of this server can be read." in said
    assert "Nothing: whatever concerns the node as a whole can be read." in said


def test_many_servers_that_are_well_are_folded():
    """Up to two are unfolded, of more only those in trouble or with an odd rank."""

    def unfolded(view):
        return re.findall(r'<details id="server-([^"]*)-rest" open', page(view))

    assert unfolded(a_view(a="busy", b="idle")) == ["a", "b"]
    view = a_view(a="busy", b="idle", c="suspect", d="starting", e="busy")
    odd = replace(view.pasts["e"], ranks=ranks(1.0, 1.0, 0.0))
    assert unfolded(replace(view, pasts={**view.pasts, "e": odd})) == ["c", "e"]


def test_a_server_that_crashed_is_there_as_dead():
    """Its tombstone is a card like the others, and what cannot be read of it has its reason."""
    past = serving()
    past = replace(past, ending=replace(past.ending, gone_since=NOW - 60), moved={}, ranks=())
    view = of_one(past, "dead")
    view = replace(view, verdicts={"a:1": replace(view.verdicts["a:1"], missing=("health",))})
    said = text(page(view))
    assert "dead a:1" in said
    assert "health: its processes are gone" in said
    assert "Started" not in said


def test_a_node_without_servers_has_words():
    """It is no error and no empty page."""
    html = page(a_view())
    assert "No inference server on gpu-node-7" in text(html)
    assert "no SGLang or vLLM server is seen on this node" in text(html)
    assert title(html) == "no server on gpu-node-7 - Stallwatch"
    assert "assets/none.svg" in html


def test_before_the_first_look_it_says_so():
    """Nothing is claimed of a node that was not looked at."""
    said = text(page(a_view(lanes=())))
    assert "No look yet." in said
    assert "Nothing to watch" not in said


def test_an_old_snapshot_is_told_loudly():
    """In the title, in the icon, at the top of the page; and not a second before."""
    view = a_view(a_1="busy")
    assert "not well" not in text(page(view, age=29))
    html = page(view, age=90)
    assert "Stallwatch itself is not well. It last looked 90 s ago." in text(html)
    assert title(html).startswith("OLD: 1 busy")
    assert "assets/unknown.svg" in html
    assert '<main id="main" class="old"' in html


def test_a_stuck_reader_is_told():
    """A worker that hangs in the driver is on the page as long as it does."""
    said = text(page(a_view(a_1="busy", workers=(WorkerState("gpu", True, 1, 1),))))
    assert "A read is stuck. One reader of `gpu` got no answer from the kernel or the driver" in said


def test_what_others_name_is_text():
    """Server, model, version, endpoint, reason, rank, failure: none of them can be more than text."""
    server = a_server(name=HOSTILE, version=HOSTILE, launch=Launch(model=HOSTILE, port=1))
    past = replace(
        a_past(server=server),
        phase=HOSTILE,
        ranks=(replace(ranks(0.5)[0], rank=HOSTILE, process=HOSTILE, state=HOSTILE, phase=None),),
        probes=(probe(path=HOSTILE),),
        moved={HOSTILE: NOW},
    )
    failures = (Failure(HOSTILE, HOSTILE, HOSTILE, HOSTILE), Failure(HOSTILE, HOSTILE, HOSTILE))
    verdict = Verdict("busy", HOSTILE, moment().unix, HOSTILE, (HOSTILE,))
    snapshot = replace(a_snapshot(NOW, gpus(NOW), failures=failures), servers=(server,), moment=moment())
    trends = Trends()
    view = View(snapshot, {HOSTILE: past}, LANES, (), {HOSTILE: verdict})
    trends.take(view)
    html = page(view, trends=trends)
    assert html.count("<script") == 1
    assert "onload='" not in html
    assert "<script>alert" not in html
    assert html.count("&lt;script&gt;") >= 15


def test_a_name_that_is_no_unicode_does_no_harm():
    """Bytes of a command line that decode to lone surrogates are replaced, not an error."""
    view = of_one(replace(serving(), server=a_server(launch=Launch(model="caf\udce9"))))
    assert "caf?" in page(view)


async def test_one_view_is_rendered_once():
    """Many tabs cost one rendering; another view or a growing age of an old one makes another."""
    views = [a_view(a_1="busy")]
    now = [NOW + 1]
    made = StatusPage(lambda: views[0], Trends(), clock=lambda: now[0])
    first = await made.rendered()
    now[0] += 5
    assert await made.rendered() is first
    views[0] = a_view(a_1="busy")
    second = await made.rendered()
    assert second is not first
    now[0] += 60
    assert "not well" in text((await made.rendered()).plain.decode())
    assert gzip.decompress(second.zipped) == second.plain


async def test_all_who_ask_at_once_share_a_rendering():
    """Whoever asks while a page is being rendered gets that one."""
    made = StatusPage(lambda: a_view(a_1="busy"), Trends(), clock=lambda: NOW + 1)
    first, *others = await asyncio.gather(*(made.rendered() for _ in range(5)))
    assert {id(one) for one in others} == {id(first)}
    assert await made.rendered() is not first


async def test_a_rendering_lets_others_take_turns():
    """After each server the event loop goes on with what else is due."""
    turns = 0

    async def take_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    view = a_view(**{f"a_{number}": "busy" for number in range(64)})
    other = asyncio.create_task(take_turns())
    await StatusPage(lambda: view, Trends(), clock=lambda: NOW + 1).rendered()
    other.cancel()
    assert turns >= 64


def test_without_a_script_it_loads_itself_again():
    """Every ten seconds, and only where there is no script that does better."""
    assert '<noscript><meta http-equiv="refresh" content="10"></noscript>' in page(a_view())


def test_nothing_on_the_page_needs_more_than_its_policy():
    """No inline style, handler or script, and nothing from elsewhere."""
    html = page(a_view(a_1="stalled", b_1="busy"))
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|https?://", html)
    assert re.findall(r"<script[^>]*></script>|<script", html) == re.findall(r"<script[^>]*></script>", html)


def test_one_line_on_a_server_for_terminals():
    """The demo's line on a server."""
    line = status.sentence(a_server(), serving(still=60.0), moment())
    assert line == "sglang:30000: ready, last movement 60 s ago (tokens), running for 60 min"
