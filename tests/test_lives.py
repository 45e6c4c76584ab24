"""How a server that has gone is told of, and how its starts are counted."""

import json
from dataclasses import replace

import pytest

from readings import NAME, a_server
from stallwatch.lives import Lives, Told


def life(number):
    """Return the server in one of its lives."""
    return replace(a_server(), incarnation=f"life {number}")


def at(lives, now, *servers, ready=None, stopping=False):
    """Look once and return the server as it is shown, if it is, and how it ended or was started."""
    shown, endings = lives.look(servers, {NAME: Told(ready, stopping)}, now)
    return next((server for server in shown if server.name == NAME), None), endings.get(NAME)


def test_a_crash_leaves_a_tombstone_for_a_quarter_of_an_hour():
    """The server stays in the list without processes, and is gone after 15 min."""
    lives = Lives()
    at(lives, 0.0, life(1), ready=True)
    server, ending = at(lives, 5.0)
    assert (server.processes, ending.gone_since, ending.orderly) == ((), 5.0, False)
    assert at(lives, 904.0)[0] is not None
    assert at(lives, 905.0) == (None, None)


def test_an_orderly_end_leaves_nothing():
    """Drain lines in the log, seen before or right after the end: no tombstone."""
    for stopping_before in (True, False):
        lives = Lives()
        at(lives, 0.0, life(1), stopping=stopping_before)
        assert at(lives, 5.0, stopping=True)[0] is None


def test_without_a_log_nothing_tells_how_it_ended():
    """The tombstone does not claim a crash."""
    lives = Lives()
    at(lives, 0.0, life(1), stopping=None)
    assert at(lives, 5.0, stopping=None)[1].orderly is None


def test_a_new_life_takes_over_and_is_counted():
    """The name goes on with another incarnation, and the tombstone is gone."""
    lives = Lives()
    at(lives, 0.0, life(1), ready=True)
    at(lives, 5.0)
    server, ending = at(lives, 60.0, life(2))
    assert (server.incarnation, ending.gone_since, ending.restarts) == ("life 2", None, 1)


def starts(lives, now, number):
    """Have a life begin and be seen not to be ready, and return how its starts went so far."""
    at(lives, now, life(number))
    return at(lives, now + 1, life(number), ready=False)[1]


def test_three_starts_in_half_an_hour_without_getting_ready_are_a_loop():
    """Two are none, and it is over once a life gets ready, or when the starts are long ago."""
    lives = Lives()
    for number in range(3):
        assert starts(lives, 100.0 * number, number).crash_looping == (number == 2)
        at(lives, 100.0 * number + 50)
    assert starts(lives, 300.0, 3).crash_looping
    assert not at(lives, 302.0, life(3), ready=True)[1].crash_looping


def test_starts_of_which_nobody_knows_whether_they_got_ready_are_no_loop():
    """A server whose readiness cannot be told may be deployed as often as anybody likes."""
    lives = Lives()
    for number in range(5):
        at(lives, 100.0 * number, life(number))
        ending = at(lives, 100.0 * number + 1, life(number))[1]
    assert (ending.restarts, ending.crash_looping) == (4, False)


def test_starts_that_were_ready_are_no_loop():
    """Deploys and crashes of servers that served are counted, but are no loop."""
    lives = Lives()
    for number in range(5):
        at(lives, 100.0 * number, life(number))
        ending = at(lives, 100.0 * number + 1, life(number), ready=True)[1]
        at(lives, 100.0 * number + 50)
    assert (ending.restarts, ending.crash_looping) == (4, False)


def test_that_the_life_before_was_ready_does_not_make_this_one_so():
    """What is told of the look before was of another life."""
    lives = Lives()
    at(lives, 0.0, life(0), ready=True)
    for number in range(1, 4):
        at(lives, 100.0 * number, life(number), ready=True)
        ending = at(lives, 100.0 * number + 1, life(number), ready=False)[1]
    assert ending.crash_looping


def test_a_server_under_another_name_has_not_crashed():
    """As long as one of its processes runs somewhere in the list there is no tombstone of its old name."""
    lives, server = Lives(), life(1)
    at(lives, 0.0, server)
    shown, endings = lives.look((replace(server, name="sglang:30000@abc"),), {}, 5.0)
    assert [one.name for one in shown] == ["sglang:30000@abc"]
    assert NAME not in endings


def test_an_engine_inside_a_program_that_ends_is_not_said_to_have_crashed():
    """Its log says nothing of an end, however orderly that was."""
    lives, server = Lives(), life(1)
    inside = replace(server, processes=tuple(one for one in server.processes if one.role != "launcher"))
    at(lives, 0.0, inside, stopping=False)
    assert at(lives, 5.0, stopping=False)[1].orderly is None


def test_the_time_not_ready_adds_up_over_lives():
    """Ten seconds in one life and twenty in the next."""
    lives = Lives()
    for now, number, ready in ((0, 1, False), (10, 1, False), (20, 1, True), (30, 2, None), (50, 2, False)):
        at(lives, float(now), life(number), ready=ready)
    assert lives.not_ready_seconds() == {NAME: 30.0}


def test_over_a_restart_of_the_exporter_lives_are_counted_on():
    """Restarts, starts that did not get ready, tombstones and the time not ready are those of before."""
    lives = Lives()
    for number in range(3):
        starts(lives, 100.0 * number, number)
    before = at(lives, 205.0)
    after = Lives()
    assert [server.name for server in after.recall(json.loads(json.dumps(lives.remember())))] == [NAME]
    assert at(after, 210.0) == before
    assert after.not_ready_seconds() == lives.not_ready_seconds()
    again = starts(after, 220.0, 3)
    assert (again.restarts, again.crash_looping) == (3, True)


def test_what_ended_while_no_exporter_ran_has_gone():
    """Of a server that was there and is not found again a tombstone is told; its log tells how it ended."""
    lives, after = Lives(), Lives()
    at(lives, 0.0, life(1), ready=True)
    after.recall(lives.remember())
    server, ending = at(after, 100.0, stopping=None)
    assert (server.incarnation, ending.gone_since, ending.orderly) == ("life 1", 100.0, False)
    assert at(after, 101.0, stopping=True)[0] is None


@pytest.mark.parametrize("garbage", [None, 7, "x", [7], [{}], [{"server": {}}], {"a": 1}])
def test_what_is_no_memory_of_lives_is_nothing(garbage):
    """A file of another version changes nothing."""
    lives = Lives()
    assert lives.recall(garbage) == ()
    assert at(lives, 0.0, life(1))[1].restarts == 0


def test_a_configured_server_without_processes_is_no_life():
    """It is listed before its first start, told of as crashed after it, and counts no restart."""
    lives, listed = Lives(), replace(a_server(), processes=(), incarnation="unseen")
    assert at(lives, 0.0, listed) == (listed, None)
    at(lives, 10.0, life(1))
    server, ending = at(lives, 20.0, listed)
    assert (server.incarnation, ending.gone_since, ending.restarts) == ("life 1", 20.0, 0)
    assert at(lives, 921.0, listed) == (listed, None)
