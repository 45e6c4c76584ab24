"""Lanes: when a round begins, what counts of it, how it is told that something is missing."""

import asyncio
import re
from dataclasses import dataclass

import pytest

from stallwatch.lanes import CollectorError, Lane, Lanes, Plan, rest_after
from stallwatch.snapshot import Failure, Reading
from stallwatch.workers import WorkerError


@dataclass(frozen=True, slots=True)
class Look(Reading):
    """A reading."""


def lane(collect, server="", interval=1.0, patience=5.0):
    """Return a lane with its pace set."""
    made = Lane("log", collect, server)
    made.pace(interval, patience)
    return made


async def gives(outcome):
    """Yield an outcome as a collector does."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def round_of(a_lane, now):
    """Play one whole round."""
    task = a_lane.start(now)
    await asyncio.wait([task])
    return a_lane.harvest(now)


async def test_a_reading_counts_until_it_is_stale():
    """A reading counts for its interval and the patience after it, then it is missing with its age."""
    one = lane(lambda: gives((Look(100.0), ())))
    await round_of(one, 100.0)
    assert one.outcome(106.0) == (Look(100.0), ())
    reading, failures = one.outcome(106.5)
    assert reading is None
    assert failures == (Failure("log", "stale", "no reading for 6 s"),)
    assert not one.state(106.5).success


async def test_rounds_do_not_overlap():
    """A round that is still in flight is not begun again, however long it takes."""
    never = asyncio.Event()
    one = lane(never.wait)
    assert one.start(0.0)
    assert one.start(50.0) is None
    one.cancel()


async def test_the_next_round_is_due_after_the_interval():
    """Rounds keep their pace and are not made up for when time has passed."""
    one = lane(lambda: gives((Look(0.0), ())), interval=5.0)
    await round_of(one, 100.0)
    assert one.start(101.0) is None
    await round_of(one, 105.0)
    assert one.start(106.0) is None


async def test_who_answers_slowly_is_asked_less_often():
    """After such a reading the next round waits, and the reading counts until then; a failure earns no rest."""
    answers = iter([(Look(100.0), ()), (Look(130.0), (Failure("log", "refused"),)), (Look(131.0), ())])
    one = Lane("log", lambda: gives(next(answers)))
    one.pace(1.0, 5.0, lambda _reading, _took: 30.0)
    await round_of(one, 100.0)
    assert one.start(129.0) is None
    assert one.outcome(135.0)[0] == Look(100.0)
    assert one.outcome(135.5)[1][0].reason == "stale"
    await round_of(one, 130.0)
    await round_of(one, 131.0)


async def test_the_rest_goes_by_how_long_the_round_took():
    """What is handed on is the time of the round itself, not until it was looked at."""
    told = []
    one = Lane("log", lambda: gives((Look(0.0), ())))
    one.pace(1.0, 5.0, lambda reading, took: told.append((reading, took)) or 0.0)
    await round_of(one, 0.0)
    ((reading, took),) = told
    assert reading == Look(0.0)
    assert 0 < took < 1


@pytest.mark.parametrize(
    ("took", "rest"), [(0.2, 0.0), (1.0, 0.0), (1.5, 15.0), (2.9, 29.0), (4.0, 30.0), (500.0, 30.0)]
)
def test_a_rest_is_ten_times_as_long_as_the_answer_took(took, rest):
    """Up to a bound, so that a server is still judged in time; an answer of a second is a usual one."""
    assert rest_after(took, 30.0) == pytest.approx(rest)


def test_no_rest_is_longer_than_a_minute():
    """However patient the limits are."""
    assert rest_after(30.0, 3600.0) == 60.0


async def test_a_first_round_that_takes_long_says_so():
    """Before anything has come back the signal is missing because it is starting."""
    one = lane(asyncio.Event().wait)
    one.start(10.0)
    reading, failures = one.outcome(13.0)
    assert (reading, failures[0].reason) == (None, "starting")
    one.cancel()


async def test_what_a_reading_left_out_is_counted():
    """Over all rounds, and for the last one; so is what a lane left out that is wanted no more."""
    answers = iter([(Look(0.0, dropped=3), ()), (Look(1.0, dropped=4), ()), (Look(2.0), ())])
    lanes = Lanes()
    plan = Plan(("log", "a", "1"), 1.0, 5.0, lambda: lambda: gives(next(answers)))
    lanes.have([plan])
    (one,) = lanes
    told = []
    for now in (0.0, 1.0, 2.0):
        await round_of(one, now)
        told.append((one.state(now).dropped, one.state(now).dropping))
    assert told == [(3, 3), (7, 4), (7, 0)]
    lanes.have([])
    assert [(state.collector, state.dropped) for state in lanes.states(3.0)] == [("log", 7)]


async def test_a_worker_error_becomes_a_failure_and_is_handed_on():
    """A late worker leaves no reading behind: the last one is not served again."""
    answers = iter([(Look(0.0), ()), WorkerError("timeout", "no answer in 5 s, at: pid 7", "pid 7")])
    one = lane(lambda: gives(next(answers)))
    await round_of(one, 0.0)
    error = await round_of(one, 1.0)
    assert error.stuck_in == "pid 7"
    assert one.outcome(1.0) == (None, (Failure("log", "timeout", "no answer in 5 s, at: pid 7"),))
    assert one.state(1.0).failures == (("timeout", 1),)


async def test_any_other_exception_becomes_a_failure():
    """A fault of ours in a collector is one failure, which does not quote the error, and the next round goes on."""
    answers = iter([ValueError("bad"), CollectorError("garbage", "no reading"), (Look(2.0), ())])
    one = lane(lambda: gives(next(answers)))
    await round_of(one, 0.0)
    (failure,) = one.outcome(0.0)[1]
    assert failure.reason == "error"
    assert re.fullmatch(r"ValueError at test_lanes\.py:\d+", failure.detail)
    await round_of(one, 1.0)
    assert one.outcome(1.0)[1] == (Failure("log", "garbage", "no reading"),)
    await round_of(one, 2.0)
    assert one.state(2.0).success
    assert one.state(2.0).last_success == 2.0


async def test_what_is_harmless_is_neither_success_nor_failure():
    """No reading, and nothing broken: neither; with a reading beside it, a success; beside a fault, a failure."""
    harmless, fault = Failure("kernel", "no_permission"), Failure("kernel", "unreadable")
    for outcome, success in (
        ((None, (harmless,)), None),
        ((Look(0.0), (harmless,)), True),
        ((None, (harmless, fault)), False),
        ((Look(0.0), (harmless, fault)), False),
    ):
        a_lane = lane(lambda outcome=outcome: gives(outcome))
        await round_of(a_lane, 0.0)
        assert a_lane.state(0.0).success is success


async def test_a_lane_that_begins_anew_has_nothing_left():
    """What was read is dropped, what is in flight is given up, and the next round is due at once."""
    a_lane = lane(lambda: gives((Look(1.0), ())), interval=100.0)
    await round_of(a_lane, 0.0)
    assert a_lane.outcome(1.0)[0]
    a_lane.begin_anew()
    assert a_lane.outcome(1.0) == (None, ())
    task = a_lane.start(1.0)
    a_lane.begin_anew()
    await asyncio.wait([task])
    assert task.cancelled()
    assert a_lane.harvest(1.0) is None
    await round_of(a_lane, 1.0)
    assert (a_lane.outcome(1.0)[0], a_lane.counts) == (Look(1.0), {})


async def test_what_one_server_does_not_offer_is_no_fault_of_the_collector():
    """A lane of one server without a port succeeds, a node-wide one with a failure of all of it does not."""
    missing = Failure("log", "no_port", "", "a")
    of_server = lane(lambda: gives((None, (missing,))), server="a")
    await round_of(of_server, 0.0)
    assert of_server.state(0.0).success
    of_node = lane(lambda: gives((Look(0.0), (Failure("log", "error"),))))
    await round_of(of_node, 0.0)
    assert not of_node.state(0.0).success
    partly = lane(lambda: gives((Look(0.0), (missing,))))
    await round_of(partly, 0.0)
    assert partly.state(0.0).success
