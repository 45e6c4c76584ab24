"""One data-parallel replica that hangs behind others that serve."""

from dataclasses import replace

import pytest

from pasts import NOW, gpus, moment, probe, replica, serving
from stallwatch.judging.replicas import narrowed, silent
from stallwatch.past import Past, RankPast
from stallwatch.verdict import judge

WORKS = replica(5, tokens=1, pending=900, heartbeat=1)
OTHERS = (WORKS, replace(WORKS, dp_rank="2"))


def beside(one, *, dp_rank="1", **fields):
    """Return a server of which this is one replica of three; the others serve, and one of them answers probes."""
    return serving(replicas=(*OTHERS, replace(one, dp_rank=dp_rank)), probes=(probe(),), **fields)


def judged(past):
    """Return verdict and signature."""
    verdict = judge(past, moment())
    return verdict.state, verdict.signature


CASES = {
    "idle, its loop turns": (beside(replica(heartbeat=2)), ("busy", "")),
    "silent for 59 s": (beside(replica(heartbeat=59)), ("busy", "")),
    "silent for 60 s": (beside(replica(heartbeat=60)), ("suspect", "")),
    "silent for 4 min": (beside(replica(heartbeat=240)), ("stalled", "loop_stopped")),
    "silent, the GPUs of all compute": (beside(replica(heartbeat=240), gpus=gpus(0.9, power=0.8)), ("suspect", "")),
    "silent, its own GPUs rest": (
        beside(replica(heartbeat=240), gpus=gpus(0.0, 0.9, power=0.8), parts={"1": gpus(0.0)}),
        ("stalled", "loop_stopped"),
    ),
    "silent, it compiles": (beside(replica(heartbeat=900), moved={"compile": NOW - 1, "tokens": NOW}), ("busy", "")),
    "has work, one turn takes long": (
        beside(replica(1, tokens=30, pending=900, heartbeat=900)),
        ("busy", ""),
    ),
    "never showed a beat": (beside(replica()), ("busy", "")),
    "no loop can be seen to turn": (
        serving(replicas=(replace(WORKS, heartbeat=None), replica(dp_rank="1", heartbeat=900))),
        ("busy", ""),
    ),
    "asleep on purpose": (beside(replica(heartbeat=900), waiting="sleeping", owed={}), ("idle", "")),
    "one replica only": (serving(replicas=(replica(1, tokens=1, heartbeat=900),)), ("busy", "")),
}


@pytest.mark.parametrize(("past", "expected"), CASES.values(), ids=CASES)
def test_one_replica_among_others_that_serve(past, expected):
    """A good probe of another replica clears nothing, and a replica that only rests is left in peace."""
    assert judged(past) == expected


def test_the_reason_names_the_replica():
    """And says that the others get on."""
    ruling = silent(beside(replica(heartbeat=300)), NOW)
    assert ruling.reason.startswith(
        "Replica 1 of 3 shows no work, but its loop has not turned for 5 min while others turn"
    )
    assert ruling.since == NOW - 300


def test_where_the_engine_tells_nothing_of_loops_its_processes_do():
    """The schedulers of a replica are known by their titles."""
    quiet = tuple(replace(one, heartbeat=None) for one in (*OTHERS, replica(dp_rank="1")))
    beats = {"DP0_TP0": 1, "DP1_TP0": 300, "DP1_TP1": 1, "DP2_TP0": 2}
    ranks = tuple(RankPast(f"scheduler_{rank}", rank, beat=NOW - age) for rank, age in beats.items())
    past = serving(replicas=quiet, ranks=ranks)
    assert silent(past, NOW).since == NOW - 300
    assert silent(replace(past, ranks=ranks[:1]), NOW) is None


def test_what_concerns_one_replica_is_what_is_its_own():
    """Its schedulers and GPUs where it has some, never what the others move."""
    ranks = tuple(RankPast(f"scheduler_DP{n}_TP0", f"DP{n}_TP0") for n in range(3))
    past: Past = beside(replica(), ranks=ranks, parts={"1": gpus(0.5)})
    own = narrowed(past, past.replicas[2])
    assert [rank.rank for rank in own.ranks] == ["DP1_TP0"]
    assert (own.gpus, own.moved, len(own.replicas)) == (gpus(0.5), {}, 1)
