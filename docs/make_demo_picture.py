"""Draws what `stallwatch demo` prints as an SVG: `python docs/make_demo_picture.py docs/demo.svg`."""

import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 112
TIME = re.compile(r"\d\d:\d\d:\d\d")


def main(target: str) -> None:
    """Run the demo, show it as it goes, and write the picture."""
    command = [sys.executable, "-m", "stallwatch", "demo"]
    console = Console(record=True, width=COLUMNS, force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), ("make demo", "bold")))
    environ = {**os.environ, "COLUMNS": str(COLUMNS)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as demo:
        for line in demo.stdout or ():
            console.print(styled(line.rstrip("\n")))
    if demo.returncode:
        sys.exit(demo.returncode)
    console.print()  # else the lower half of the last line's letters is clipped
    picture = console.export_svg(title="stallwatch demo")
    # Nothing is loaded from elsewhere when the picture is shown: the viewer's own monospaced font will do.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    Path(target).write_text(picture)


def styled(line: str) -> Text:
    """Return a line with its time dimmed, and with colour where something happens."""
    text = Text(line)
    text.highlight_regex(TIME, "dim")
    if "  PAGE  " in line:
        text.stylize("bold red", 10)
    elif "From here on nothing happens" in line:
        text.stylize("bold yellow", 10)
    return text


if __name__ == "__main__":
    main(*sys.argv[1:])
