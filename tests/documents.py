"""The texts that people read and copy from: pages, rules, dashboards, deployment files, and what stands in them."""

import json
import re
import runpy
import shlex
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "exporter" / "stallwatch"
REFERENCE = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "alerts").rglob("*.md"))]
TEXTS = [
    *PAGES,
    *sorted(
        path
        for pattern in (
            "alerts/**/*.yml",
            "alerts/**/*.tmpl",
            "grafana/dashboards/*.json",
            "grafana/provisioning/**/*.yml",
            "docker-compose*.yml",
            "exporter/Dockerfile",
            "deploy/**/*",
        )
        for path in ROOT.glob(pattern)
        if path.is_file()
    ),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
CONNECTORS = {"&&", "||", ";", "|", "do", "done", "then", "fi", "else"}
REDIRECTION = re.compile(r"[0-9]?>")


def families():
    """Return every metric family that the exporter can publish."""
    return [family for group in REFERENCE["families"]().values() for family in group]


def rules_of(path):
    """Return the alerting rules of a file."""
    groups = yaml.safe_load(path.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def name_of(path):
    """Return the path of a text as a test is called by it."""
    return str(path.relative_to(ROOT))


@cache
def text_of(path):
    """Return what a text says; of a dashboard its strings, without the escapes of JSON."""
    text = path.read_text()
    return "\n".join(strings(json.loads(text))) if path.suffix == ".json" else text


def strings(value):
    """Yield every string in a JSON document."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from strings(inner)


def blocks(page, *languages):
    """Return the fenced blocks of a page in one of these languages."""
    return [block for language, block in FENCE.findall(page.read_text()) if language in languages]


def spans(page):
    """Return what stands in code style in the text of a page, outside of its blocks."""
    return SPAN.findall(FENCE.sub("", page.read_text()))


def commands(page):
    """Return the words of each command that a page tells to type, in a block or in its text."""
    lines = [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    lines += [line for line, _ in sessions(page)]
    words = [words_of(line) for line in lines]
    typed = [span for span in spans(page) if span.startswith(("stallwatch ", "make "))]
    return [command for found in [*words, *map(words_of, typed)] for command in found]


def sessions(page):
    """Return the lines typed in the console blocks of a page, each with what it prints."""
    return [
        tuple(part.partition("\n")[::2])
        for block in blocks(page, "console")
        for part in re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)[1:]
    ]


def words_of(line):
    """Return the words of each command of a shell line, without redirections, variables and sudo before it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    commands, words = [], []
    for word in [*lexer, ";"]:
        if word in CONNECTORS:
            commands, words = [*commands, words] if words else commands, []
        elif not REDIRECTION.match(word) and (words or not re.match(r"[A-Z_]+=|sudo$", word)):
            words.append(word)
    return commands
