"""What does a bundle tell an engineer who has nothing else? Markdown, the answer first: what, since when, which rank.

Made from the files of the bundle, so that a later version reads an older bundle as well as it can. All that a watched
server named stands inside of code, cleaned.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from stallwatch.answer import Entry
from stallwatch.evidence.causes import cause_of
from stallwatch.evidence.passages import Passage, passages
from stallwatch.evidence.store import Manifest
from stallwatch.redaction import clean
from stallwatch.terminal.steps import first_steps
from stallwatch.terminal.tables import health_table, rank_table
from stallwatch.wording import duration, joined

WIDTH = 120
LONGEST = 4000


def summary(manifest: Manifest, told: Mapping[str, Any], sources: Mapping[str, Any]) -> str:
    """Return the whole text; `told` is the server as `/api/v1/status` has it, `sources` what each source gave.

    Raises msgspec's and the usual errors where these are not what they should be.
    """
    entry = msgspec.convert(told, Entry)
    found = list(passages(sources))
    return "\n".join(
        [
            *_head(manifest, entry, told, found),
            *_section("Ranks", _code(line.text for line in rank_table(entry, WIDTH))),
            *_section("Endpoints", _code(line.text for line in health_table(entry, manifest.at, WIDTH))),
            *(line for passage in found for line in _passage(passage)),
            *_section("What is missing, and why", _missing(manifest, entry)),
            *_section(*_steps(manifest, entry)),
            *_section("Files", _files(manifest)),
            "",
        ]
    )


def _head(manifest: Manifest, entry: Entry, told: Mapping[str, Any], found: list[Passage]) -> Iterator[str]:
    yield f"# {text(manifest.server)}: {entry.verdict}{f' ({manifest.signature})' if manifest.signature else ''}"
    yield ""
    yield text(entry.reason)
    yield ""
    yield f"- **Class of cause**: {cause_of(manifest.signature)}"
    yield f"- **Odd one out**: {_odd(entry, found)}"
    yield f"- **Since**: {_utc(manifest.begun)}, {duration(manifest.at - manifest.begun)} before this was gathered"
    yield f"- **Gathered**: {_utc(manifest.at)} on {text(manifest.node)}, since {text(manifest.why)}"
    what = joined(f"{name} {told[name]}" for name in ("engine", "version", "model", "port") if told.get(name))
    yield f"- **Server**: {text(what)}"
    if entry.phase:
        yield f"- **Phase**: {text(entry.phase.replace('_', ' '))}{_last_line(entry)}"
    if entry.owed_since:
        owed = joined(
            f"{what.replace('_', ' ')} for {duration(manifest.at - at)}" for what, at in entry.owed_since.items()
        )
        yield f"- **Owed**: {text(owed)}"


def _last_line(entry: Entry) -> str:
    whose = f" on {entry.marker_rank}" if entry.marker_rank else ""
    return text(f"; last progress line `{entry.marker}`{whose}") if entry.marker else ""


def _odd(entry: Entry, found: Iterable[Passage]) -> str:
    """Return who differs from the others by each source that tells, the one that says most first."""
    said = [passage.odd for passage in found if passage.odd]
    ranks = [f"{rank.rank or rank.process} ({', '.join(rank.odd)})" for rank in entry.ranks if rank.odd]
    gpus = [f"GPU {gpu.index:.0f} ({', '.join(gpu.odd)})" for gpu in entry.gpus.unplaced if gpu.odd]
    seen = [f"by CPU, GPU, state and log: {joined([*ranks, *gpus])}"] if ranks or gpus else []
    return text("; ".join([*said, *seen]) or "none; all ranks look alike")


def _passage(passage: Passage) -> Iterator[str]:
    said, code = [text(passage.said)] if passage.said else [], _code(passage.lines)
    yield from _section(passage.title, [*said, *([""] if said and code else []), *code])


def _missing(manifest: Manifest, entry: Entry) -> Iterator[str]:
    for what in entry.missing:
        yield f"- {text(what)}"
    for source in manifest.sources:
        for why in source.missing:
            yield f"- {source.source}: {text(why)}"
        if source.dropped:
            yield f"- {source.source}: {source.dropped} left out, since they were too many"


def _steps(manifest: Manifest, entry: Entry) -> tuple[str, list[str]]:
    state = "stalled" if entry.verdict == "suspect" and manifest.signature else entry.verdict
    runbook, *steps = [line.text for line in first_steps(state, manifest.signature, WIDTH)] or [""]
    return runbook.strip().removesuffix(":").capitalize(), steps


def _files(manifest: Manifest) -> Iterator[str]:
    yield "- verdict.json, snapshot.json: what was judged, and all that was seen at that moment"
    yield "- recording.jsonl.gz: the half hour before; `stallwatch replay` plays this directory through the judge"
    for source in manifest.sources:
        if source.file:
            yield f"- {source.file}: read in {source.seconds:.1f} s"


def _section(title: str, body: Iterable[str]) -> Iterator[str]:
    lines = list(body)
    if lines:
        yield from ("", f"## {title}", "", *lines)


def _code(lines: Iterable[str]) -> list[str]:
    """Return the lines as a block that nothing in them can end."""
    kept = [clean(line, LONGEST).replace("```", "'''") for line in lines]
    return ["```", *kept, "```"] if kept else []


def text(words: str) -> str:
    """Return what may stand in a line of Markdown: no control characters, nothing that is markup but `code`."""
    return clean(words, LONGEST).replace("```", "'''").replace("<", "\\<").replace("[", "\\[").replace("|", "\\|")


def _utc(unix: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix))
