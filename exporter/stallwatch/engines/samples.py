"""Which samples of the names that matter stand on a metrics page?

Most of a page is histograms that nobody asked for, so the lines are found by name before any of them is parsed. Both
spellings of a prefix are taken (`sglang:` and `sglang_`). A line that cannot be parsed is left out; of two samples with
the same labels the later one counts, as it would in Prometheus.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MOST_SAMPLES = 20_000
LONGEST_LINE = 16 * 1024
LARGEST_VALUE = 1e18  # no counter of tokens or seconds gets there, and no sum of such values overflows

_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|(?=\}))')
_CLOSE = re.compile(r"\s*\}")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample: its name without the prefix, its labels and its value, which is finite and not negative."""

    name: str
    labels: Mapping[str, str]
    value: float


def pattern_of(prefix: str, names: Iterable[str]) -> re.Pattern[bytes]:
    """Return the pattern that finds the samples of these names; it begins with fixed bytes, which makes it fast."""
    return re.compile(rf"\n{prefix}[:_]({'|'.join(names)})(?=[{{ \t])([^\n]*)".encode())


def samples_of(page: bytes, pattern: re.Pattern[bytes]) -> list[Sample]:
    """Parse the samples that the pattern finds; raises ValueError where there are too many, or none that is whole."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], Sample] = {}
    lines = 0
    for lines, match in enumerate(pattern.finditer(b"\n" + page), 1):
        if lines > MOST_SAMPLES:
            raise ValueError("too many samples")
        sample = parse_sample(match[1].decode(), match[2])
        if sample:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample
    if lines and not found:
        raise ValueError("no sample can be parsed")
    return list(found.values())


def parse_sample(name: str, rest: bytes) -> Sample | None:
    """Parse what stands after the name of a sample."""
    if len(rest) > LONGEST_LINE:
        return None
    text = rest.decode(errors="replace").lstrip()
    labels, end = _labels(text) if text.startswith("{") else ({}, 0)
    words = text[end:].split(maxsplit=1)
    try:
        value = float(words[0])
    except (IndexError, ValueError):
        return None
    return Sample(name, labels, value) if 0 <= value < LARGEST_VALUE else None


def _labels(text: str) -> tuple[dict[str, str], int]:
    """Return the labels and where they end; where they are broken, an end after which no value can stand."""
    labels = {}
    at = 1
    while label := _LABEL.match(text, at):
        labels[label[1]] = _unescaped(label[2])
        at = label.end()
    close = _CLOSE.match(text, at)
    return labels, close.end() if close else len(text)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[0]), text) if "\\" in text else text
