"""What does a segment of a scenario say? Its signals, from YAML into levels and words by key path."""

from collections.abc import Callable, Mapping
from typing import Any

from stallwatch.settings.checks import Checks
from stallwatch.simulation.plot import Level, Levels, Segment
from stallwatch.snapshot import PHASES

HEALTH_WORDS = ("ok", "refused", "timeout", "reset", "empty", "unauthorized", "http_error", "invalid")
LOG_WORDS = ("progress", "access", "heartbeat", "silent")
PROCESS_WORDS = ("gone", "zombie", "stopped", "running")
EXIT_WORDS = ("crash", "orderly")
STATES = tuple("RSDZTtXI")
LEVELS = {
    "gpu": ("utilization", "memory_gib", "power_watts", "sm_clock_mhz"),
    "scheduler": ("cpu", "tree_cpu", "read_mib_per_second", "faults_per_second", "heartbeat_switches"),
    "engine": ("running", "queued", "tokens_per_second"),
    "socket": ("unread_bytes", "accept_queue"),
}
WORDS = {"scheduler": ("state", "compiler"), "engine": ("heartbeat",), "gpu": ("lost", "xid")}
KEYS = ("for", "phase", "log", "health", "processes", "exit", *LEVELS)


def segment_of(check: Checks, raw: Any, at: str) -> Segment:
    """Return the segment that stands at this key path."""
    keys = check.mapping(raw, at, KEYS)
    if "for" not in keys:
        check.fail(f"{at}.for", "missing, and every segment needs it")
    given: dict[str, Any] = {}
    for key, value in keys.items():
        if key in LEVELS:
            given |= _signal(check, key, value, f"{at}.{key}")
        elif key in _PLAIN:
            given[key] = None if value is None else _PLAIN[key](check, value, f"{at}.{key}")
    exit_word = check.word(keys["exit"], f"{at}.exit", EXIT_WORDS) if "exit" in keys else ""
    return Segment(check.duration(keys["for"], f"{at}.for"), given, exit_word)


def _signal(check: Checks, signal: str, raw: Any, at: str) -> dict[str, Any]:
    if raw is None:
        return {signal: None}
    keys = check.mapping(raw, at, (*LEVELS[signal], *WORDS.get(signal, ())))
    given: dict[str, Any] = {signal: True}
    for key, value in keys.items():
        path = f"{at}.{key}"
        read = _levels if key in LEVELS[signal] else _READ[key]
        given[f"{signal}.{key}"] = read(check, value, path)
    return given


def _levels(check: Checks, raw: Any, at: str) -> Levels:
    if isinstance(raw, list):
        return tuple(_level(check, item, f"{at}[{n}]") for n, item in enumerate(_filled(check, raw, at)))
    return (_level(check, raw, at),)


def _level(check: Checks, raw: Any, at: str) -> Level:
    if raw is None:
        return Level(None, None)
    if isinstance(raw, dict):
        keys = check.mapping(raw, at, ("from", "to"))
        if set(keys) != {"from", "to"}:
            check.fail(at, "a ramp needs both from and to")
        return Level(check.number(keys["from"], f"{at}.from"), check.number(keys["to"], f"{at}.to"))
    value = check.number(raw, at)
    return Level(value, value)


def _filled(check: Checks, raw: Any, at: str) -> list[Any]:
    items = list(check.list(raw, at))
    if not items:
        check.fail(at, "expected at least one value, got an empty list")
    return items


def _state(check: Checks, raw: Any, at: str) -> tuple[str, ...] | None:
    if raw is None:
        return None
    states = _filled(check, raw, at) if isinstance(raw, list) else [raw]
    return tuple(check.word(state, at, STATES) for state in states)


def _flags(check: Checks, raw: Any, at: str) -> tuple[bool, ...] | None:
    if raw is None:
        return None
    flags = _filled(check, raw, at) if isinstance(raw, list) else [raw]
    return tuple(check.flag(flag, at) for flag in flags)


def _lost(check: Checks, raw: Any, at: str) -> tuple[int, ...]:
    return tuple(check.whole(index, f"{at}[{n}]") for n, index in enumerate(check.list(raw, at)))


def _xid(check: Checks, raw: Any, at: str) -> dict[int, int]:
    pairs = check.mapping(raw, at, None)
    return {check.whole(index, at): check.whole(code, f"{at}.{index}") for index, code in pairs.items()}


_READ: Mapping[str, Callable[[Checks, Any, str], Any]] = {
    "state": _state,
    "compiler": _flags,
    "heartbeat": _flags,
    "lost": _lost,
    "xid": _xid,
}


def _log(check: Checks, raw: Any, at: str) -> str | tuple[str, ...]:
    if isinstance(raw, list):
        return tuple(check.text(line, f"{at}[{n}]") for n, line in enumerate(raw))
    return check.word(raw, at, LOG_WORDS)


def _health(check: Checks, raw: Any, at: str) -> dict[str, str | int | None]:
    if not isinstance(raw, dict):
        return {"/health": _answer(check, raw, at)}
    answers = {}
    for path, answer in raw.items():
        if not check.text(path, at).startswith("/"):
            check.fail(at, f"expected paths that begin with /, got {check.shown(path)}")
        answers[str(path)] = _answer(check, answer, f"{at}.{path}")
    return answers


def _answer(check: Checks, raw: Any, at: str) -> str | int | None:
    if raw is None:
        return None
    if isinstance(raw, int) and not isinstance(raw, bool):
        return check.whole(raw, at, least=100, most=599)
    if isinstance(raw, str) and raw.isdecimal() and len(raw) == len("503"):
        return check.whole(int(raw), at, least=100, most=599)
    return check.word(raw, at, HEALTH_WORDS)


def _states(check: Checks, raw: Any, at: str) -> dict[str, str]:
    words = check.mapping(raw, at, None)
    return {check.text(name, at): check.word(word, f"{at}.{name}", PROCESS_WORDS) for name, word in words.items()}


def _phase(check: Checks, raw: Any, at: str) -> str:
    return check.word(raw, at, PHASES)


_PLAIN: Mapping[str, Callable[[Checks, Any, str], Any]] = {
    "phase": _phase,
    "log": _log,
    "health": _health,
    "processes": _states,
}
