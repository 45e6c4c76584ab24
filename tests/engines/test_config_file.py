"""Flags are read from the file of a stranger, and nothing is built from it."""

import pytest

from stallwatch.engines.config_file import flags_in


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("tp_size: 8\nmodel-path: /m", ["--tp-size=8", "--model-path=/m"]),
        ("a: true\nb: 'true'\nc: no\nd:\ne: ~", ["--a", "--b=true"]),
        ("a: [x, y]\nb: []\nc: {d: e}\nf: [[g]]", ["--a=x"]),
        ("a: &one 1\nb: *one", ["--a=1", "--b=1"]),
        ("? [a]\n: b\n? {c: d}\n: e\nf: g", ["--f=g"]),
        ("a: !!python/object:os.system {}\nb: !!python/name:os.system x\nc: 2024-99-99", ["--b=x", "--c=2024-99-99"]),
        ("a: &loop [*loop]\nb: 1", ["--b=1"]),
        (f"{'k' * 500}: 1", [f"--{'k' * 100}=1"]),
    ],
)
def test_values_are_taken_as_they_are_written(text, flags):
    """Plain ones and the first of a list; all else is passed over."""
    assert flags_in(text) == flags


@pytest.mark.parametrize("text", ["", "secret", "- secret", "secret: [", "*secret : 1", "\0secret", "[" * 60_000])
def test_an_error_does_not_quote_the_file(text):
    """It may hold keys."""
    with pytest.raises(ValueError, match=r".") as wrong:
        flags_in(text)
    assert "secret" not in str(wrong.value)
    assert wrong.value.__suppress_context__ or wrong.value.__context__ is None


@pytest.mark.parametrize(
    "text",
    [
        "port: " + "1:" * 30_000 + "1",
        "port: " + "9" * 60_000,
        "a0: &a0\n  k: v\n" + "".join(f"a{n}: &a{n}\n  <<: [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 1000)),
        "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 1000)),
        f"a: &a {'x' * 30_000}\n" + "b: *a\n" * 5000,
    ],
    ids=["sexagesimal", "digits", "merges", "lists", "repeats"],
)
@pytest.mark.timeout(5)
def test_a_small_file_stays_small(text):
    """Built, each of these would take minutes or all memory."""
    assert sum(map(len, flags_in(text))) < 1 << 20
