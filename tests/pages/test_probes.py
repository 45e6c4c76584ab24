"""Probes: the endpoints and the replicas of a server as rows."""

from pasts import a_past, moment, probe, replica
from stallwatch.collectors.health import RESULTS
from stallwatch.pages.probes import ANSWERS, replica_table, table


def test_every_result_has_words():
    """No outcome of a probe is shown as a bare word of a metric."""
    assert set(ANSWERS) == set(RESULTS)


def test_an_endpoint_says_what_it_answers_and_what_that_proves():
    """The status, how long ago, and whether a good answer comes from the scheduler."""
    html = table("k", a_past(probes=(probe("ok", status=200), probe("ok", path="/v1/models", scope="http"))), moment())
    assert ">✓ answers (200)<" in html
    assert ">the scheduler answers<" in html
    assert ">the web process answers<" in html
    assert ">5 s ago<" in html
    assert "odd" not in html


def test_an_endpoint_that_fails_is_marked_by_sign_and_word():
    """A timeout is told, and that it never answered."""
    html = table("k", a_past(probes=(probe("timeout", latency=25.0),)), moment())
    assert 'class="odd"' in html
    assert ">✕ no answer in time<" in html
    assert ">never<" in html
    assert ">25.0 s<" in html


def test_a_port_that_is_closed_yet_is_not_odd():
    """A server that starts is not marked for it, though the sign and the word are there."""
    html = table("k", a_past(ready=False, probes=(probe("refused"),)), moment())
    assert ">✕ refuses connections<" in html
    assert "odd" not in html


def test_no_probe_is_said():
    """A server without endpoints has words instead of an empty table."""
    html = table("k", a_past(), moment())
    assert "No endpoint of it has been asked." in html
    assert "<table" not in html


def test_replicas_are_shown_where_there_are_several():
    """The one that makes no tokens stands out beside the others."""
    assert replica_table("k", a_past(replicas=(replica(1.0),)), moment()) is None
    several = (replica(1.0, 2.0, tokens=3.0), replica(4.0, None, dp_rank="1", tokens=600.0))
    html = replica_table("k", a_past(replicas=several), moment())
    assert ">3 s ago<" in html
    assert ">10 min ago<" in html
    assert '<th scope="row">DP1</th>' in html
    assert "stands still" not in html


def test_a_replica_that_has_work_and_makes_no_token_is_marked():
    """One that has had requests for long; its sister without any rests in peace."""
    idle, hung = replica(tokens=600.0), replica(2.0, 1.0, dp_rank="1", tokens=600.0, pending=900.0)
    html = replica_table("k", a_past(replicas=(idle, hung)), moment())
    assert html.count("stands still") == 1
    assert '<tr class="odd"><th scope="row">DP1 <span class="flag">◀ stands still</span></th>' in html


def test_a_replica_whose_loop_does_not_turn_is_marked():
    """It shows no work, since its numbers are frozen; one that has work may take long for one turn."""
    resting, hung = replica(heartbeat=5.0), replica(dp_rank="1", heartbeat=600.0)
    at_work = replica(1.0, dp_rank="2", tokens=3.0, pending=900.0, heartbeat=600.0)
    html = replica_table("k", a_past(replicas=(resting, hung, at_work)), moment())
    assert html.count("stands still") == 1
    assert '<th scope="row">DP1 <span class="flag">◀ stands still</span></th>' in html
