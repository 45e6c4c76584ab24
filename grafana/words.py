"""Which words and colours stand for what is judged and seen? From the package itself, so that none is forgotten."""

from dataclasses import dataclass

from stallwatch.collectors.health import RESULTS
from stallwatch.collectors.process import STATES
from stallwatch.snapshot import PHASES
from stallwatch.verdict import SIGNATURES, VERDICTS

GREY = "#808080"
PALE = "#5a5a5a"
COLOURS = {
    "starting": "blue",
    "idle": "super-light-green",
    "busy": "green",
    "slow": "yellow",
    "stopping": "purple",
    "suspect": "orange",
    "stalled": "red",
    "dead": "dark-red",
    "unknown": GREY,
}
NOT_WELL = ("slow", "suspect", "stalled", "dead", "unknown")
HARMLESS = {"slow_load": "yellow", "compiling": "blue"}
PHASE_COLOURS = {"ready": "green", "stopping": "purple"}
STATE_WORDS = {
    "R": ("running", "green"),
    "S": ("asleep", "super-light-blue"),
    "D": ("in the kernel (D)", "red"),
    "Z": ("zombie", "dark-red"),
    "T": ("stopped", "orange"),
    "t": ("traced", "yellow"),
    "X": ("dead", "dark-red"),
    "I": ("idle thread", GREY),
}
RESULT_COLOURS = {"ok": "green", "unauthorized": "light-green", "refused": "orange", "timeout": "red"}


@dataclass(frozen=True, slots=True)
class Word:
    """What is shown for a value, and in which colour."""

    key: str
    text: str
    colour: str


def codes(names: tuple[str, ...], first: int = 0) -> dict[str, int]:
    """Return a number for each name, in their order."""
    return {name: code for code, name in enumerate(names, first)}


VERDICT_CODES = codes(VERDICTS)
SIGNATURE_CODES = codes(SIGNATURES, 1)
PHASE_CODES = codes(PHASES)
STATE_CODES = codes(STATES)
RESULT_CODES = codes(RESULTS)


def spaced(name: str) -> str:
    """Return a name as it is read."""
    return name.replace("_", " ")


VERDICT_WORDS = tuple(Word(str(code), name, COLOURS[name]) for name, code in VERDICT_CODES.items())
SIGNATURE_WORDS = (
    Word("0", "none", PALE),
    *(Word(str(code), spaced(name), HARMLESS.get(name, "red")) for name, code in SIGNATURE_CODES.items()),
)
PHASE_WORDS = tuple(
    Word(str(code), spaced(name), PHASE_COLOURS.get(name, "blue")) for name, code in PHASE_CODES.items()
)
PROCESS_WORDS = tuple(Word(str(code), *STATE_WORDS[state]) for state, code in STATE_CODES.items())
RESULT_WORDS = tuple(
    Word(str(code), spaced(name), RESULT_COLOURS.get(name, "dark-orange")) for name, code in RESULT_CODES.items()
)
RELOAD_WORDS = (Word("0", "failed", "red"), Word("1", "in force", "green"))
READ_WORDS = (Word("0", "cannot be read", "orange"), Word("1", "read", "green"))
UP_WORDS = (Word("0", "down", "red"), Word("1", "up", "green"))
FAILING_WORDS = (Word("0", "failing", "red"), Word("1", "working", "green"))
VERDICT_NAMES = tuple(Word(name, name, COLOURS[name]) for name in VERDICTS)
STALE = 90
"""Seconds after which a snapshot is called old, as in alerts/rules."""
