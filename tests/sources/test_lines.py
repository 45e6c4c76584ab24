"""What is told of a server's last lines, and that nothing else of its log is."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile_parts import QUICK, TABLES
from stallwatch.child import fields_of
from stallwatch.lanes import decoder
from stallwatch.logs import markers
from stallwatch.snapshot import Launch, Server
from stallwatch.sources.lines import MOST_ERRORS, MOST_PROGRESS, LinesReading, reader, target

LOGS = Path(__file__).parents[1] / "data" / "logs"
NOTHING = frozenset()
STAMP = "[2026-03-04 10:00:00 TP3] "
DECODE = "Decode batch, #running-req: {}, #token: 5, token usage: 0.01, gen throughput (token/s): 1.50, #queue-req: 0"
WATCHDOG = "Watchdog caught collective operation timeout"
WORK = "SeqNum=7, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000"
CANARY = "Canary4711Bird"


THROUGHPUT = "prompt throughput: 5.2 tokens/s, Avg generation throughput: 4.8 tokens/s"
GREEK = "αβγδ"
STRANGE = st.text(GREEK + " \t0159.,:=()[]#_%-/\n\r\0\x1b", max_size=12)
BEGINS = st.sampled_from(("] ", STAMP, "INFO:     ", "Error: ", "", "(Worker_TP0 pid="))
TEXTS = st.sampled_from(
    [text.replace("*", f"7{GREEK}") for table in TABLES for marker in table for text in marker.texts]
)
BATCHES = st.sampled_from(("Decode batch, #running-req: 1", "Prefill batch, #new-seq: 1", f"Avg {THROUGHPUT}"))
MEASURES = st.sampled_from(("avail mem=", "rank=", "OpType=", "cuda graph: ", " GB", "| 1/4 [00:00<00:03,  1.00it/s]"))
LINES = st.tuples(STRANGE, BEGINS, TEXTS | BATCHES, STRANGE, MEASURES, STRANGE).map("".join)


def read(path, engine="sglang", root="", skip=NOTHING):
    """Read the last lines of a log, as they come from a worker."""
    server = Server("s", engine, Launch(), log_path=str(path), log_root=root)
    reading, failures = reader({}, lambda _: None)([target(server)], skip)
    sent = json.dumps({"reading": reading, "failures": failures}, default=fields_of).encode()
    assert CANARY.lower().encode() not in sent.lower()
    return decoder("lines", LinesReading)(sent)


@pytest.fixture
def told(tmp_path):
    """Return what is told of these lines."""

    def of(*lines, engine="sglang", end="\n"):
        path = tmp_path / "server.log"
        path.write_text("\n".join(lines) + end)
        return read(path, engine)[0].logs[0].lines

    return of


def test_a_server_without_a_log_is_not_asked_about():
    """There is nothing to read then."""
    assert target(Server("s", "sglang", Launch())) is None


def test_the_last_lines_of_a_hang_tell_what_came_last():
    """Progress and errors in their order, each with its rank, time, words and measures."""
    lines = read(LOGS / "serving_hang_health_failed_0.5.6_tp2.log")[0].logs[0].lines
    assert [line.word for line in lines[-4:]] == ["decode", *["health_check_failed"] * 3]
    decode, failed = lines[-4:-2]
    assert (decode.rank, decode.time, decode.kind) == ("TP0", "2026-03-04 10:01:27", "progress")
    assert decode.text.startswith("Decode batch, #running-req: 5, #token: ")
    assert "gen throughput (token/s): 417.50" in decode.text
    assert (failed.kind, failed.text) == ("error", "Health check failed")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (STAMP + "Load weight begin. avail mem=138.40 GB", "Load weight begin, avail mem=138.40 GB"),
        (STAMP + "Capture target decode CUDA graph begin. This can", "Capture target decode CUDA graph begin"),
        (STAMP + "Capture cuda graph bs [1, 2, 4]", "Capture cuda graph bs"),
        (STAMP + "Rank 3 scheduler is dead. Please check", "Rank 3 scheduler is dead"),
        (
            STAMP + "Scheduler watchdog timeout (self.watchdog_timeout=300, s",
            "Scheduler watchdog timeout, watchdog_timeout=300",
        ),
        (f"[rank3]:[E304 10:00:00 x.cpp:632] {WATCHDOG}: WorkNCCL({WORK}) ran for 600054 ms", f"{WATCHDOG}, {WORK}"),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "CUDA out of memory",
        ),
    ],
)
def test_a_line_is_put_together_anew(told, line, text):
    """It has the words of the tables and the numbers behind names that are known."""
    (found,) = told(line)
    assert found.text == text


def test_of_a_bar_only_how_far_it_got_is_told(told):
    """A bar that rises is one line, also where it is the unfinished end of a log."""
    bars = [f"Loading {CANARY}: {n * 25}% Completed | {n}/4 [00:0{n}<00:03,  1.00it/s]" for n in range(1, 4)]
    (bar,) = told(*bars, end="")
    assert (bar.word, bar.text, bar.ratio) == ("loading", "Loading", 0.75)


def canaries():
    """Yield every text of every table with words of a stranger before, in and behind it."""
    tables = {"sglang": (*markers.SGLANG, *markers.TORCH), "vllm": (*markers.VLLM, *markers.TORCH)}
    for engine, table in tables.items():
        for text in (text for marker in table for text in marker.texts):
            line = text.replace("**", CANARY).replace("*", CANARY)
            yield engine, f"[2026-03-04 10:00:00 TP0] {CANARY}] {line}{CANARY} rank={CANARY} timeout: {CANARY}7"
    for text in (text for marker in markers.EXCEPTIONS for text in marker.texts):
        yield "sglang", f"{CANARY}Error: {text.replace('*', CANARY)}: {CANARY}"
    for text in (text for marker in markers.UVICORN for text in marker.texts):
        yield "sglang", f"{CANARY}:     {text} {CANARY}"
    for text in (text for marker in markers.BARS for text in marker.texts):
        yield "sglang", f"{CANARY} {text} {CANARY}: 25% Completed | 1/4 [00:00<00:03,  1.00it/s] {CANARY}"
    yield "sglang", STAMP + DECODE.format(CANARY) + f", {CANARY}: 5"
    yield "sglang", STAMP + DECODE.format("1") + f"{CANARY}"
    yield "sglang", STAMP + f"Receive: obj=GenerateReqInput(text='] Load weight end {CANARY}')"
    yield "vllm", f"INFO 11-29 17:15:05 [x.py:1] Received request {CANARY}: prompt: '] Model loading took {CANARY}'"
    yield "vllm", f"INFO 11-29 17:15:05 [x.py:1] {CANARY} Avg {THROUGHPUT}, Running: {CANARY}"


def test_no_word_of_a_stranger_gets_out_with_any_line(told):
    """What stands before, in or behind the words of the tables stays in the log; `read` looks for it."""
    words = [told(line, engine=engine) for engine, line in canaries()]
    assert sum(bool(found) for found in words) > 100


def test_no_letter_of_a_stranger_gets_out_however_lines_are_mixed(told):
    """Greek letters are in none of the tables; whatever stands around them, none is in what is told."""
    seen = []

    @QUICK
    @given(st.sampled_from(("sglang", "vllm", "other")), st.lists(LINES, min_size=1))
    def check(engine, written):
        lines = told(*written, engine=engine)
        assert not set(repr(lines)) & set(GREEK)
        assert all(len(line.text) <= 300 and line.text.isprintable() for line in lines)
        seen.extend(lines)

    check()
    assert len(seen) > 50


def test_other_lines_are_not_told(told):
    """Access lines, requests and whatever else is in a log are none of this."""
    assert told(f'INFO:     127.0.0.1:5 - "GET /x?prompt={CANARY} HTTP/1.1" 200 OK', CANARY, f"{STAMP}{CANARY}") == ()


def test_many_batches_push_no_error_out(told):
    """Errors and progress have room of their own, and stay in order."""
    error = STAMP + "Health check failed. Server couldn't"
    lines = told(*[error] * (MOST_ERRORS + 5), *(STAMP + DECODE.format(n) for n in range(100)), error)
    assert [line.kind for line in lines] == ["error"] * (MOST_ERRORS - 1) + ["progress"] * MOST_PROGRESS + ["error"]
    assert "#running-req: 99," in lines[-2].text


def test_only_the_end_of_a_long_log_is_read(tmp_path):
    """Of gigabytes only the last 8 MiB, and the line that is cut there is left out."""
    path = tmp_path / "server.log"
    with path.open("wb") as file:
        file.truncate(3 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + (STAMP + DECODE.format(1)).encode() + b"\n")
    (log,) = read(path)[0].logs
    assert (log.size_bytes > 3 << 30, log.read_bytes) == (True, 8 << 20)
    assert [line.word for line in log.lines] == ["decode"]


def test_a_log_of_tiny_lines_takes_no_time(tmp_path):
    """Whoever writes it chooses how long its lines are."""
    path = tmp_path / "server.log"
    path.write_bytes(b"x\n" * (4 << 20))
    assert read(path)[0].logs[0].lines == ()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "not_found"),
        (lambda path: path.mkdir(), "is_a_directory"),
        (os.mkfifo, "not_a_regular_file"),
        (lambda path: path.symlink_to("/etc/passwd"), "symbolic_link"),
    ],
)
def test_what_is_no_log_is_a_failure(tmp_path, make, reason):
    """As with the log collector; a link in the place of a log that was found at a process is not followed."""
    path = tmp_path / "server.log"
    make(path)
    reading, failures = read(path, root="/")
    assert reading.logs == ()
    assert [(failure.reason, failure.server) for failure in failures] == [(reason, "s")]


def test_a_log_in_quarantine_is_not_touched(tmp_path):
    """What hung before is named and left alone."""
    path = tmp_path / "server.log"
    path.write_text(STAMP + DECODE.format(1) + "\n")
    reading, failures = read(path, skip=frozenset({f"log {path}"}))
    assert (reading.logs, failures[0].reason) == ((), "quarantined")
