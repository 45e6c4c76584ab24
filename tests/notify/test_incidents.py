"""Incidents: what begins, what ends, and what is told of neither."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from readings import moment
from stallwatch.keeping import Keeper
from stallwatch.notify.incidents import DEAD, GPU_FAULT, HOUR, KEEP_FIRING, MOST_BEGUN, STALLED, Incidents, News
from webhook_receiver import dead, stalled, well

HERE = "node:19847"


class Played:
    """Incidents that are looked at, and whose news are delivered unless told otherwise."""

    def __init__(self, incidents=None):
        self.incidents = incidents or Incidents()

    def look(self, now, **verdicts):
        """Look once, and return the news without having them told."""
        self.incidents.look(verdicts, moment(now), HERE)
        return self.incidents.news(now)

    def tell(self, now, *, delivered=True, **verdicts):
        """Look once, have the news told where there are any, and return them."""
        news = self.look(now, **verdicts)
        if news:
            self.incidents.settle(news, now, delivered=delivered)
        return news

    def again(self, now):
        """Return what an exporter goes on with that is started now, by way of the file."""
        started = Incidents()
        started.recall(json.loads(json.dumps(self.incidents.remember())), now)
        return Played(started)


def names(alerts):
    """Return which alerts these are."""
    return [(alert.name, alert.server) for alert in alerts]


@pytest.mark.parametrize(
    ("verdict", "name"),
    [(stalled(), STALLED), (dead(), DEAD), (dead(signature="device_fault"), GPU_FAULT), (well(), "")],
)
def test_each_critical_verdict_begins_the_alert_of_the_rules(verdict, name):
    """A stall, a death and a GPU fault each under its name; nothing else is told."""
    assert names(Played().tell(100.0, a=verdict).begun) == ([(name, "a")] if name else [])


def test_an_incident_is_told_once_and_ended_once():
    """It begins at the first look that has it, and ends when its verdict has not held for five minutes."""
    played = Played()
    (begun,) = played.tell(100.0, a=stalled()).begun
    assert begun.starts_at == stalled().since
    assert not any(played.tell(now, a=stalled()) for now in (101.0, 200.0, 5000.0))
    assert not played.tell(5001.0, a=well())
    assert not played.tell(5000.0 + KEEP_FIRING - 1, a=well())
    news = played.tell(5000.0 + KEEP_FIRING, a=well())
    assert (names(news.ended), news.begun, news.lasting) == ([(STALLED, "a")], (), ())
    assert news.ended[0].held_at == moment(5000.0).unix
    assert not played.tell(9000.0, a=well())


def test_flapping_within_five_minutes_is_one_incident():
    """A server that moves now and then keeps its alert and the time at which it began."""
    played = Played()
    played.tell(100.0, a=stalled(since=50.0))
    for now in range(200, 3000, 290):
        assert not played.tell(float(now), a=well())
        assert not played.tell(now + 145.0, a=stalled(since=float(now)))
    (kept,) = played.incidents.remember()
    assert kept["starts_at"] == 50.0


def test_a_server_that_is_gone_ends_its_incident():
    """One that is forgotten altogether is not critical any more."""
    played = Played()
    played.tell(100.0, a=dead())
    assert names(played.tell(100.0 + KEEP_FIRING).ended) == [(DEAD, "a")]


def test_a_stall_that_becomes_a_death_is_one_message():
    """The end of one and the beginning of the other are told together."""
    played = Played()
    played.tell(100.0, a=stalled())
    news = played.tell(110.0, a=dead())
    assert (names(news.begun), names(news.ended)) == ([(DEAD, "a")], [(STALLED, "a")])
    assert not played.tell(111.0, a=dead())
    assert names(played.tell(110.0 + 2 * KEEP_FIRING).ended) == [(DEAD, "a")]


def test_a_death_that_flickers_does_not_turn_back_at_once():
    """What explains less takes over only when what explains more has not held for five minutes."""
    played = Played()
    played.tell(100.0, a=dead())
    assert not played.tell(110.0, a=stalled())
    assert not played.tell(390.0, a=stalled())
    news = played.tell(400.0, a=stalled())
    assert (names(news.begun), names(news.ended)) == ([(STALLED, "a")], [(DEAD, "a")])


def test_several_servers_are_one_message_and_what_goes_on_is_in_it():
    """A message states all that fires on the node, so that its status is that of the whole group."""
    played = Played()
    assert names(played.tell(100.0, a=stalled(), b=dead()).begun) == [(STALLED, "a"), (DEAD, "b")]
    news = played.tell(110.0, a=stalled(), b=dead(), c=stalled())
    assert (names(news.begun), names(news.lasting)) == ([(STALLED, "c")], [(STALLED, "a"), (DEAD, "b")])
    news = played.tell(110.0 + KEEP_FIRING, a=stalled(), c=stalled())
    assert (names(news.ended), names(news.lasting)) == ([(DEAD, "b")], [(STALLED, "a"), (STALLED, "c")])


def test_what_ended_before_it_could_be_told_is_not_told():
    """Neither its beginning nor its end, as Alertmanager has it."""
    played = Played()
    assert played.look(100.0, a=stalled())
    assert not played.look(100.0 + KEEP_FIRING, a=well())


def test_what_was_refused_is_not_told_again_nor_its_end():
    """A later incident of the same server is told anew, and so is this one when somebody asks for it."""
    played = Played()
    assert played.tell(100.0, delivered=False, a=stalled())
    assert not played.look(101.0, a=stalled())
    played.incidents.try_refused()
    assert played.tell(102.0, delivered=False, a=stalled())
    assert not played.look(102.0 + KEEP_FIRING, a=well())
    assert played.look(1000.0, a=stalled())


def test_an_end_that_was_refused_is_not_told_again():
    """The receiver was told once, and does not want to hear."""
    played = Played()
    played.tell(100.0, a=stalled())
    assert played.tell(100.0 + KEEP_FIRING, delivered=False)
    assert not played.look(101.0 + KEEP_FIRING)


def test_a_stall_goes_on_for_a_receiver_that_refused_its_death():
    """What it knows to fire still ends for it once the server is well."""
    played = Played()
    played.tell(100.0, a=stalled())
    assert played.tell(110.0, delivered=False, a=dead())
    news = played.look(120.0, a=dead())
    assert (bool(news), names(news.lasting)) == (False, [(STALLED, "a")])
    assert names(played.look(120.0 + KEEP_FIRING, a=well()).ended) == [(STALLED, "a")]


def test_there_are_only_so_many_of_one_server_in_an_hour():
    """A server that flaps more slowly than alerts hold is held back; others are not, and each end is told."""
    played, told = Played(), []
    for turn in range(MOST_BEGUN + 3):
        now = 1000.0 + turn * (KEEP_FIRING + 2)
        told += [*played.tell(now, a=stalled()).begun, *played.tell(now + KEEP_FIRING + 1, a=well()).ended]
    assert len(told) == 2 * MOST_BEGUN
    now = 1000.0 + (MOST_BEGUN + 3) * (KEEP_FIRING + 2)
    assert names(played.tell(now, a=stalled(), b=stalled()).begun) == [(STALLED, "b")]
    assert played.incidents.held_back(now) == {"a"}
    assert names(played.tell(1000.0 + HOUR, a=stalled(), b=stalled()).begun) == [(STALLED, "a")]
    assert played.incidents.held_back(1000.0 + HOUR) == frozenset()


def test_a_restart_tells_nothing_twice():
    """The exporter that comes after goes on with what was told, though it sees nothing of the server at first."""
    before = Played()
    before.tell(100.0, a=stalled(since=50.0))
    after = before.again(200.0)
    assert not after.look(201.0)
    assert not after.look(210.0, a=stalled(since=60.0))
    assert after.incidents.remember()[0]["starts_at"] == 50.0
    (ended,) = after.look(210.0 + KEEP_FIRING, a=well()).ended
    assert (ended.key, ended.starts_at) == ((("a", STALLED, HERE)), 50.0)


def test_what_a_restart_hid_is_ended_later():
    """A server that came back meanwhile, even over a boot of the node, ends its incident five minutes after."""
    before = Played()
    before.tell(90_000.0, a=dead())
    after = before.again(7.0)
    assert not after.look(8.0, a=well())
    assert names(after.look(7.0 + KEEP_FIRING, a=well()).ended) == [(DEAD, "a")]


def test_a_node_with_another_name_begins_anew_and_ends_what_it_was():
    """An alert is known by its labels, and its end must have the same ones as its beginning."""
    before = Played()
    before.tell(100.0, a=stalled())
    after = before.again(200.0)
    after.incidents.look({"a": stalled()}, moment(201.0), "other:19847")
    news = after.incidents.news(201.0)
    assert [alert.instance for alert in (*news.begun, *news.ended)] == ["other:19847", HERE]


def test_nothing_is_no_news():
    """What only goes on is no reason to tell it."""
    assert not News(lasting=Played().tell(100.0, a=stalled()).begun)


JUNK = some.recursive(some.none() | some.floats(allow_nan=False) | some.text(max_size=5), some.lists)


@given(JUNK | some.lists(some.dictionaries(some.sampled_from(["name", "server", "starts_at"]), JUNK)))
def test_whatever_was_kept_can_be_recalled(kept):
    """A file that is not ours is no memory."""
    incidents = Incidents()
    incidents.recall(kept, 100.0)
    assert incidents.remember() == []


def test_what_was_told_outlives_the_boot(tmp_path):
    """Of a file of another boot only this is left: who reboots a node with a hung server wants the page to end."""
    file = tmp_path / "memory.json"
    file.write_text(json.dumps({"at": 1.0, "origin": "another boot", "notified": [1]}))
    assert Keeper(file).load() == {"notified": [1]}
