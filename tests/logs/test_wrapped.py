"""Logs as container runtimes write them give the lines that the server wrote."""

import json
import random
import string

import pytest

from stallwatch.logs.tail import Lines, Tail
from stallwatch.logs.wrapped import LONGEST_JOINED, LONGEST_WRAPPED

BAR = b"Loading shards:  25% Completed | 1/4 [00:00<00:00,  4.99it/s]"
WRITTEN = (
    (b"stderr", b"[2026-01-01 00:00:01 TP0] Load weight begin."),
    (b"stdout", b'INFO: 127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK'),
    (b"stderr", b"\x1b[32mgreen\x1b[0m and a \\ backslash, \\n no newline"),
    (b"stderr", b"10%|x|\r20%|y|\r" + BAR),
    (b"stdout", "weights: ▓▓ 100 % \U0001f600".encode()),
    (b"stdout", b""),
    (b"stderr", b'{"log":"an object of its own"}'),
    (b"stderr", b"last"),
)
LINES = (
    b"[2026-01-01 00:00:01 TP0] Load weight begin.",
    b'INFO: 127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK',
    b"green and a \\ backslash, \\n no newline",
    b"10%|x|",
    b"20%|y|",
    BAR,
    "weights: ▓▓ 100 % \U0001f600".encode(),
    b'{"log":"an object of its own"}',
    b"last",
)
CLOCK = b"2026-01-01T00:00:00.123456789Z"


def json_part(stream, text):
    """Write a part as Docker does: angle brackets are escaped, and so is all that is no ASCII here."""
    entry = {"log": text.decode(), "stream": stream.decode(), "time": CLOCK.decode()}
    return json.dumps(entry, separators=(",", ":")).replace("<", "\\u003c").encode() + b"\n"


def in_json(stream, text, longest=None):
    """Write a line as Docker does, in parts where it is too long."""
    characters, longest = text.decode() + "\n", longest or len(text) + 1
    parts = [characters[at : at + longest] for at in range(0, len(characters), longest)]
    return [json_part(stream, part.encode()) for part in parts]


def in_cri(stream, text, longest=None, clock=CLOCK):
    """Write a line as the CRI has it, in parts where it is too long."""
    longest = longest or len(text) + 1
    parts = [text[at : at + longest] for at in range(0, len(text), longest)] or [b""]
    tags = [b"P"] * (len(parts) - 1) + [b"F"]
    return [b"%s %s %s %s\n" % (clock, stream, tag, part) for tag, part in zip(tags, parts, strict=True)]


FORMS = pytest.mark.parametrize("form", [in_json, in_cri])


def cut(data, size=1 << 20):
    """Return the lines of a file that comes in pieces of this size."""
    lines = Lines()
    return b"".join(lines.cut(data[at : at + size]) for at in range(0, len(data), size)).splitlines()


@FORMS
@pytest.mark.parametrize("size", [1, 2, 7, 64, 79, 80, 81, 1000, 1 << 20])
def test_lines_are_what_was_written_however_the_file_is_cut(form, size):
    """Pieces of any size give the same lines."""
    data = b"".join(part for stream, text in WRITTEN for part in form(stream, text))
    assert cut(data, size) == list(LINES)


@FORMS
def test_parts_of_one_line_are_joined_each_stream_by_itself(form):
    """The other stream writes in between."""
    error, out = b"[TP0] " + b"x" * 40_000 + b" Decode batch", b"access " * 4000
    parts = form(b"stderr", error, 16_384), form(b"stdout", out, 16_384)
    assert [len(some) for some in parts] == [3, 2]
    first, second = parts
    data = b"".join((first[0], second[0], first[1], second[1], first[2], *form(b"stderr", b"next")))
    assert cut(data) == [out, error, b"next"]


@pytest.mark.parametrize("clock", [b"2026-01-01T00:00:00Z", b"2026-01-01T01:00:00.5+01:00"])
def test_clocks_of_other_zones_and_tags_beside_the_first_are_known(clock):
    """Podman writes local time, and tags may be added behind a colon."""
    assert cut(b"".join(in_cri(b"stdout", b"hello", clock=clock))) == [b"hello"]
    assert cut(clock + b" stdout F:more:tags hello\n" + clock + b" stdout F\n" + clock + b" stderr F a  b\n") == [
        b"hello",
        b"a  b",
    ]


def test_attributes_between_the_fields_do_no_harm():
    """They are written where labels are asked for; the time comes after them."""
    line = b'{"log":"hello\\n","stream":"stderr","attrs":{"tag":"x"},"time":"2026-01-01T00:00:00Z"}\n'
    assert cut(line) == [b"hello"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"log":"no end',
        b'{"log":"no stream\\n"}',
        b'{"log":7,"stream":"stderr"}',
        b'{"log":"x\\n","stream":"elsewhere"}',
        b"2026-01-01T00:00:00Z stdout",
        b"2026-01-01T00:00:00Z stdout X text",
        b"2026-01-01 00:00:00 stdout F text",
        b"stderr F text",
    ],
)
@FORMS
def test_a_line_that_is_not_of_the_form_is_left_as_it_is(form, line):
    """Be it the first or between others: a machine that lost its power leaves such."""
    around = form(b"stderr", b"before"), form(b"stderr", b"after")
    assert cut(line + b"\n") == [line]
    assert cut(b"".join((*around[0], line, b"\n", *around[1]))) == [b"before", line, b"after"]


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (rb"lone \ud83d half\n", b"lone ? half"),
        (rb"no \x escape\n", rb"no \x escape\n"),
        (b"bad \xff byte \\u0041\\n", "bad \ufffd byte A".encode()),
        (rb"nul \u0000 in it\n", b"nul \x00 in it"),
    ],
)
def test_text_that_is_no_json_gives_a_line_all_the_same(escaped, text):
    """Nothing that stands in a file may end the look at it."""
    data = b'{"log":"' + escaped + b'","stream":"stderr","time":"x"}\n' + json_part(b"stderr", b"after\n")
    assert cut(data)[-1].endswith(b"after")
    assert cut(data)[0].startswith(text)


@FORMS
def test_memory_stays_flat_whatever_comes(form):
    """A line without an end, parts without an end, and a form without a newline."""
    lines = Lines()
    for part in form(b"stderr", b"y" * (3 * LONGEST_JOINED), 16_384)[:-1] * 4:
        assert lines.cut(part) == b""
    assert sum(map(len, lines._joiner._parts.values())) <= LONGEST_JOINED
    start = form(b"stderr", b"z" * 100)[0].rstrip(b'\n"}')
    for _ in range(2 * LONGEST_WRAPPED // 4096):
        lines.cut(start[:-10] + b"z" * 4096)
        start = b"z" * 10
    assert len(lines._rest) <= LONGEST_WRAPPED
    whole = b"".join(form(b"stdout", b"next"))
    assert lines.cut(b"\n" + whole).splitlines()[-1] == b"next"


@FORMS
def test_a_long_file_is_begun_in_its_middle(form, tmp_path, monkeypatch):
    """The first line that is whole tells the form, also where progress bars stand in one line."""
    monkeypatch.setattr("stallwatch.logs.tail.HISTORY", 1000)
    path = tmp_path / "0.log"
    bars = b"".join(form(b"stderr", b"\r".join(b"%d%%|" % number for number in range(30))))
    path.write_bytes(bars * 20 + b"".join(form(b"stderr", b"ready")))
    tail = Tail(str(path))
    try:
        found = b"".join(tail.look()).splitlines()
    finally:
        tail.close()
    assert found[-1] == b"ready"
    assert not [line for line in found if b"stderr" in line]


@FORMS
def test_a_log_of_a_kubelet_is_followed_over_its_links_and_rotations(form, tmp_path):
    """A part before a rotation and one after it are one line."""
    pods, containers = tmp_path / "pods" / "ns_pod_uid" / "sglang", tmp_path / "containers"
    pods.mkdir(parents=True)
    containers.mkdir()
    log, link = pods / "0.log", containers / "pod_ns_sglang-c0ffee.log"
    link.symlink_to(log)
    first, second, third = form(b"stderr", b"a" * 30, 11)
    log.write_bytes(b"".join(form(b"stderr", b"one")) + first)
    tail = Tail(str(link))
    try:
        assert b"".join(tail.look()) == b"one\n"
        log.rename(pods / "0.log.20260101-000000")
        log.write_bytes(second)
        assert b"".join(tail.look()) == b""
        log.rename(pods / "0.log.20260101-000001")
        log.write_bytes(third + b"".join(form(b"stdout", b"two")))
        assert b"".join(tail.look()) == b"a" * 30 + b"\ntwo\n"
        assert tail.rotations == 2
    finally:
        tail.close()


@FORMS
def test_any_text_comes_through(form):
    """As many lines of any characters as there are, in parts of any length."""
    chance = random.Random(7)
    letters = string.printable.translate({ord(end): None for end in "\r\n\x0b\x0c"}) + "äß\u2588\U0001f600"
    texts = ["".join(chance.choices(letters, k=chance.randrange(1, 200))).encode() for _ in range(300)]
    parts = [
        part for text in texts for part in form(b"stderr", text, None if form is in_cri else chance.randrange(5, 90))
    ]
    assert cut(b"".join(parts), 97) == texts
