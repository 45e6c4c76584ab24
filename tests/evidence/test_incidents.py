"""When is evidence due: once per incident, before a watchdog kills, and not again after a restart."""

from dataclasses import replace

import pytest

from incidents import a_view, at, bundle, hung, named
from pasts import a_past, ranks, serving, starting
from readings import NAME, a_server
from stallwatch.evidence.incidents import APART, APART_CRASHING, Incidents
from stallwatch.past import Ending

EVIDENCE, STALLED = 180.0, 240.0


def due(incidents, view, **latest):
    """Return the names of servers of which evidence is due, and why."""
    return [(one.past.server.name, one.why) for one in incidents.due(view, {NAME: latest["kept"]} if latest else {})]


def test_a_server_that_stands_still_is_due_at_the_evidence_limit():
    """Not when it becomes suspect, but before it is called stalled."""
    assert due(Incidents(), a_view(hung(EVIDENCE - 1))) == []
    assert due(Incidents(), a_view(hung(EVIDENCE))) == [(NAME, "nothing has moved for 3 min")]


def test_a_verdict_of_stalled_or_dead_is_due_at_once():
    """A lost process is no matter of minutes."""
    assert due(Incidents(), a_view(hung(STALLED))) == [(NAME, "its verdict is stalled")]
    gone = replace(ranks(0.0)[0], missing_since=99_970.0)
    assert due(Incidents(), a_view(serving(ranks=(gone,)))) == [(NAME, "its verdict is dead")]


@pytest.mark.parametrize("past", [serving(), starting(), a_past(ready=True, pending=0.0)])
def test_a_server_that_is_well_is_never_due(past):
    """Busy, starting and idle leave nothing."""
    assert due(Incidents(), a_view(past)) == []


def test_an_incident_is_due_once():
    """Not at each look, nor when the verdict goes on from suspect to stalled."""
    incidents = Incidents()
    assert due(incidents, a_view(hung(EVIDENCE)))
    assert due(incidents, a_view(hung(EVIDENCE + 1))) == []
    assert due(incidents, a_view(hung(STALLED))) == []


def test_the_next_incident_of_the_same_server_is_due_again():
    """Once it has been well in between, and the last bundle is some minutes old."""
    incidents = Incidents()
    assert due(incidents, a_view(hung(EVIDENCE)))
    assert due(incidents, a_view(serving())) == []
    soon, late = bundle(at(0).unix - APART + 1), bundle(at(0).unix - APART - EVIDENCE - 1)
    assert due(incidents, a_view(hung(EVIDENCE)), kept=soon) == []
    assert due(incidents, a_view(hung(EVIDENCE)), kept=late)


def test_a_crash_loop_leaves_one_bundle_an_hour():
    """Else its starts would throw away what was kept of others."""
    looping = serving(ranks=(replace(ranks(0.0)[0], missing_since=99_970.0),), ending=Ending(crash_looping=True))
    assert due(Incidents(), a_view(looping), kept=bundle(at(0).unix - APART - 1)) == []
    assert due(Incidents(), a_view(looping), kept=bundle(at(0).unix - APART_CRASHING - 1))


def test_a_restarted_exporter_knows_the_incident_by_its_bundle():
    """What was gathered of this life since it stands still is not gathered again, however long that lasts."""
    view = a_view(hung(3 * APART))
    since = at(0).unix - 3 * APART
    assert due(Incidents(), view, kept=bundle(since + EVIDENCE)) == []
    assert due(Incidents(), view, kept=bundle(since - 1))
    other_life = a_view(replace(hung(3 * APART), server=a_server(incarnation="2")))
    assert due(Incidents(), other_life, kept=bundle(since + EVIDENCE, incarnation="1"))


def test_what_could_not_be_kept_is_tried_again_after_a_while():
    """A full disk is not asked at each look."""
    incidents = Incidents()
    (incident,) = incidents.due(a_view(hung(STALLED)), {})
    incidents.failed(incident, at(0))
    assert due(incidents, a_view(hung(STALLED), later=1.0)) == []
    assert due(incidents, a_view(hung(STALLED), later=APART + 1))


def test_each_server_is_an_incident_of_its_own():
    """One that hangs hides no other."""
    incidents = Incidents()
    assert due(incidents, a_view(hung(EVIDENCE), named(serving(), "vllm:8000")))
    assert [name for name, _ in due(incidents, a_view(hung(EVIDENCE), named(hung(EVIDENCE), "vllm:8000")))] == [
        "vllm:8000"
    ]


def test_a_bundle_of_before_the_clock_was_set_back_is_of_another_incident():
    """It seems to be of a time that is yet to come; that is no reason to keep nothing of this one."""
    late = bundle(at(0).unix + 3600.0)
    assert due(Incidents(), a_view(hung(EVIDENCE)), kept=late) == [(NAME, "nothing has moved for 3 min")]


def test_a_server_that_is_started_anew_and_hangs_again_is_due_again():
    """Also where nothing saw it well in between; of one life it is due once, however long that hangs."""
    incidents = Incidents()
    lives = [hung(EVIDENCE), hung(EVIDENCE)]
    second = replace(lives[1], server=replace(lives[1].server, incarnation="another"))
    before = bundle(at(0).unix - APART - 1)
    assert due(incidents, a_view(lives[0]))
    assert due(incidents, a_view(second), kept=before)
    assert due(incidents, a_view(second), kept=before) == []
