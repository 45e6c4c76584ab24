"""What each source says in a summary, and that it says nothing where it gave nothing."""

import msgspec
import pytest

from readings import NAME
from stallwatch.evidence.gathering import SOURCES
from stallwatch.evidence.passages import MOST_LINES, TELLERS, passages
from stallwatch.sources import ras, stacks
from stallwatch.sources.descriptors import DescriptorsReading, ProcessDescriptors, TcpSocket
from stallwatch.sources.environment import Debugging, EnvironmentReading, ProcessEnvironment
from stallwatch.sources.threads import ProcessThreads, Thread, ThreadsReading

PLAIN = Debugging(None, False, False, False, True)


def passage_of(name, reading):
    """Return the last passage that a reading makes, as it comes from a file."""
    (*_, last) = passages({name: msgspec.json.decode(msgspec.json.encode(reading))})
    return last


def a_process(rank, *threads, **fields):
    """Return a rank with these threads; the first is its main thread."""
    who = {"server": NAME, "process": f"scheduler_{rank}", "rank": rank, "pid": threads[0].tid, "descendant": False}
    return ProcessThreads(**(who | fields), threads=threads)


def a_thread(tid, manner, cpu=0.0):
    """Return a thread that waits in a lock."""
    return Thread(tid, "python", "S", manner, 1.0, cpu, 0, 0, "futex_do_wait", 202, "futex", "", None)


def test_all_that_is_gathered_is_told():
    """There is a teller for each source."""
    assert set(TELLERS) == {*(source.name for source in SOURCES), stacks.NAME, ras.NAME}


def test_sources_of_another_version_are_refused_whole():
    """So that whoever shows the bundle falls back to what its writer said."""
    with pytest.raises(msgspec.ValidationError):
        list(passages({"threads": {"at": 1.0, "processes": "none"}}))
    assert list(passages({"unknown": {}})) == []


@pytest.mark.parametrize("name", [source.name for source in SOURCES])
def test_a_source_that_gave_nothing_says_nothing(name):
    """No title without text."""
    empty = next(source.reading for source in SOURCES if source.name == name)(1.0)
    assert list(passages({name: msgspec.to_builtins(empty)})) == []


def test_the_main_thread_of_each_rank_is_told_and_the_others_are_counted():
    """By what they did; those that were seen but once are named so."""
    first = a_process("TP0", a_thread(7, "sleeps"), a_thread(8, "spins", 1.0), a_thread(9, "sleeps"), a_thread(10, ""))
    told = passage_of("threads", ThreadsReading(2.0, seconds=0.7, processes=(first,)))
    line = "TP0 (pid 7): S sleeps, 0 % CPU, in futex, futex_do_wait; others: 1 spins, 1 sleeps, 1 seen but once"
    assert (told.title, told.lines) == ("Threads", (line,))


def test_of_a_thousand_ranks_only_some_are_told():
    """The files hold the others."""
    many = tuple(a_process(f"TP{number}", a_thread(number, "sleeps")) for number in range(1, 1001))
    assert len(passage_of("threads", ThreadsReading(2.0, processes=many)).lines) == MOST_LINES


def test_sockets_in_which_something_waits_are_told():
    """Each with what waits in it."""
    sockets = (
        TcpSocket("listen", "127.0.0.1:30000", "0.0.0.0:0", 5, 0),
        TcpSocket("established", "127.0.0.1:30000", "127.0.0.1:4", 0, 0),
    )
    states = {"listen": 1, "established": 1}
    held = ProcessDescriptors(NAME, "launcher", "", 7, {"socket": 2}, {}, states, sockets, 0, 0)
    told = passage_of("descriptors", DescriptorsReading(1.0, (held,)))
    assert told.lines == (
        "launcher: 2 socket; TCP: 1 listen, 1 established",
        "  listen 127.0.0.1:30000 0.0.0.0:0: 5 not accepted, 0 bytes unsent",
    )


def test_what_all_ranks_were_started_with_is_told_once():
    """And of each only what is its own."""
    each = tuple(
        ProcessEnvironment(
            NAME, f"scheduler_TP{n}", f"TP{n}", 7, "", {"NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": n}, PLAIN
        )
        for n in ("0", "1")
    )
    told = passage_of("environment", EnvironmentReading(1.0, processes=each))
    assert told.lines == ("NCCL_DEBUG=INFO", "TP0: CUDA_VISIBLE_DEVICES=0", "TP1: CUDA_VISIBLE_DEVICES=1")
