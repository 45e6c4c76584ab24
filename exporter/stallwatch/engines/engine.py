"""What must be known of an inference engine to find its servers from outside?"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from stallwatch.snapshot import Launch

LAUNCHER, SCHEDULER, ROUTER, SPAWNING, OTHER = "launcher", "scheduler", "router", "spawning", "other"

Argv = Sequence[str]
ReadText = Callable[[str], str]

_RANK = re.compile(r"[A-Za-z0-9_]{1,64}")
_HUGE_NUMBER = re.compile(r"[0-9]{6}")
_PART = re.compile(r"([A-Z][A-Z_]*?)_?([0-9]{1,5})(?![0-9])")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a process is by its title or command line; `flags` says that its flags can still be read there."""

    engine: str
    role: str
    name: str
    rank: str = ""
    flags: bool = False


Member = tuple[Identity, Identity | None]  # a process of a server, and the one of them that started it


@dataclass(frozen=True, slots=True)
class Engine:
    """One inference engine.

    `log_fds` are the descriptors its log goes to, the better one first. `launch` parses the command line of a launcher
    and asks for the text of a configuration file that is named there. `expected` counts the schedulers that belong on
    this node, None where the command line does not tell. `gpu_ids` says which GPU, among the visible ones, a rank uses.
    `settle` corrects roles and ranks once all processes of one server are known, by what was launched and how many
    schedulers are expected.
    """

    name: str
    log_fds: tuple[int, int]
    identify: Callable[[Argv], Identity | None]
    launch: Callable[[Argv, ReadText], Launch]
    expected: Callable[[Launch, Argv], int | None]
    gpu_ids: Callable[[Launch, Iterable[str]], dict[str, int]]
    settle: Callable[[Launch, int | None, Sequence[Member]], Sequence[Identity]]


def valid_rank(text: str) -> bool:
    """Say whether this can be the rank in a title: short, plain, and its numbers have at most five digits."""
    return bool(_RANK.fullmatch(text)) and not _HUGE_NUMBER.search(text)


def rank_parts(rank: str) -> dict[str, int]:
    """Split a rank such as `DP1_TP3` into its parts by name, in whatever order they stand."""
    if rank.isdecimal():
        return {"DP": int(rank)}  # SGLang 0.4.3 put nothing but the number of the replica there
    return {name.strip("_"): int(number) for name, number in _PART.findall(rank)}


def number(text: str | None, default: int, least: int = 1, most: int = 65535) -> int:
    """Read a number out of a command line; one that is none, or out of bounds, is the default."""
    try:
        value = int(text or "")
    except ValueError:
        return default
    return value if least <= value <= most else default
