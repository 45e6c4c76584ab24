"""What is to be done first? The beginning of the runbook that the alert of such a server links to."""

import re
from pathlib import Path

from stallwatch.shipped import shipped_folder
from stallwatch.terminal.layout import WIDEST, Line, wrapped
from stallwatch.verdict import SIGNATURES

RUNBOOKS = {
    "stalled": "InferenceServerStalled",
    "suspect": "InferenceServerSuspect",
    "slow": "InferenceServerSlow",
    "dead": "InferenceServerDead",
    "unknown": "InferenceServerBlind",
}
BROKEN_GPU = "InferenceGPUFault"
MOST_LINES = 5
SHOWN_ABOVE = ("/metrics", "stallwatch evidence")
"""A step that reads metrics or names the evidence asks for what stands above already."""
_ITEM = re.compile(r"^(?:\d+\.|-) (.*(?:\n +.*)*)", re.MULTILINE)
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
_SENTENCE = re.compile(r"(?:`[^`]*`|[^`])*?(?:[.?!](?= |$)|$)")


def runbook_of(verdict: str, signature: str) -> str:
    """Return the name of the runbook for such a server, nothing where nothing is to be done."""
    return BROKEN_GPU if signature == "device_fault" else RUNBOOKS.get(verdict, "")


def first_steps(verdict: str, signature: str, width: int = WIDEST, folder: Path | None = None) -> list[Line]:
    """Return at most five lines (more where the terminal is narrow) under their heading, nothing where all is well."""
    name = runbook_of(verdict, signature)
    path = (folder or shipped_folder("alerts")) / "runbooks" / f"{name}.md"
    if not name or not path.is_file():
        return []
    shown = [
        line
        for number, step in enumerate(_chosen(path.read_text(encoding="utf-8"), signature), 1)
        for line in _numbered(number, step, width)
    ]
    return [*wrapped(f"what to do next, by the runbook {name}:", width), *shown] if shown else []


def _chosen(text: str, signature: str) -> list[str]:
    """Return the steps that fit: where to look, the signature first; the last says what to do before it is too late."""
    row = re.search(rf"^\| `{re.escape(signature)}` \| (.*) \|$", text, re.MULTILINE)
    looks = [
        _sentence(step)
        for step in _ranked(_items(text, "Diagnosis"), signature)
        if not any(word in step for word in SHOWN_ABOVE)
    ]
    looks = [f"`{signature}`: look at {row[1]}.".replace("?.", "?"), *looks] if row else looks
    last = [_sentence(step) for step in _items(text, "Mitigation")[:1]]
    chosen, used = [], _height(last)
    for step in looks:
        used += _height([step])
        if used > MOST_LINES:
            break
        chosen.append(step)
    return [*chosen, *last]


def _ranked(items: list[str], signature: str) -> list[str]:
    """Return the items for this signature first, then those for all; those for another are left out."""
    own = [item for item in items if item.startswith(f"`{signature}`:")]
    return [*own, *(item for item in items if not item.startswith(tuple(f"`{other}`" for other in SIGNATURES)))]


def _items(text: str, heading: str) -> list[str]:
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return [_plain(item) for item in _ITEM.findall(section[1])] if section else []


def _plain(markdown: str) -> str:
    return " ".join(_LINK.sub(r"\1", markdown.replace("**", "")).split())


def _sentence(step: str) -> str:
    found = _SENTENCE.match(step)
    return found[0] if found else step


def _height(steps: list[str]) -> int:
    return sum(len(_numbered(1, step, WIDEST)) for step in steps)


def _numbered(number: int, step: str, width: int) -> list[Line]:
    return wrapped(step, width, first=f"  {number}. ", rest="     ")
