"""An answer of NCCL RAS in JSON: what concerns the server is taken in, bounded and cleaned."""

import json

import pytest

from stallwatch.sources.ras_answer import MOST_COMMUNICATORS, MOST_OPERATIONS, Count, Lost, Who, of_json

WHO = Who({100 + n: f"TP{n}" for n in range(8)}, lambda host: host == "here")


def rank(number, pid=None, host="here", **fields):
    """Return a rank as NCCL tells it."""
    return {"rank": number, "host": host, "pid": 100 + number if pid is None else pid, **fields}


def answer(*groups, version="2.28.7"):
    """Take in an answer with these communicators."""
    return of_json(json.dumps({"nccl_version": version, "communicators": groups}).encode(), WHO)


def group(*ranks, missing=(), name="beef"):
    """Return a communicator as NCCL tells it."""
    return {"hash": name, "size": len(ranks) + len(missing), "ranks": ranks, "missing_ranks": missing}


def test_ranks_are_grouped_by_what_they_launched():
    """The largest group first; a rank that does not name an operation has launched none."""
    counts = {"AllReduce": 9}
    (one,) = answer(group(*(rank(n, collective_counts=counts) for n in range(3)), rank(3))).communicators
    assert one.operations[0].counts == (Count(9, 3, ("TP0", "TP1", "TP2")), Count(0, 1, ("TP3",)))


def test_who_is_lost_or_failed_is_named():
    """By the state that the others see."""
    states = ({"considered_dead": True}, {"unresponsive": True}, {})
    missing = [rank(n + 1, status=state) for n, state in enumerate(states)]
    (one,) = answer(
        group(rank(0, status={"async_error": 6}), rank(4, status={"init_state": 7}), missing=missing)
    ).communicators
    assert one.lost == (Lost("TP1", "dead"), Lost("TP2", "unresponsive"), Lost("TP3", "absent"))
    assert one.failed == ("TP0",)


def test_a_rank_of_another_node_is_named_by_nccl():
    """And a communicator of strangers is only counted."""
    found = answer(group(rank(0), rank(1, host="\x1bthere")), group(rank(0, pid=5)), group(rank(0, host="there")))
    assert found.others == 2
    assert found.communicators[0].operations == ()
    lost = answer(group(rank(0), missing=[rank(1, host="\x1bthere")])).communicators[0].lost
    assert lost == (Lost("rank 1 on ?there", "absent"),)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"communicators": 1}', b"[" * 100_000, b"\xff"])
def test_what_is_no_answer_is_refused(body):
    """In one line, without quoting it."""
    with pytest.raises(ValueError, match=r"^it is not the JSON of NCCL RAS$"):
        of_json(body, WHO)


def test_what_a_stranger_says_is_bounded():
    """Communicators, operations and the length of names."""
    counts = {f"{number}{'x' * 500}": 1 for number in range(99)}
    found = answer(
        *(group(rank(0, collective_counts=counts)) for _ in range(MOST_COMMUNICATORS + 1)), version="\n" * 500
    )
    assert len(found.communicators) == MOST_COMMUNICATORS
    assert len(found.communicators[0].operations) == MOST_OPERATIONS
    assert len(found.communicators[0].operations[0].name) == len(found.version) == 64
