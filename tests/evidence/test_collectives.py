"""Collectives: what is said of two answers of NCCL RAS, and whom it points at."""

import pytest

from ras_server import as_json, as_text, communicator
from stallwatch.evidence.collectives import suspects, told
from stallwatch.sources.ras import Look, RasReading
from stallwatch.sources.ras_answer import Who, of_json
from stallwatch.sources.ras_text import of_text

PIDS = range(100, 108)
WHO = Who({pid: f"TP{number}" for number, pid in enumerate(PIDS)}, lambda host: host == "127.0.0.1")
NO_PROOF = "; its thread answers even while a collective hangs, so that this does not say that they are well"


def counted(*counts, **more):
    """Return a communicator whose ranks have launched AllReduce so often."""
    return communicator(PIDS[: len(counts)], counts, **more)


def reading(*answers):
    """Return a reading of answers 5 s apart; each is a list of communicators, or text."""
    looks = []
    for number, answer in enumerate(answers):
        is_json = not isinstance(answer, bytes)
        taken = of_json(as_json(*answer), WHO) if is_json else of_text(answer, WHO)
        looks.append(Look(100.0 + 5 * number, is_json, taken))
    return RasReading(200.0, "here", tuple(looks))


def test_a_difference_that_does_not_change_names_who_has_launched_fewer():
    """The others wait in a collective that this one has not come to."""
    stands = [counted(*[1204] * 5, 1203, 1204, 1204)]
    found = reading(stands, stands)
    assert told(found) == (
        "NCCL RAS: TP5 has launched 1,203 AllReduce, the others 1,204, and that has not changed in 5 s",
    )
    assert suspects(found) == ("TP5",)


def test_a_difference_that_moves_is_no_sign():
    """Ranks that work are never all at the same operation, whoever is behind."""
    found = reading([counted(*[1204] * 7, 1203)], [counted(*[1304] * 7, 1303)])
    assert told(found) == (
        "NCCL RAS: the ranks differ in how many AllReduce they have launched, and that moves: no sign of a hang",
    )
    assert suspects(found) == ()


def test_one_look_cannot_tell_whether_it_moves():
    """The second one may have failed."""
    found = reading([counted(4, 4, 3)])
    assert told(found) == (
        "NCCL RAS: the ranks differ in how many AllReduce they have launched; asked but once, that says nothing",
    )
    assert suspects(found) == ()


def test_a_difference_that_was_made_up_is_none():
    """Only the first answer had it."""
    found = reading([counted(4, 4, 3)], [counted(4, 4, 4)])
    assert told(found) == (f"NCCL RAS: all 3 ranks answer and have launched the same collectives{NO_PROOF}",)


def test_that_all_answer_is_not_said_to_be_healthy():
    """The thread is one of its own."""
    same = [counted(*[7] * 8)]
    assert told(reading(same, same)) == (
        f"NCCL RAS: all 8 ranks answer and have launched the same collectives{NO_PROOF}",
    )


@pytest.mark.parametrize(
    ("counts", "sentence", "behind"),
    [
        ((4, 3), "TP1 has launched 3 AllReduce, TP0 4", ("TP1",)),
        ((3, 3, 3, 4), "TP3 has launched 4 AllReduce, the others 3", ()),
        ((4, 4, 4, 4, 3, 3), "TP4, TP5 have launched 3 AllReduce, the others 4", ("TP4", "TP5")),
        ((9, 9, 9, 8, 0), "TP3 has launched 8 AllReduce, TP4 has launched 0 AllReduce, the others 9", ("TP3", "TP4")),
    ],
)
def test_groups_of_every_size_are_told(counts, sentence, behind):
    """Where most are behind, the one that is ahead is told and not pointed at."""
    stands = [counted(*counts)]
    assert told(reading(stands, stands)) == (f"NCCL RAS: {sentence}, and that has not changed in 5 s",)
    assert suspects(reading(stands, stands)) == behind


def test_who_is_lost_comes_first():
    """Dead, silent and gone ranks, and those that report an error; of many the number is said."""
    one = counted(7, 7, 6, missing=((3, 103, True), (4, 104, False), (5, 105, False)), failed=(101,))
    found = reading([one], [one])
    assert told(found) == (
        "NCCL RAS: TP3 is dead to the others",
        "NCCL RAS: TP4, TP5 do not answer",
        "NCCL RAS: TP1 reports an error",
        "NCCL RAS: TP2 has launched 6 AllReduce, the others 7, and that has not changed in 5 s",
    )
    assert suspects(found) == ("TP3", "TP4", "TP5", "TP2")
    many = counted(7, missing=[(n, 100 + n, False) for n in range(1, 7)])
    assert told(reading([many], [many]))[0] == "NCCL RAS: 6 ranks do not answer"


def test_a_rank_in_several_communicators_is_told_once():
    """TP5 is missing in each of them."""
    groups = [counted(7, 7, missing=((2, 105, False),), hash=f"0x{n}") for n in range(4)]
    assert told(reading(groups, groups)) == ("NCCL RAS: TP5 does not answer",)
    assert suspects(reading(groups, groups)) == ("TP5",)


def test_no_more_is_told_than_one_reads():
    """A server may have dozens of communicators that wait for the same rank."""
    groups = [counted(4, 4, 3, hash=f"0x{n}") for n in range(40)]
    assert len(told(reading(groups, groups))) == 6


def test_a_process_that_has_no_communicator_yet_is_said_to_have_none():
    """It begins."""
    assert told(reading([], [])) == ("NCCL RAS: it knows of no communicator yet",)


def test_text_is_told_alike():
    """An older NCCL names the few and counts the many."""
    stands = as_text(
        "",
        "#0-0 (00000000deadbeef) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
        "  7 ranks have launched up to operation 1204\n"
        "  Rank 5 has launched up to operation 1203 -- GPU 5 managed by process 105 on node 127.0.0.1\n\n",
    )
    assert told(reading(stands, stands)) == (
        "NCCL RAS: TP5 has launched 1,203 AllReduce, the others 1,204, and that has not changed in 5 s",
    )
    assert told(reading(as_text(), as_text())) == (f"NCCL RAS: nothing stands out{NO_PROOF}",)
