"""What each key means: every key has a sentence, and the command runs where there is none to read."""

import compileall
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stallwatch
from stallwatch.config import Config
from stallwatch.sections import Limits, Section, ServerConfig
from stallwatch.settings.meanings import meaning_of, meanings_of
from stallwatch.settings.sources import _paths, _types_of


@pytest.mark.parametrize("path", [path for path in _paths(Config) if not path.startswith("limits.")])
def test_every_key_has_a_meaning(path):
    """A sentence, of one line once it is told."""
    meaning = meaning_of(path)
    assert meaning.endswith(".")
    assert meaning[0] == "`" or meaning[0].isupper()
    assert meaning.isprintable()


@pytest.mark.parametrize("kind", [Limits, ServerConfig])
def test_the_keys_of_a_section_in_order(kind):
    """Each key that holds a plain value, and no other, in the order in which they can be set."""
    plain = [name for name, type_of in _types_of(kind).items() if not _holds_a_section(type_of)]
    assert list(meanings_of(kind)) == plain


def _holds_a_section(type_of):
    kinds = getattr(type_of, "__args__", (type_of,))
    return any(isinstance(kind, type) and issubclass(kind, Section) for kind in kinds)


def test_a_meaning_of_several_lines_is_told_in_one():
    """What the width of the source broke is joined again."""
    source = Path(sys.modules[Limits.__module__].__file__).read_text()
    meaning = meanings_of(Limits)["start_without_movement_partial"]
    assert meaning
    assert meaning in " ".join(source.split())


def test_without_its_source_the_command_runs(tmp_path):
    """Where only bytecode was shipped the flags are listed without their meaning."""
    package = tmp_path / "stallwatch"
    shutil.copytree(Path(stallwatch.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(package, quiet=1, legacy=True)
    for source in package.rglob("*.py"):
        source.unlink()
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "stallwatch", "serve", "--help"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=50)
    assert "--health.interval DURATION" in done.stdout
    assert "how often to probe" not in done.stdout
