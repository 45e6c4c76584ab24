"""Tests of the parser of metrics pages."""

import time

import pytest

from engine_pages import page, sample
from stallwatch.engines import samples
from stallwatch.engines.samples import Sample, pattern_of, samples_of

PATTERN = pattern_of("sglang", ("num_running_reqs", "num_running", "tokens_total"))


def parsed(*lines):
    """Parse a page of these lines."""
    return samples_of(page(*lines), PATTERN)


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ("sglang:num_running_reqs 3", {}, 3.0),
        ("sglang_num_running_reqs 3.5e2", {}, 350.0),
        ("sglang:num_running_reqs\t3", {}, 3.0),
        ("sglang:num_running_reqs{} 3", {}, 3.0),
        ('sglang:num_running_reqs{a="1"} 3 1700000000000', {"a": "1"}, 3.0),
        ('sglang:num_running_reqs{a="1",} 3', {"a": "1"}, 3.0),
        ('sglang:num_running_reqs { a = "1" , b = "2" } 3', {"a": "1", "b": "2"}, 3.0),
        (r'sglang:num_running_reqs{a="x\"y\\z\nw\q"} 3', {"a": 'x"y\\z\nw\\q'}, 3.0),
        ('sglang:num_running_reqs{a="b} 9 {,=",b=""} 3', {"a": "b} 9 {,=", "b": ""}, 3.0),
        ('sglang:num_running_reqs{a="é"} 3', {"a": "é"}, 3.0),
    ],
)
def test_a_sample_is_parsed_in_every_way_to_write_it(line, labels, value):
    """Escapes, spaces, timestamps and both prefixes are understood."""
    assert parsed(line) == [Sample("num_running_reqs", labels, value)]


@pytest.mark.parametrize(
    "line",
    [
        "# HELP sglang:num_running_reqs The number.",
        "# sglang:num_running_reqs 1",
        "sglang:num_running_reqs_offline_batch 1",
        "sglang:num_running_request 1",
        "other_sglang:num_running_reqs 1",
        "vllm:num_running_reqs 1",
        "sglang:num_running_reqs",
    ],
)
def test_other_lines_are_not_taken(line):
    """A comment, a longer name and a name of another engine are no samples of these names."""
    assert parsed(line) == []


@pytest.mark.parametrize(
    "rest",
    [
        "{",
        '{a="1" 2',
        '{a="1',
        '{a="1}2',
        "{a=1} 2",
        '{a="1"b="2"} 2',
        "{} ",
        " ",
        " one",
        " NaN",
        " +Inf",
        " -1",
        " 1e300",
        '{a="' + "x" * samples.LONGEST_LINE + '"} 1',
    ],
)
def test_a_broken_sample_is_left_out(rest):
    """What cannot be parsed, or is no number that counts something, costs nobody else anything."""
    assert parsed("sglang:num_running_reqs" + rest, "sglang:tokens_total 4") == [Sample("tokens_total", {}, 4.0)]
    with pytest.raises(ValueError, match="no sample can be parsed"):
        parsed("sglang:num_running_reqs" + rest)


def test_of_two_samples_with_the_same_labels_the_later_counts():
    """The order of the labels does not make another sample."""
    lines = (sample("sglang:tokens_total", 1, a="x", b="y"), sample("sglang:tokens_total", 2, b="y", a="x"))
    assert [found.value for found in parsed(*lines)] == [2.0]


def test_bytes_that_are_no_text_are_survived():
    """A label in another encoding is read with replacements, and garbage around it is skipped."""
    found = samples_of(b'\xff\x00\n\nsglang:tokens_total{a="\xff"} 1\r\n\x80', PATTERN)
    assert found == [Sample("tokens_total", {"a": "\N{REPLACEMENT CHARACTER}"}, 1.0)]


def test_too_many_samples_are_refused():
    """A page of more samples than any engine has is no page of an engine."""
    lines = [sample("sglang:tokens_total", 1, a=number) for number in range(samples.MOST_SAMPLES + 1)]
    assert len(parsed(*lines[:-1])) == samples.MOST_SAMPLES
    with pytest.raises(ValueError, match="too many"):
        parsed(*lines)


def test_a_page_of_histograms_is_passed_over():
    """Of 5,000 lines those few are found that were asked for; what it takes is printed."""
    buckets = [
        sample("sglang:time_to_first_token_seconds_bucket", 9, model_name="m", le=number, tp_rank=0)
        for number in range(4990)
    ]
    wanted = [sample("sglang:tokens_total", number, tp_rank=number) for number in range(10)]
    text = page(*buckets[:2000], *wanted, *buckets[2000:])
    began = time.perf_counter()
    found = samples_of(text, PATTERN)
    print(f"5,000 lines: {(time.perf_counter() - began) * 1000:.2f} ms")
    assert found == [Sample("tokens_total", {"tp_rank": str(number)}, float(number)) for number in range(10)]


@pytest.mark.parametrize("line", [b'sglang:tokens_total{a="\\', b'sglang:tokens_total{a="1",', b"sglang:tokens_total{"])
@pytest.mark.parametrize(("end", "times"), [(b"", 200_000), (b"\n", 15_000)])
def test_long_pages_of_garbage_end(line, end, times):
    """No text makes the parser go back and forth for long, with or without line breaks."""
    with pytest.raises(ValueError, match="no sample"):
        samples_of((line + end) * times, PATTERN)
