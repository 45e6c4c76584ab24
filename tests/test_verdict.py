"""The judge: each rule as a table, its sentences, and that nothing whatever makes it fail."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasts import HOUR, NOW, UNIX, a_past, ago, gpus, moment, probe, ranks, replica, serving, starting
from readings import a_server
from stallwatch import wording
from stallwatch.past import BlockedPast, Ending, GpusPast, Past, RankPast, ReplicaPast, XidPast
from stallwatch.placement import Holding
from stallwatch.snapshot import PHASES, Launch, Moment
from stallwatch.verdict import SIGNATURES, VERDICTS, foreseen, judge

TWO_NODES = a_server(launch=Launch(port=30000, tp_size=16, nnodes=2))
WORKER = a_server(launch=Launch(port=30000, tp_size=16, nnodes=2, node_rank=1, worker=True))
UNKNOWN_STATE = GpusPast()


def judged(past):
    """Return verdict and signature."""
    verdict = judge(past, moment())
    return verdict.state, verdict.signature


START_LIMITS = {"start_without_movement": 300.0}
STARTS = {
    "it moves": (starting(), ("starting", "")),
    "it moves by one sign": (starting(moved=ago(log=900, io=1)), ("starting", "slow_load")),
    "nothing for 59 s": (starting(still=59), ("starting", "")),
    "nothing for a minute": (starting(still=60), ("suspect", "")),
    "nothing for 299 s": (starting(still=299, limits=START_LIMITS), ("suspect", "")),
    "nothing for 5 min": (starting(still=300, limits=START_LIMITS), ("stalled", "cold_deadlock")),
    "nothing for 9 min, not all can be read": (
        starting(moved=ago(log=540), limits={"start_without_movement": 600.0}),
        ("suspect", ""),
    ),
    "what vanished moved a minute ago": (starting(moved=ago(log=700), vanished=ago(io=50)), ("starting", "slow_load")),
    "a compiler works": (starting(moved=ago(log=900, compile=1), phase="compiling"), ("starting", "compiling")),
    "past the budget of its phase": (starting(moved=ago(io=1), phase_since=NOW - 3601), ("slow", "slow_load")),
    "compiles past its budget": (
        starting(moved=ago(compile=1), phase="compiling", phase_since=NOW - 2701),
        ("slow", "compiling"),
    ),
    "meets past its budget": (starting(phase="distributed_init", phase_since=NOW - 301), ("slow", "")),
    "meets on two nodes": (
        starting(phase="distributed_init", phase_since=NOW - 301, server=TWO_NODES),
        ("starting", ""),
    ),
    "it spins": (starting(still=900, gpus=gpus(1.0, power=0.2)), ("stalled", "spin_deadlock")),
    "it spins, power unknown": (starting(still=800, gpus=gpus(1.0)), ("suspect", "")),
    "it spins, power unknown, for 15 min": (starting(still=900, gpus=gpus(1.0)), ("stalled", "spin_deadlock")),
    "ranks differ": (starting(still=900, gpus=gpus(0.0, 1.0, power=0.2)), ("stalled", "split_ranks")),
    "CPUs burn": (starting(still=900, gpus=gpus(0.0), ranks=ranks(1.0, 1.0)), ("stalled", "cpu_spin")),
    "nothing loaded, ranks meet": (
        starting(still=900, phase="distributed_init", gpus=gpus(0.0, memory=1)),
        ("stalled", "rendezvous"),
    ),
    "loaded, ranks meet": (starting(still=900, phase="distributed_init", gpus=gpus(0.0)), ("stalled", "cold_deadlock")),
    "gated": (starting(still=9000, waiting="gated"), ("starting", "")),
    "nothing can be read": (starting(moved={}), ("unknown", "")),
    "cold at 40 % of the power limit": (starting(still=600, gpus=gpus(0.0, power=0.4)), ("stalled", "cold_deadlock")),
}


@pytest.mark.parametrize(("past", "expected"), STARTS.values(), ids=STARTS)
def test_starts(past, expected):
    """A start is judged by what moves, what is seen of the GPUs and CPUs, and the budget of its phase."""
    assert judged(past) == expected


SERVING = {
    "tokens come": (serving(), ("busy", "")),
    "for 59 s": (serving(still=59), ("busy", "")),
    "for 60 s": (serving(still=60), ("suspect", "")),
    "for 239 s": (serving(still=239), ("suspect", "")),
    "for 4 min": (serving(still=240), ("stalled", "cold_deadlock")),
    "owed for a minute only": (serving(still=9000, owed={"running": 61}), ("suspect", "")),
    "spinning": (serving(still=300, gpus=gpus(1.0, power=0.2)), ("stalled", "spin_deadlock")),
    "hot, power unknown": (serving(still=899, gpus=gpus(1.0)), ("suspect", "")),
    "hot, power unknown, for 15 min": (serving(still=900, gpus=gpus(1.0)), ("stalled", "spin_deadlock")),
    "at high power": (serving(still=899, gpus=gpus(0.95, power=0.8)), ("suspect", "")),
    "at high power, for 15 min": (serving(still=900, gpus=gpus(0.95, power=0.8)), ("stalled", "spin_deadlock")),
    "at high power when last seen": (serving(still=300, gpus=GpusPast(worked=True)), ("suspect", "")),
    "at high power until just now": (
        serving(still=800, gpus=replace(gpus(0.0), worked_at=NOW - 20)),
        ("suspect", ""),
    ),
    "at high power until 4 min ago": (
        serving(still=800, gpus=replace(gpus(0.0), worked_at=NOW - 240)),
        ("stalled", "cold_deadlock"),
    ),
    "split": (serving(still=300, gpus=gpus(0.0, 1.0)), ("stalled", "split_ranks")),
    "split for a minute": (
        serving(still=300, gpus=gpus(0.0, 1.0, for_seconds=60), ranks=ranks(0, 0)),
        ("stalled", "cold_deadlock"),
    ),
    "none runs": (
        serving(still=300, owed={"queued": 300}, replicas=(replica(0, 4, tokens=300),)),
        ("stalled", "unscheduled"),
    ),
    "CPU burns": (serving(still=300, gpus=gpus(0.0), ranks=ranks(1.0)), ("stalled", "cpu_spin")),
    "answered since": (serving(still=300, cleared_at=NOW - 10, probes=(probe(),)), ("busy", "")),
    "queue stands, though answered": (
        serving(still=300, owed={"queued": 300}, replicas=(replica(0, 4, tokens=300),), cleared_at=NOW - 1),
        ("suspect", ""),
    ),
    "health fails, tokens come": (
        serving(owed={"running": 99, "probe_failing": 99}, failing=("/health",)),
        ("slow", ""),
    ),
    "front only, loop beats": (
        serving(still=300, owed={"probe_failing": 300}, replicas=(replica(heartbeat=3),)),
        ("stalled", "frontend_stall"),
    ),
    "front only, asleep": (
        serving(still=300, owed={"probe_failing": 300}, ranks=ranks(0.0)),
        ("stalled", "cold_deadlock"),
    ),
    "it compiles": (serving(moved=ago(tokens=600, log=600, compile=5)), ("busy", "")),
    "paused on purpose": (serving(still=900, waiting="paused"), ("idle", "")),
    "tokens vanished a minute ago": (serving(moved=ago(log=9000), vanished=ago(tokens=61)), ("suspect", "")),
    "tokens and log vanished, GPUs at rest since": (
        serving(moved={}, vanished=ago(tokens=900, log=900), replicas=(), gpus=gpus(0.0, for_seconds=300)),
        ("stalled", "cold_deadlock"),
    ),
    "tokens and log vanished, GPUs at work": (
        serving(moved={}, vanished=ago(tokens=900, log=900), replicas=(), gpus=gpus(0.9, power=0.8)),
        ("busy", ""),
    ),
    "all vanished": (serving(moved={}, vanished=ago(tokens=900, log=900), replicas=()), ("unknown", "")),
    "counters tick as requests end": (
        serving(moved=ago(log=9000), replicas=(replica(1, finished=100),)),
        ("suspect", ""),
    ),
    "only GPUs, at rest": (
        serving(moved={}, replicas=(), gpus=gpus(0.0, for_seconds=300)),
        ("stalled", "cold_deadlock"),
    ),
    "only GPUs, at work": (serving(moved={}, replicas=(), gpus=gpus(0.9, power=0.8)), ("busy", "")),
    "only GPUs, spinning": (serving(moved={}, replicas=(), gpus=gpus(1.0, power=0.2)), ("stalled", "spin_deadlock")),
    "no movement to be seen": (serving(moved={}, replicas=()), ("unknown", "")),
    "not known to be ready": (
        serving(ready=None, still=400, owed={"probe_failing": 400}, limits={"start_without_movement": 600.0}),
        ("suspect", ""),
    ),
}


@pytest.mark.parametrize(("past", "expected"), SERVING.values(), ids=SERVING)
def test_servers_that_owe_something(past, expected):
    """Work is owed: it is judged by what moves, for how long it has not, and what the GPUs say of the wait."""
    assert judged(past) == expected


QUIET = {
    "no request": (serving(owed={}, still=9000), ("idle", "")),
    "no request, asleep": (serving(owed={}, still=9000, ranks=ranks(*[0.0] * 8), gpus=gpus(0.0)), ("idle", "")),
    "no request, at 100 %": (serving(owed={}, still=9000, gpus=gpus(1.0, power=0.2)), ("idle", "")),
    "a token just now": (serving(owed={}, still=3), ("busy", "")),
    "answered": (serving(owed={}, still=9000, pending=None, replicas=(), probes=(probe(),)), ("idle", "")),
    "answered by the web process": (
        serving(owed={}, still=9000, pending=None, replicas=(), probes=(probe(scope="http"),)),
        ("unknown", ""),
    ),
    "log moved": (serving(owed={}, moved=ago(log=30), pending=None, replicas=()), ("busy", "")),
    "nothing known": (serving(owed={}, moved={}, pending=None, replicas=()), ("unknown", "")),
    "loop turns": (serving(owed={}, still=9000, replicas=(replica(heartbeat=2),)), ("idle", "")),
    "loop stopped": (serving(owed={}, still=9000, replicas=(replica(heartbeat=240),)), ("stalled", "loop_stopped")),
    "loop late": (serving(owed={}, still=9000, replicas=(replica(heartbeat=61),)), ("suspect", "")),
    "one rank's loop stopped": (
        serving(owed={}, still=9000, ranks=(*ranks(*[0.0] * 7, beat=NOW - 1), RankPast("b", beat=NOW - 300))),
        ("stalled", "loop_stopped"),
    ),
    "loop stopped, asleep on purpose": (
        serving(owed={}, waiting="sleeping", replicas=(replica(heartbeat=900),)),
        ("idle", ""),
    ),
    "worker node": (serving(owed={}, still=9000, pending=None, replicas=(), server=WORKER), ("idle", "")),
    "worker node at work": (
        serving(owed={}, still=9000, pending=None, replicas=(), server=WORKER, gpus=gpus(0.8, power=0.8)),
        ("busy", ""),
    ),
}


@pytest.mark.parametrize(("past", "expected"), QUIET.values(), ids=QUIET)
def test_servers_that_owe_nothing(past, expected):
    """Nothing is owed: idle, busy for a moment longer, or with a loop that has stopped."""
    assert judged(past) == expected


def rank_that(**fields):
    """Return a server of two ranks, the second of which fares so."""
    return serving(ranks=(RankPast("scheduler_TP0", "TP0"), RankPast("scheduler_TP1", "TP1", **fields)))


def ended(**fields):
    """Return a server that has ended so."""
    return serving(ending=Ending(**fields))


def reported(age, code=79, gpu=3):
    """Return what the kernel told of a broken GPU so many seconds ago."""
    return XidPast(gpu, code, NOW - age, NOW - age)


ILL = XidPast(3, 31, NOW - 300)  # a program's own fault

ENDS = {
    "a GPU is lost": (serving(gpus=GpusPast(Holding(lost=(3,)), lost_since=NOW - 1)), ("dead", "device_fault")),
    "a reset is asked for": (
        serving(gpus=GpusPast(lost_since=NOW - 1, faults=("gpu_reset",))),
        ("dead", "device_fault"),
    ),
    "a critical Xid": (serving(still=300, xids=(reported(300),)), ("dead", "device_fault")),
    "a critical Xid, nothing owed": (serving(owed={}, still=900, xids=(reported(5),)), ("dead", "device_fault")),
    "a critical Xid, tokens of the last seconds": (serving(still=1, xids=(reported(55),)), ("dead", "device_fault")),
    "a critical Xid, and it works on": (serving(still=1, xids=(reported(90),)), ("busy", "")),
    "a critical Xid before the first sight": (
        serving(moved={"log": NOW - 200}, age=200, replicas=(), xids=(reported(900),)),
        ("dead", "device_fault"),
    ),
    "a critical Xid, one replica of two works on": (
        serving(xids=(reported(300),), replicas=(replica(1, tokens=1), replica(1, tokens=300, dp_rank="1"))),
        ("dead", "device_fault"),
    ),
    "a critical Xid, both replicas work on": (
        serving(xids=(reported(300),), replicas=(replica(1, tokens=1), replica(1, tokens=2, dp_rank="1"))),
        ("busy", ""),
    ),
    "an Xid of a program, and it works": (serving(xids=(ILL,)), ("busy", "")),
    "an Xid of a program, and it hangs": (
        serving(still=300, gpus=gpus(0.0), xids=(ILL,)),
        ("stalled", "cold_deadlock"),
    ),
    "gone for 14 s": (ended(gone_since=NOW - 14, orderly=False), ("stopping", "")),
    "gone": (ended(gone_since=NOW - 15, orderly=False), ("dead", "crashed")),
    "gone, no log": (ended(gone_since=NOW - 15), ("unknown", "")),
    "gone in order": (ended(gone_since=NOW - 15, orderly=True), ("stopping", "")),
    "drains": (serving(still=900, phase="stopping", phase_since=NOW - 1800), ("stopping", "")),
    "drains for too long": (serving(phase="stopping", phase_since=NOW - 1801), ("slow", "")),
    "drains and hangs": (serving(still=1700, phase="stopping", phase_since=NOW - 1801), ("stalled", "")),
    "a rank gone for 14 s": (rank_that(missing_since=NOW - 14), ("busy", "")),
    "a rank gone": (rank_that(missing_since=NOW - 15), ("dead", "lost_process")),
    "a rank stopped for 4 min": (rank_that(stopped_since=NOW - 240), ("stalled", "stopped")),
    "a rank stopped for a minute": (rank_that(stopped_since=NOW - 60), ("suspect", "")),
    "the launcher gone": (
        serving(ending=Ending(launcher_gone_since=NOW - 15), gpus=gpus(0.0)),
        ("dead", "orphaned_memory"),
    ),
    "the launcher gone, no memory held": (
        serving(ending=Ending(launcher_gone_since=NOW - 15), gpus=gpus(0.0, memory=0)),
        ("busy", ""),
    ),
    "fewer ranks than flags": (serving(moved={}, ranks=ranks(0, 0, 0)), ("dead", "lost_process")),
    "fewer ranks, nothing owed": (serving(owed={}, moved={}, ranks=ranks(0, 0, 0)), ("suspect", "")),
    "fewer ranks, and it works": (serving(ranks=ranks(0, 0, 0)), ("busy", "")),
    "only configured": (
        a_past(
            server=replace(a_server(), processes=()),
            ready=False,
            phase="launch",
            moved=ago(log=9),
            probes=(probe("refused"),),
        ),
        ("unknown", ""),
    ),
}


@pytest.mark.parametrize(("past", "expected"), ENDS.values(), ids=ENDS)
def test_ends_and_faults(past, expected):
    """What no waiting mends is said at once, or after the grace of 15 s."""
    assert judged(past) == expected


def test_the_order_of_decision():
    """A GPU fault explains a lost rank, which explains a drain that does not end, which explains frozen tokens."""
    everything = serving(
        still=900,
        phase="ready",
        gpus=replace(gpus(0.0), lost_since=NOW - 9, holding=Holding(lost=(1,))),
        ranks=(RankPast("scheduler_TP0", "TP0", missing_since=NOW - 99, stopped_since=None),),
    )
    assert judged(everything) == ("dead", "device_fault")
    assert judged(replace(everything, gpus=gpus(0.0))) == ("dead", "lost_process")
    assert judged(replace(everything, gpus=gpus(0.0), ranks=())) == ("stalled", "cold_deadlock")


def test_one_replica_of_four_hangs():
    """Three replicas that serve hide no fourth that has work and makes no token; its own GPUs tell how it hangs."""
    alive = tuple(replica(1, tokens=1, pending=900, dp_rank=str(n)) for n in range(3))
    past = serving(replicas=(*alive, replica(1, tokens=300, pending=900, dp_rank="3")), gpus=gpus(0.9, power=0.8))
    assert judged(past) == ("suspect", "")
    assert judged(replace(past, parts={"3": gpus(0.0, power=0.1)})) == ("stalled", "cold_deadlock")
    assert "Replica 3 of 4" in judge(past, moment()).reason


def test_since_is_the_last_movement_of_a_stall():
    """In Unix seconds: the moment from which nothing moved, not the one at which that was noticed."""
    assert judge(serving(still=300), moment()).since == UNIX - 300
    assert judge(serving(still=9000, owed={"running": 400}), moment()).since == UNIX - 400


def test_the_sentence_of_a_cold_deadlock():
    """One sentence with the numbers, and the rank that lags behind its peers."""
    past = starting(
        still=720,
        phase="loaded",
        gpus=gpus(0.0, power=0.1),
        ranks=(*ranks(0.0, 0.01, phase="loaded"), RankPast("scheduler_TP2", "TP2", cpu=0.0, phase="loading_weights")),
        marker="load_end",
        marker_rank="TP1",
        probes=(probe("refused"),),
    )
    assert judge(past, moment()).reason == (
        "Weights are loaded (76 GiB on each of 8 GPUs) but nothing has moved for 12 min (limit 5 min): "
        "GPUs 0 % at 10% of their power limit, schedulers asleep, "
        "log without progress since `load_end` on TP1 for 12 min, port 30000 refuses connections, "
        "TP2 lags behind the others."
    )


def test_the_sentence_of_a_spin_under_load():
    """It says what is owed, for how long, and what was seen of each signal."""
    past = serving(still=300, gpus=gpus(1.0, power=0.2), probes=(probe("timeout", latency=25.0),), ranks=ranks(1, 1))
    assert judge(past, moment()).reason == (
        "Requests run for 60 min, but nothing has moved for 5 min (limit 4 min): "
        "GPUs 100 % at 20% of their power limit, schedulers burn 1.0 cores each, log without progress for 5 min, "
        "requests: 1 running, 0 waiting, "
        "/health gives no answer in 25 s."
    )


ALL = frozenset({"log", "gpu_memory", "io", "faults", "compile"})
LONGER = {"start_without_movement": 600.0}


@pytest.mark.parametrize(
    ("past", "said"),
    [
        (starting(still=400, readable=ALL, limits=START_LIMITS), "(limit 5 min)"),
        (starting(still=400, readable=ALL - {"io"}, limits=LONGER), "(limit 10 min, since io cannot be read)"),
        (
            starting(still=400, readable=ALL - {"gpu_memory", "faults"}, limits=LONGER),
            "(limit 10 min, since gpu memory and faults cannot be read)",
        ),
        (starting(still=400, readable=frozenset({"log"}), limits=LONGER), "since 4 signals cannot be read)"),
        (
            starting(still=400, phase="loaded", readable=ALL, limits=LONGER, server=TWO_NODES),
            "(limit 10 min, since other nodes may take longer)",
        ),
        (
            starting(still=400, gpus=gpus(1.0, power=0.9), limits=START_LIMITS),
            "(limit 15 min, since its GPUs may compute)",
        ),
        (
            serving(still=400, gpus=replace(gpus(0.0), worked_at=NOW - 100)),
            "(limit 4 min, its GPUs at rest for 100 s)",
        ),
        (serving(still=3000, gpus=replace(gpus(0.0), worked_at=NOW - 100)), "(limit 15 min)"),
        (serving(still=400, ready=None, limits=LONGER), "(limit 10 min, since it may still be starting)"),
    ],
)
def test_the_limit_of_a_standstill_is_said(past, said):
    """With what makes it another one than usual: what cannot be read, what GPUs do, other nodes."""
    verdict = judge(past, moment())
    assert verdict.state in {"suspect", "stalled"}
    assert f"{said}: " in verdict.reason


def test_the_sentences_of_what_the_kernel_reports():
    """A broken GPU is named with its Xid; what else the kernel told stands with what is seen of a hang."""
    lost = GpusPast(Holding(lost=(3,)), lost_since=NOW - 125)
    assert judge(serving(gpus=lost, still=140, xids=(reported(130), ILL)), moment()).reason == (
        "A GPU fault for 2 min: GPU 3 cannot be reached any more, "
        "the kernel reports Xid 79 of GPU 3 (fell off the bus)."
    )
    assert judge(serving(still=300, xids=(reported(300, 119, 0), reported(200, 999, 1))), moment()).reason == (
        "A GPU fault for 5 min: the kernel reports Xid 119 of GPU 0 (its firmware does not answer), Xid 999 of GPU 1."
    )
    old, hung = XidPast(2, 13, NOW - 950), (BlockedPast("scheduler_TP1", 245.0, NOW - 10),)
    past = serving(still=300, gpus=gpus(0.0), xids=(old, ILL), blocked=hung)
    assert judge(past, moment()).reason.endswith(
        "the kernel reports Xid 31 of GPU 3 (access to memory that is not mapped) 5 min ago, "
        "scheduler_TP1 blocked for 4 min."
    )
    crashed = serving(ending=Ending(gone_since=NOW - 60, orderly=False), still=70, xids=(ILL,))
    assert judge(crashed, moment()).reason == (
        "All its processes went 60 s ago without an orderly end; the kernel reports Xid 31 of GPU 3 "
        "(access to memory that is not mapped) 5 min ago."
    )


def test_the_sentence_of_what_is_missing():
    """An unknown verdict names the signals."""
    past = a_past(missing=("log: not_found", "gpu"))
    assert judge(past, moment()).reason == "The signals that would decide are missing (log: not_found, gpu)."
    assert judge(past, moment()).missing == ("log: not_found", "gpu")


TIMES = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.floats(-1e6, NOW + 1e6))
NUMBERS = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 100))
NUMBERS_ONLY = st.floats(allow_nan=True, allow_infinity=True)
STAMPS = st.dictionaries(
    st.sampled_from(("log", "tokens", "io", "faults", "compile", "gpu_memory")), st.floats(-1e6, 2e5)
)
RANKS = st.builds(
    RankPast, st.sampled_from(("a", "b")), st.sampled_from(("", "TP0", "DP1_TP3")), st.just("scheduler"),
    st.sampled_from(("", "S", "Z", "T")), NUMBERS, st.sampled_from((None, *PHASES)), TIMES, TIMES, TIMES,
)  # fmt: skip
REPLICAS = st.builds(ReplicaPast, st.sampled_from(("0", "1", "x")), NUMBERS, NUMBERS, TIMES, TIMES, TIMES, TIMES)
BYTES = st.one_of(st.none(), st.integers(0, 1 << 40))
HOLDINGS = st.builds(Holding, NUMBERS, NUMBERS, BYTES, BYTES, st.sampled_from((None, True, False)), st.just((1,)))
GPUS = st.builds(GpusPast, HOLDINGS, NUMBERS, TIMES, TIMES, TIMES, TIMES, TIMES, st.just(()), st.booleans())
PASTS = st.builds(
    Past,
    server=st.sampled_from((a_server(), TWO_NODES, WORKER, replace(a_server(), processes=(), gpus=()))),
    first_seen=st.floats(-1e6, 2e5),
    started=st.floats(-1e6, 2e5),
    ready=st.sampled_from((None, True, False)),
    phase=st.sampled_from((None, *PHASES)),
    phase_since=TIMES,
    progress=NUMBERS,
    marker=st.sampled_from(("", "load_end")),
    waiting=st.sampled_from(("", "gated")),
    moved=STAMPS,
    vanished=STAMPS,
    demand_since=st.dictionaries(st.sampled_from(("running", "queued", "probe_failing", "new")), st.floats(-1e6, 2e5)),
    pending=NUMBERS,
    cleared_at=TIMES,
    probes=st.lists(st.builds(probe, st.sampled_from(("ok", "refused", "tls_error"))), max_size=2).map(tuple),
    failing=st.sampled_from(((), ("/health",))),
    ranks=st.lists(RANKS, max_size=3).map(tuple),
    replicas=st.lists(REPLICAS, max_size=3).map(tuple),
    gpus=GPUS,
    parts=st.dictionaries(st.sampled_from(("0", "1")), GPUS),
    xids=st.lists(st.builds(XidPast, st.just(1), st.sampled_from((31, 79, 5)), NUMBERS_ONLY, TIMES), max_size=3).map(
        tuple
    ),
    blocked=st.lists(st.builds(BlockedPast, st.just("a"), NUMBERS_ONLY, NUMBERS_ONLY), max_size=2).map(tuple),
    ending=st.builds(Ending, TIMES, st.sampled_from((None, True, False)), TIMES),
    missing=st.sampled_from(((), ("log: io_error",))),
    limits=st.dictionaries(st.sampled_from(("stalled", "suspect")), st.floats(0, 1e5)),
)


@settings(max_examples=600, deadline=None)
@given(PASTS)
def test_the_judge_never_fails(past):
    """Whatever is known of a server: a verdict and a signature of the closed sets, a sentence, and no future since."""
    verdict = judge(past, Moment(UNIX, NOW, NOW))
    assert verdict.state in VERDICTS
    assert verdict.signature in {"", *SIGNATURES}
    assert verdict.reason.endswith(".")
    assert verdict.since <= UNIX
    assert not math.isnan(verdict.since)


def test_an_hour_is_said_as_hours():
    """Durations are said as a person says them."""
    assert "for 3 h 0 min" in judge(serving(still=3 * HOUR, owed={"running": 3 * HOUR}), moment()).reason


def test_an_answer_of_long_ago_is_told_with_its_age():
    """While another probe is out, the last answer is not told as if it were of now."""
    assert wording.probes(serving(probes=(probe(age=25.0),)), NOW) == "/health answers (25 s ago)"
    assert wording.probes(serving(probes=(probe(age=5.0),)), NOW) == "/health answers"


def test_the_kind_of_a_hang_is_told_before_it_is_called_stalled():
    """At three minutes the verdict is suspect; what it will be is known from the same facts."""
    past = serving(still=180.0, ranks=ranks(0.0, 0.0))
    verdict = judge(past, moment())
    assert (verdict.state, verdict.signature) == ("suspect", "")
    assert foreseen(past, verdict, moment()) == "cold_deadlock"
    assert foreseen(serving(), judge(serving(), moment()), moment()) == ""
