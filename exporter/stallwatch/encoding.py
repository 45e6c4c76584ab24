"""How is a family written down for Prometheus, in its text format and in OpenMetrics?

As prometheus_client writes it, byte for byte, in a fifth of the time: that one looks at the label names of each sample
again, and here they are known. What is there twice is stated once, and a count that is negative not at all.
"""

import math
from collections.abc import Iterable, Iterator

from stallwatch.snapshot import Family

END = b"# EOF\n"
"""What follows the last family in OpenMetrics."""


def encoded(families: Iterable[Family], *, openmetrics: bool) -> bytes:
    """Return the families as lines; a family without samples is left out."""
    return "".join(part for family in families if family.samples for part in _parts(family, openmetrics)).encode()


def _parts(family: Family, openmetrics: bool) -> Iterator[str]:  # noqa: FBT001  (an inner step of encoded)
    name, text, counts = family.name, family.help.replace("\\", r"\\").replace("\n", r"\n"), family.kind == "counter"
    if openmetrics:
        name, text = name.removesuffix("_total") if counts else name, text.replace('"', r"\"")
    yield f"# HELP {name} {text}\n# TYPE {name} {family.kind}\n"
    order = sorted(range(len(family.labels)), key=family.labels.__getitem__)
    labels = ",".join(f'{family.labels[place]}="%s"' for place in order)
    line = f"{family.name}{{{labels}}} %s\n" if order else f"{family.name} %s\n"
    seen: set[tuple[str, ...]] = set()
    for values, value in family.samples:
        if len(values) != len(order):
            raise ValueError(f"{family.name} has {len(order)} labels, and a sample of it {len(values)}")
        if values not in seen and not (counts and value < 0):
            seen.add(values)
            yield line % (*[_escaped(values[place]) for place in order], _number(value))


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    """Write a number as Go does, which turns to exponents sooner than Python."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    text = repr(float(value))
    dot = text.find(".")
    if value < 0 or dot <= 6:
        return text
    digits = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
    return f"{digits}e+{dot - 1:02d}"
