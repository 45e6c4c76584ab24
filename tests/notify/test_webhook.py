"""The webhook: an incident is told once when it begins and once when it ends, whatever the receiver does meanwhile."""

import asyncio
import json
import logging
import time

import pytest

from stallwatch.notify.message import Where
from stallwatch.notify.post import Outcome, Post
from stallwatch.notify.webhook import Pace, Webhook
from webhook_receiver import Receiver, a_view, dead, said, stalled, well

WHERE = Where("node:19847", "http://node:19847")
QUICK = Pace(gap=0.0, first_retry=0.02, longest_retry=0.1)
HELD = Pace().keep_firing


class Node:
    """A webhook on a node whose servers are judged as a test says."""

    def __init__(self, directory, pace=QUICK, post=None):
        self.file = directory / "url"
        self.webhook = Webhook(post or Post(within=0.5), pace)

    def begin(self, url=None):
        """Tell this URL, or whatever stands in the file."""
        if url:
            self.file.write_text(f"{url}\n")
        self.webhook.begin(WHERE, str(self.file))

    def look(self, now, **verdicts):
        """Have the servers judged so."""
        self.webhook.take(a_view(now, **verdicts))

    async def settled(self):
        """Wait until there is nothing to tell any more."""
        if self.webhook._delivering:
            await asyncio.wait_for(asyncio.shield(self.webhook._delivering), 10)

    @property
    def counts(self):
        """Return how many tries came to each result, those that did not come left out."""
        return {result: count for result, count in self.webhook.tally.counts.items() if count}


@pytest.fixture
async def node(tmp_path, caplog):
    """Return a node, and look at its end that nothing of its URL was logged."""
    caplog.set_level(logging.DEBUG)
    made = Node(tmp_path)
    yield made
    await made.webhook.close()
    written = " ".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert "canary" not in written


@pytest.fixture
async def receiver():
    """Return a receiver that takes all it gets until told otherwise."""
    async with Receiver().listening() as listening:
        yield listening


def messages(caplog):
    """Return what was logged, with the error where there is one."""
    ours = [record for record in caplog.records if record.name == "stallwatch.notify"]
    return [(record.getMessage(), getattr(record, "error", "")) for record in ours]


async def test_an_incident_is_told_when_it_begins_and_when_it_ends(node, receiver):
    """One POST each, and none in between however often it is looked."""
    node.begin(receiver.url)
    for now in range(100, 110):
        node.look(now, kimi=stalled())
        await node.settled()
    assert said(await receiver.told()) == [("InferenceServerStalled", "kimi", "firing")]
    node.look(110 + HELD, kimi=well())
    ended = await receiver.told()
    assert (said(ended), ended["status"]) == ([("InferenceServerStalled", "kimi", "resolved")], "resolved")
    await node.settled()
    assert receiver.posts.empty()
    assert (node.counts, node.webhook.tally.last_success) == ({"delivered": 2}, 110 + HELD)


async def test_a_death_after_a_stall_is_one_post(node, receiver):
    """It says that the one alert has ended and that the other fires, of a group that still does."""
    node.begin(receiver.url)
    node.look(100, kimi=stalled())
    await node.settled()
    node.look(110, kimi=dead())
    await node.settled()
    first, second = await receiver.told(), await receiver.told()
    assert said(second) == [("InferenceServerDead", "kimi", "firing"), ("InferenceServerStalled", "kimi", "resolved")]
    assert (first["groupKey"], second["status"]) == (second["groupKey"], "firing")
    assert receiver.posts.empty()


async def test_servers_that_hang_together_are_one_post(node, receiver):
    """A fault of the node is told once."""
    node.begin(receiver.url)
    node.look(100, **{f"s{number}": stalled() for number in range(8)})
    await node.settled()
    assert len((await receiver.told())["alerts"]) == 8
    assert receiver.posts.empty()


async def test_what_comes_close_after_another_waits_for_it(tmp_path, receiver):
    """Incidents that begin within the gap are one further POST."""
    node = Node(tmp_path, Pace(gap=0.2))
    node.begin(receiver.url)
    for now, names in enumerate(("a", "ab", "abc")):
        node.look(100 + now, **{name: stalled() for name in names})
        await asyncio.sleep(0.02)
    assert len((await receiver.told())["alerts"]) == 1
    begun = time.monotonic()
    assert len((await receiver.told())["alerts"]) == 3
    assert time.monotonic() - begun > 0.05
    await node.webhook.close()


async def test_a_receiver_that_fails_is_tried_until_it_takes_it(node, receiver, caplog):
    """The failure is logged when it begins, not at each try; what is delivered is counted once."""
    receiver.answers = [*["500 Internal Server Error"] * 3, "200 OK"]
    node.begin(receiver.url)
    node.look(100, kimi=stalled())
    await node.settled()
    assert {tuple(said(await receiver.told())) for _ in range(4)} == {(("InferenceServerStalled", "kimi", "firing"),)}
    assert node.counts == {"failed": 3, "delivered": 1}
    assert messages(caplog) == [("cannot notify, trying on", "HTTP 500"), ("notified", "")]


async def test_an_end_is_tried_until_it_is_taken(node, receiver):
    """A page that is open stays open until the receiver has heard that it is over."""
    node.begin(receiver.url)
    node.look(100, kimi=stalled())
    await node.settled()
    receiver.answers = ["503 Service Unavailable", None, "200 OK"]
    node.look(100 + HELD, kimi=well())
    await node.settled()
    assert [(await receiver.told())["status"] for _ in range(4)] == ["firing", *["resolved"] * 3]
    assert (node.counts, receiver.most_in_flight) == ({"failed": 2, "delivered": 2}, 1)


async def test_a_receiver_that_comes_late_is_told(node, caplog):
    """While nobody listens the POST waits, and brings what there is to tell by then."""
    async with Receiver().listening() as gone:
        url = gone.url
    node.begin(url)
    node.look(100, a=stalled())
    while not node.counts.get("failed"):
        await asyncio.sleep(0.01)
    node.look(101, a=stalled(), b=dead())
    receiver = Receiver()
    async with receiver.listening():
        node.file.write_text(receiver.url)  # a free port cannot be taken again for certain, and the file is read anew
        told = said(await receiver.told())
        await node.settled()
    assert told == [("InferenceServerStalled", "a", "firing"), ("InferenceServerDead", "b", "firing")]
    assert messages(caplog)[0] == ("cannot notify, trying on", "refused")


async def test_what_is_over_before_it_could_be_told_is_not_told(node, receiver, caplog):
    """Nobody is paged for what has passed."""
    receiver.answers = ["500 Internal Server Error"]
    node.begin(receiver.url)
    node.look(100, kimi=stalled())
    await receiver.told()
    node.look(100 + HELD, kimi=well())
    await node.settled()
    assert messages(caplog)[-1] == ("what could not be told is over", "")
    while not receiver.posts.empty():
        assert said(receiver.posts.get_nowait()[2]) == [("InferenceServerStalled", "kimi", "firing")]


async def test_what_is_refused_is_given_up_until_a_reload(node, receiver, caplog):
    """One line says so; its end is not told either, and a reload has it tried again."""
    receiver.answers = ["404 Not Found"]
    node.begin(receiver.url)
    for now in range(100, 105):
        node.look(now, kimi=stalled())
        await node.settled()
    assert (node.counts, receiver.posts.qsize()) == ({"given_up": 1}, 1)
    assert messages(caplog) == [("a notification was refused and is given up", "HTTP 404")]
    receiver.answers = ["200 OK"]
    node.webhook.configure(str(node.file))
    node.look(105, kimi=stalled())
    await node.settled()
    assert node.counts == {"given_up": 1, "delivered": 1}


async def test_a_redirect_is_not_followed_and_tried_again(node, receiver, caplog):
    """Where it leads hears nothing."""
    elsewhere = Receiver()
    async with elsewhere.listening():
        receiver.answers = [f"302 Found\r\nLocation: {elsewhere.url}", "200 OK"]
        node.begin(receiver.url)
        node.look(100, kimi=stalled())
        await node.settled()
        assert elsewhere.posts.empty()
    assert node.counts == {"failed": 1, "delivered": 1}
    assert "not followed" in messages(caplog)[0][1]


class Recorded:
    """Stands in for the POST: fails so often, and knows when it was asked and with what."""

    def __init__(self, failures):
        self.failures = failures
        self.at = []
        self.bodies = []

    async def url(self, file):
        """Have nothing against the file."""

    async def send(self, file, body):
        """Fail, or raise what no POST should."""
        self.at.append(time.monotonic())
        self.bodies.append(json.loads(body))
        self.failures -= 1
        if self.failures == 0:
            raise RuntimeError("canary")
        return Outcome("failed" if self.failures > 0 else "delivered", "timeout" if self.failures > 0 else "")


async def test_it_is_tried_more_and_more_slowly(tmp_path, caplog):
    """Each wait is twice the one before, up to the longest; even a fault of ours is no more than a failed try."""
    post = Recorded(failures=6)
    node = Node(tmp_path, Pace(gap=0.0, first_retry=0.05, longest_retry=0.2), post)
    node.begin()
    node.look(100, kimi=stalled())
    await node.settled()
    waits = [later - earlier for earlier, later in zip(post.at, post.at[1:], strict=False)]
    least = [0.05, 0.1, 0.2, 0.2, 0.2, 0.2]
    assert all(wait >= wanted * 0.95 for wait, wanted in zip(waits, least, strict=True)), waits
    assert node.counts == {"failed": 6, "delivered": 1}
    assert "RuntimeError" in messages(caplog)[1][1]
    assert "canary" not in messages(caplog)[1][1]
    await node.webhook.close()


async def test_a_reload_tries_at_once_what_waits(tmp_path):
    """Who has mended the receiver need not wait five minutes."""
    node = Node(tmp_path, Pace(gap=0.0, first_retry=60.0), Recorded(failures=3))
    node.begin()
    node.look(100, kimi=stalled())
    for tries in (1, 2, 3, 4):
        while sum(node.counts.values()) < tries:
            await asyncio.sleep(0.01)
        node.webhook.configure(str(node.file))
    await node.settled()
    assert node.counts == {"failed": 3, "delivered": 1}


async def test_it_can_be_switched_on_and_off(node, receiver):
    """Without a file nothing is sent; with one, what holds by then is told, and without it again, nothing more."""
    node.file.write_text(receiver.url)
    node.webhook.begin(WHERE, None)
    node.look(100, kimi=stalled())
    assert (node.webhook._delivering, node.webhook.tally) == (None, None)
    node.webhook.configure(str(node.file))
    node.look(101, kimi=stalled())
    assert said(await receiver.told()) == [("InferenceServerStalled", "kimi", "firing")]
    await node.settled()
    node.webhook.configure(None)
    node.look(102, kimi=stalled(), qwen=dead())
    await node.settled()
    assert (receiver.posts.empty(), node.webhook.tally) == (True, None)


async def test_a_restart_tells_nothing_twice(node, receiver, tmp_path):
    """What is remembered is all that the next exporter needs, and holds no URL; the end is told by that one."""
    node.begin(receiver.url)
    node.look(100, kimi=stalled())
    await node.settled()
    begun = await receiver.told()
    kept = json.dumps(node.webhook.remember())
    assert "canary" not in kept
    later = Node(tmp_path)
    later.webhook.recall(json.loads(kept), 200.0)
    later.begin()
    later.look(201)
    later.look(202, kimi=stalled(since=70.0))
    later.look(203 + HELD, kimi=well())
    ended = await receiver.told()
    await later.webhook.close()
    assert said(ended) == [("InferenceServerStalled", "kimi", "resolved")]
    for same in ("fingerprint", "startsAt"):
        assert begun["alerts"][0][same] == ended["alerts"][0][same]


async def test_what_a_restart_left_untold_is_told_after_it(node, receiver, tmp_path):
    """A POST that was not taken by then is no memory, so the next exporter makes it."""
    receiver.answers = [None]
    node.begin(receiver.url)
    node.look(100, kimi=stalled())
    await receiver.told()
    await node.webhook.close()
    assert node.webhook.remember() == []


async def test_flapping_makes_no_second_pair(node, receiver):
    """A server that moves now and then is one incident."""
    node.begin(receiver.url)
    for now in range(100, 4000, 100):
        node.look(now, kimi=stalled() if now % 200 else well())
        await node.settled()
    assert (await receiver.told(), receiver.posts.qsize())[1] == 0


async def test_what_is_held_back_is_said_and_told_later(node, receiver, caplog):
    """The log has a line for each incident too many, and what still holds when the hour is over is told then."""
    node.begin(receiver.url)
    now = 100.0
    for _ in range(8):
        node.look(now, kimi=stalled())
        await node.settled()
        node.look(now + HELD, kimi=well())
        await node.settled()
        now += HELD + 1
    assert node.counts == {"delivered": 12}
    assert [text for text, _ in messages(caplog)].count("too many incidents of one server, the next is told later") == 2
    node.look(100 + 3600.0, kimi=stalled())
    await node.settled()
    assert node.counts == {"delivered": 13}


async def test_a_file_that_cannot_be_used_is_said_at_once(node, caplog):
    """Not first when somebody should have been paged; it is no reason to stop."""
    node.begin()
    while not messages(caplog):
        await asyncio.sleep(0.01)
    node.look(100, kimi=well())
    node.look(101, kimi=well())
    assert messages(caplog) == [("nobody can be notified", "no such file or directory")]


async def test_its_end_waits_for_nothing(node, receiver):
    """A receiver that hangs does not keep the exporter."""
    receiver.answers = [None]
    node.begin(receiver.url)
    node.look(100, kimi=stalled())
    await receiver.told()
    begun = time.monotonic()
    await node.webhook.close()
    assert time.monotonic() - begun < 0.4
