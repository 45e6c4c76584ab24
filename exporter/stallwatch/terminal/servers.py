"""What is a person told of the servers at 3 a.m.? The sentence first, then what it rests on, then what to do."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from stallwatch.answer import Answer, Entry, Failure
from stallwatch.terminal.layout import WIDEST, Line, labelled, wrapped
from stallwatch.terminal.steps import first_steps
from stallwatch.terminal.tables import health_table, rank_table
from stallwatch.verdict import WORST_FIRST
from stallwatch.wording import duration, joined

STYLES = {"dead": "bad", "stalled": "bad", "suspect": "doubtful", "slow": "doubtful", "unknown": "doubtful"}
SAME_MOMENT = 0.01
"""Times that are told to the millisecond are the same within this."""
SHORT_LOOK = (
    "which cannot know what came before: its ages begin with it, so a server that has hung in silence may be called "
    "starting, busy or suspect here. A running exporter, or a longer --for, can tell."
)


def lines(status: Mapping[str, Any], servers: list[dict[str, Any]], width: int = WIDEST) -> list[Line]:
    """Return what a person reads, first of all one line on the worst server, as monitoring plugins are read.

    What a server names is shown as letters only.
    """
    answer = msgspec.convert({**status, "servers": servers}, Answer)
    entries = sorted(answer.servers, key=lambda entry: _urgency(entry.verdict))
    blocks = [(_head(entry, answer.time, width), _rest(answer, entry, width)) for entry in entries]
    (head, rest), *others = blocks or [_nobody(answer, width)]
    notes = [line for text in _notes(answer) for line in wrapped(text, width, style="quiet")]
    return [*head, *notes, *rest, *(line for head, rest in others for line in [Line(""), *head, *rest])]


def _urgency(verdict: str) -> int:
    return WORST_FIRST.index(verdict if verdict in WORST_FIRST else "unknown")


def _nobody(answer: Answer, width: int) -> tuple[list[Line], list[Line]]:
    """Return that there is no server, and why servers may be there that are not seen."""
    unseen = [one.detail for one in answer.failures if (one.collector, one.server) == ("discovery", "")]
    return [Line("No inference server is seen on this node.")], [line for one in unseen for line in wrapped(one, width)]


def _notes(answer: Answer) -> Iterable[str]:
    if answer.looked_for is not None:
        yield f"No exporter was asked; this is a look of {answer.looked_for:g} s, {SHORT_LOOK}"
    if answer.gpu_released_until is not None:
        left = duration(answer.gpu_released_until - answer.time)
        yield f"The GPUs are released for {left} more, and are not read."


def _head(entry: Entry, now: float, width: int) -> list[Line]:
    doubted = f" (looks like {entry.looks_like})" if entry.looks_like else ""
    signature = f" ({entry.signature})" if entry.signature else doubted
    text = f"{entry.server}: {entry.verdict.upper()}{signature} for {duration(now - entry.since)}"
    return wrapped(text, width, first="", style=STYLES.get(entry.verdict, "well"))


def _rest(answer: Answer, entry: Entry, width: int) -> list[Line]:
    facts = (labelled(label, text, width) for label, text in _facts(entry, answer.time))
    missing = (labelled("" if n else "missing", text, width) for n, text in enumerate(_missing(entry, answer.failures)))
    return [
        *wrapped(entry.reason, width),
        *rank_table(entry, width),
        *(line for lines in facts for line in lines),
        *health_table(entry, answer.time, width),
        *(line for lines in missing for line in lines),
        *first_steps(entry.verdict, entry.signature or entry.looks_like, width),
    ]


def _facts(entry: Entry, now: float) -> Iterable[tuple[str, str]]:
    if entry.processes is not None:
        yield "processes", _processes(entry, entry.processes, now)
    if "log" in entry.last_movement:
        yield "log", _log(entry, now)
    if entry.phase:
        since = "" if entry.phase_since is None else f" for {duration(now - entry.phase_since)}"
        progress = "" if entry.progress is None else f", {100 * entry.progress:.0f} %"
        yield "phase", f"{_plain(entry.phase)}{since}{progress}"
    if entry.last_movement:
        yield "moved", _moved(entry, now)
    if entry.evidence:
        age = duration(now - entry.evidence.gathered)
        yield "evidence", f"gathered {age} ago: `stallwatch evidence show {entry.evidence.bundle}`"
    if entry.owed_since:
        yield "owed", joined(f"{_plain(what)} for {duration(now - at)}" for what, at in entry.owed_since.items())


def _processes(entry: Entry, present: Mapping[str, int], now: float) -> str:
    """Return who is there, of how many, and who has gone."""
    counts = {"scheduler": 0, **present} if entry.expected_schedulers else present
    of = {"scheduler": f" of {entry.expected_schedulers:.0f}"} if entry.expected_schedulers else {}
    there = joined(f"{_plain(role)} {count}{of.get(role, '')}" for role, count in counts.items()) or "none"
    gone = [(one.rank or one.process, one.missing_since) for one in entry.ranks if one.missing_since is not None]
    return "; gone: ".join(filter(None, [there, joined(f"{name} for {duration(now - at)}" for name, at in gone)]))


def _log(entry: Entry, now: float) -> str:
    age = duration(now - entry.last_movement["log"])
    whose = f" on {entry.marker_rank}" if entry.marker_rank else ""
    return f"last progress line `{entry.marker}`{whose} {age} ago" if entry.marker else f"no progress line for {age}"


def _moved(entry: Entry, now: float) -> str:
    """Return when each signal moved last; one that bears the time of the first sight has not been seen to move."""
    still = [name for name, at in entry.last_movement.items() if _is_first(entry.first_seen, at)]
    moved = {name: at for name, at in entry.last_movement.items() if name not in still}
    ages = joined(
        f"{_plain(name)} {duration(now - at)} ago" for name, at in sorted(moved.items(), key=lambda one: -one[1])
    )
    watched = "" if entry.first_seen is None else f" in the {duration(now - entry.first_seen)} that it is watched"
    return "; ".join(filter(None, [ages, f"not{watched}: {joined(map(_plain, still))}" if still else ""]))


def _is_first(first_seen: float | None, at: float) -> bool:
    return first_seen is not None and abs(at - first_seen) < SAME_MOMENT


def _missing(entry: Entry, failures: Iterable[Failure]) -> list[str]:
    """Return what is missing: that of which nobody tells more, then each of the others with why."""
    details = {f"{one.collector}: {one.reason}": one.detail for one in failures if one.server in {"", entry.server}}
    bare = joined(what for what in entry.missing if not details.get(what))
    told = [f"{what} ({details[what]})" for what in entry.missing if details.get(what)]
    return [bare, *told] if bare else told


def _plain(word: str) -> str:
    return word.replace("_", " ")
