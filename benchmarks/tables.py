"""How is a comparison shown? As a table of Markdown for each node, with what Stallwatch costs as a part of the rest."""

from collections.abc import Mapping
from dataclasses import dataclass

ROWS = {
    "cpu_seconds": "CPU s per 60 s",
    "memory_mib": "memory, peak, MiB",
    "shared_out_mib": "memory, PSS, MiB",
    "p50_ms": "scrape p50, ms",
    "p99_ms": "scrape p99, ms",
    "bytes": "bytes per scrape",
    "series": "series",
}
STALLWATCH, TOGETHER = "stallwatch", "the four"


@dataclass(frozen=True, slots=True)
class Played:
    """A node that is compared on."""

    others: int
    threads: int

    def __str__(self) -> str:
        """Tell which one."""
        return f"{self.others:,} other processes, {self.threads} thread{'s' * (self.threads > 1)} per rank"


def table(title: str, found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Return what was found of one node as lines of Markdown."""
    names = list(found)
    head = ["", *names, "ratio"]
    lines = [f"**{title}**", "", "| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for row, words in ROWS.items():
        ratio = found[STALLWATCH][row]["median"] / found[TOGETHER][row]["median"]
        cells = [_cell(found[name][row]) for name in names]
        lines.append(f"| {words} | " + " | ".join(cells) + f" | {ratio:.2f} |")
    return "\n".join(lines)


def _cell(spread: Mapping[str, float]) -> str:
    digits = (
        0 if spread["median"] >= 1000 or float(spread["median"]).is_integer() else 1 if spread["median"] >= 10 else 2
    )
    middle, least, most = (f"{spread[name]:,.{digits}f}" for name in ("median", "least", "most"))
    return middle if least == most else f"{middle} ({least} to {most})"
