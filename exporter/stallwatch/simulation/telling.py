"""How does the demo talk? Lines with the time, wrapped to the terminal."""

import shutil
import textwrap
import time

INDENT = " " * 10


def say(text: str) -> None:
    """Print one event of the demo with the time; what follows its first line is indented."""
    write(f"{time.strftime('%H:%M:%S')}  {text}")


def write(text: str) -> None:
    """Print text, what follows its first line indented."""
    width = max(60, shutil.get_terminal_size((120, 24)).columns)
    wrapped = textwrap.fill(text, width, subsequent_indent=INDENT, break_on_hyphens=False, break_long_words=False)
    print(wrapped, flush=True)  # noqa: T201 what the demo is for
