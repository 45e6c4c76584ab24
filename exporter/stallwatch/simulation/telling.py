"""How does the demo talk? Lines with the time, wrapped to the terminal."""

import shutil
import textwrap
import time
from pathlib import Path

from stallwatch.evidence.store import SUMMARY
from stallwatch.view import Bundle

INDENT = " " * 10


def say(text: str) -> None:
    """Print one event of the demo with the time; what follows its first line is indented."""
    write(f"{time.strftime('%H:%M:%S')}  {text}")


def say_evidence(bundle: Bundle, directory: Path) -> None:
    """Print what the summary of a bundle answers first."""
    say(f"EVIDENCE of {bundle.server} is kept, before anybody restarts it: {bundle.name}")
    lines = (directory / bundle.name / SUMMARY).read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line.startswith(("- **Class of cause**", "- **Odd one out**", "By ")):
            write(f"{INDENT}{line.removeprefix('- ').replace('**', '')}")
    write(f"{INDENT}All of it: stallwatch evidence show {directory / bundle.name}")


def write(text: str) -> None:
    """Print text, what follows its first line indented."""
    width = max(60, shutil.get_terminal_size((120, 24)).columns)
    wrapped = textwrap.fill(text, width, subsequent_indent=INDENT, break_on_hyphens=False, break_long_words=False)
    print(wrapped, flush=True)  # noqa: T201 what the demo is for
