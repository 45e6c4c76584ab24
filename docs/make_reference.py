"""Writes the tables of these pages that tell what the code does: `python docs/make_reference.py`.

A table stands between `<!-- begin NAME -->` and `<!-- end -->`; what is around it is written by hand.
"""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

sys.path.append(str(Path(__file__).parent))  # for whoever loads this file from elsewhere

from alert_index import ALERT_COLUMNS, alert_rows

from stallwatch.assembly import NEED_A_RESTART
from stallwatch.config import Config
from stallwatch.expense import own_expense
from stallwatch.exposition import Exposition
from stallwatch.judging.starting import BUDGETS
from stallwatch.monitor import Monitor
from stallwatch.past import COLD, HOT, LOW_POWER
from stallwatch.placement import LOADED_BYTES, LOADED_RATIO
from stallwatch.replay import play
from stallwatch.sections import Limits, Section, ServerConfig
from stallwatch.settings.flags import FLAGS
from stallwatch.settings.meanings import meaning_of, meanings_of
from stallwatch.signals import COLLECTORS, start_workers
from stallwatch.simulation.scenario import load_scenario, scenario_file
from stallwatch.snapshot import Family
from stallwatch.tracks.gpus import MEMORY_RISE, SPLIT_BELOW
from stallwatch.tracks.limits import SIGNALS
from stallwatch.tracks.track import COMPILER_CORES, FAULTS_PER_SECOND, FILE_RISE, IO_PER_SECOND
from stallwatch.values import format_duration
from stallwatch.verdict import SIGNATURES
from stallwatch.view import Kept
from stallwatch.wording import ASLEEP_CORES, SPINNING_CORES

PAGES = Path(__file__).parent
BLOCK = re.compile(r"(<!-- begin (?P<name>[a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
MIB = 1024**2

EXAMPLES = {
    "cold_deadlock": "cold_deadlock_after_weights",
    "spin_deadlock": "spin_deadlock",
    "split_ranks": "split_ranks",
    "cpu_spin": "cpu_spin_at_start",
    "unscheduled": "unscheduled",
    "frontend_stall": "frontend_stall",
    "loop_stopped": "loop_stopped",
    "rendezvous": "rendezvous_single_node",
    "stopped": "stopped_rank_with_traffic",
    "slow_load": "load_from_page_cache",
    "compiling": "compile_37_minutes",
    "lost_process": "lost_scheduler",
    "crashed": "crash",
    "orphaned_memory": "orphaned_memory",
    "device_fault": "gpu_lost",
}
"""The shipped scenario in which a signature is to be seen."""


def main() -> None:
    """Write every page anew."""
    for page in sorted(PAGES.glob("*.md")):
        page.write_text(rewritten(page.read_text()))


def rewritten(text: str) -> str:
    """Return the text of a page with each of its tables as the code has it now."""
    return BLOCK.sub(lambda block: f"{block[1]}{TABLES[block['name']]()}{block[3]}", text)


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    heads = list(columns)
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def keys() -> str:
    """Tell every key but limits and servers."""
    return table(("key", "default", "meaning"), (_key(path) for path in _paths(Config()) if path != "servers"))


def _key(path: str) -> tuple[str, ...]:
    found: Any = Config()
    for part in path.split("."):
        found = getattr(found, part)
    switch = next((flag.name for flag in FLAGS if flag.path == path and flag.value is False), "")
    meaning = f"{meaning_of(path)} `{switch}` switches it off." if switch else meaning_of(path)
    restart = " Restart." if path.partition(".")[0] in NEED_A_RESTART else ""
    return f"`{path}`", _shown(found), f"{meaning}{restart}"


def _paths(section: Section, at: str = "") -> Iterable[str]:
    for field in msgspec.structs.fields(section):
        value = getattr(section, field.name)
        if isinstance(value, Section) and not isinstance(value, Limits):
            yield from _paths(value, f"{at}{field.name}.")
        elif f"{at}{field.name}" != "file" and not isinstance(value, Limits):
            yield f"{at}{field.name}"


def _shown(value: Any) -> str:
    if value in {None, msgspec.NODEFAULT}:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{format_duration(value) if isinstance(value, float) else _list(value)}`"


def _list(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def limits() -> str:
    """Tell every limit."""
    named = Limits().named()
    rows = ((f"`limits.{name}`", _shown(named[name]), text) for name, text in meanings_of(Limits).items())
    return table(("key", "default", "meaning"), rows)


def servers() -> str:
    """Tell what can be said of one server."""
    return table(("key", "default", "meaning"), _server_keys(ServerConfig, "servers[]."))


def _server_keys(kind: type[Section], at: str) -> Iterable[tuple[str, ...]]:
    meanings = meanings_of(kind)
    for field in msgspec.structs.fields(kind):
        inner = next((arm for arm in getattr(field.type, "__args__", ()) if _is_section(arm)), None)
        if inner:
            yield from _server_keys(inner, f"{at}{field.name}.")
        else:
            default = "needed" if field.required else _shown(field.default)
            yield f"`{at}{field.name}`", default, meanings[field.name]


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def metrics(group: str) -> str:
    """Tell the metrics of one group: of a collector, of the servers, or of the exporter itself."""
    rows = (
        (f"`{family.name}`", family.kind, ", ".join(f"`{label}`" for label in family.labels), _coded(family.help))
        for family in families()[group]
    )
    return table(("name", "type", "labels", "meaning"), rows)


def _coded(text: str) -> str:
    """Return a help text with the words in code style that only code has."""
    return re.sub(r"\b[a-z]+(?:_[a-z]+)+\b", r"`\g<0>`", text)


@cache
def families() -> Mapping[str, list[Family]]:
    """Return every family that can be published, by group; what a family is does not depend on what was read."""
    config = Config()
    view = replace(Monitor(config, start_workers(config)).view, expense=own_expense(), kept=Kept())
    names = {collector.name for collector in COLLECTORS} | {"server"}
    found: dict[str, list[Family]] = {}
    for name, _, group in Exposition(view).groups():
        found.setdefault(name if name in names else "exporter", []).extend(group())
    return found


def movement() -> str:
    """Tell what counts as movement, and until or from when."""
    floors = {
        "log": "a line that only a server that gets on writes; not a heartbeat, an access line or an error",
        "gpu_memory": f"used memory of any GPU of the server rises by {MEMORY_RISE // MIB} MiB",
        "io": f"its processes read or write {IO_PER_SECOND / MIB:g} MiB/s, or map {FILE_RISE / MIB:g} MiB more",
        "faults": f"its processes make {FAULTS_PER_SECOND:,.0f} page faults a second",
        "compile": f"compilers among its processes burn {COMPILER_CORES:g} of a core",
        "tokens": "a token counter rises by more than our own probes make it rise",
    }
    while_ = {(True, True): "always", (True, False): "until it is ready", (False, True): "once it is ready"}
    rows = (
        (f"`{signal}`", floors[signal], while_[signal in SIGNALS[False], signal in SIGNALS[True]])
        for signal in SIGNALS[None]
    )
    return table(("signal", "moves when", "counts"), rows)


def budgets() -> str:
    """Tell how long each phase of a start may take while something moves."""
    named = Limits().named()
    rows = ((f"`{phase}`", f"`limits.{limit}`", _shown(named[limit])) for phase, limit in BUDGETS.items())
    return table(("phase", "budget", "default"), rows)


def thresholds() -> str:
    """Tell the fixed numbers behind the words."""
    rows = (
        ("GPU at rest", f"below {COLD:.0%} utilization"),
        ("GPU at full utilization", f"from {HOT:.0%} on"),
        ("split ranks", f"some GPUs from {HOT:.0%} on while others are below {SPLIT_BELOW:.0%}"),
        ("much power", f"more than {LOW_POWER:.0%} of the power limit of any of its GPUs"),
        ("memory loaded", f"{LOADED_BYTES // 1024**3} GiB on a GPU, or {LOADED_RATIO:.0%} of it"),
        ("scheduler asleep", f"less than {ASLEEP_CORES:g} of a core"),
        ("scheduler that spins", f"{SPINNING_CORES:g} of a core or more"),
    )
    return table(("word", "means"), rows)


def examples() -> str:
    """Tell what is said, word for word, of a shipped scenario of each signature."""
    return table(("signature", "what is said", "scenario"), map(_example, SIGNATURES))


def _example(signature: str) -> tuple[str, ...]:
    """Return what is said of a hang when it becomes one, and of what only looks like one at its end."""
    looks = play(load_scenario(scenario_file(EXAMPLES[signature])))
    verdicts = [one for look in looks for one in look.verdicts.values() if one.signature == signature]
    told = verdicts[0] if verdicts[0].state in {"stalled", "dead"} else verdicts[-1]
    return f"`{signature}`", f"**{told.state}**: {told.reason}", f"`{EXAMPLES[signature]}`"


TABLES: Mapping[str, Callable[[], str]] = {
    "keys": keys,
    "limits": limits,
    "servers": servers,
    "movement": movement,
    "budgets": budgets,
    "thresholds": thresholds,
    "examples": examples,
    "alerts": lambda: table(ALERT_COLUMNS, alert_rows()),
    **{f"metrics {group}": lambda group=group: metrics(group) for group in families()},  # type: ignore[misc]
}

if __name__ == "__main__":
    main()
