"""NCCL RAS of an older NCCL: what is read from text that was written for people."""

import pytest

from ras_server import as_text
from stallwatch.sources.ras_answer import Count, Lost, Who
from stallwatch.sources.ras_text import of_text

WHO = Who({100 + n: f"TP{n}" for n in range(8)}, lambda host: host in ("127.0.0.1", "::1"))
MISMATCH = """#0-0 (00000000deadbeef) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 1204
  Rank 5 has launched up to operation 1203 -- GPU 5 managed by process 105 on node 127.0.0.1

#0-1 (00000000deadbee0) MISMATCH
  Communicator ranks have different Broadcast operation counts
  6 ranks have launched up to operation 9
  2 ranks have not launched any operations
  Rank 1 -- GPU 1 managed by process 101 on node 127.0.0.1
  Rank 2 -- GPU 2 managed by process 555 on node 10.0.0.2

#0-2 (000000000000beef) MISMATCH
  Communicator ranks have different status
  Rank 1 has status ABORT -- GPU 1 managed by process 777 on node 127.0.0.1

"""
LOST = """INCOMPLETE
  Missing communicator data from 1 job process
  Process 103 on node 127.0.0.1 managing GPU 3

DEAD
  2 job processes are considered dead (unreachable via the RAS network)
  Process 104 on node 127.0.0.1 managing GPU 4
  Process 104 on node 10.0.0.2 managing GPU 4

#0-0 (00000000deadbeef) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 3 -- GPU 3 managed by process 103 on node 127.0.0.1

#0-0 (00000000deadbeef) ERROR
  Asynchronous error on 1 rank
  Rank 2 reported ncclRemoteError -- GPU 2 managed by process 102 on node 127.0.0.1

"""


def test_what_stands_out_is_read():
    """The few are named, the many counted, and a communicator of which no rank is ours is only counted."""
    answer = of_text(as_text(LOST, MISMATCH), WHO)
    assert (answer.version, answer.others) == ("2.27.7", 1)
    assert answer.lost == (Lost("TP3", "unresponsive"), Lost("TP4", "dead"))
    first, second = answer.communicators
    assert first.operations[0].counts == (Count(1204, 7, ()), Count(1203, 1, ("TP5",)))
    assert (first.lost, first.failed) == ((Lost("TP3", "unresponsive"),), ("TP2",))
    assert second.operations[0].counts == (Count(9, 6, ()), Count(0, 2, ("TP1", "rank 2 on 10.0.0.2")))


def test_where_all_agree_nothing_is_named():
    """So that it may be this server or another."""
    answer = of_text(as_text(), WHO)
    assert (answer.communicators, answer.lost, answer.others) == ((), (), 0)


def test_a_telnet_end_of_line_is_one():
    """Some program in between may have changed it."""
    answer = of_text(as_text(LOST, MISMATCH).replace(b"\n", b"\r\n"), WHO)
    assert answer == of_text(as_text(LOST, MISMATCH), WHO)


@pytest.mark.parametrize("body", [b"", b"hello\n", b"\xff" * 100, b"x" * 1000000, b"NCCL version 2.27.7"])
def test_text_of_a_stranger_is_none(body):
    """It does not begin as NCCL's does."""
    with pytest.raises(ValueError, match="not the text of NCCL RAS"):
        of_text(body, WHO)


def test_a_flood_is_cut():
    """However many ranks and communicators it names, and however long a line is."""
    managed = "GPU 5 managed by process 105 on node ::1"
    ranks = "".join(f"  Rank {n} has launched up to operation {n} -- {managed}\n" for n in range(9999))
    groups = "".join(f"#0-{n} ({n:016x}) MISMATCH\n  Rank 1 -- {managed}\n" for n in range(999))
    head = "#1-0 (00000000deadbeef) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
    communicators = of_text(as_text("", head + ranks + "x" * 99999 + "\n" + groups), WHO).communicators
    assert (len(communicators), len(communicators[0].operations[0].counts)) == (256, 2048)
