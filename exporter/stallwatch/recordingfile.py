"""Where are the lines of a recording? In a file, a packed one, or the bundle of an incident; read within bounds."""

import gzip
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from stallwatch.config import ConfigError

IN_BUNDLE = "recording.jsonl.gz"
LONGEST_LINE = 64 << 20
MOST_UNPACKED = 1 << 30
"""What a packed file may hold: many times half an hour of the largest node, and no more than a machine can bear."""


def recording_file(path: Path) -> Path:
    """Return the file of a recording, which of a bundle's directory is in it; raises ConfigError for another one."""
    if path.name.endswith((".tar.gz", ".tgz")):
        raise ConfigError(f"{path}: is a pack: unpack it first (tar xzf), and replay the directory")
    if not path.is_dir():
        return path
    if not (path / IN_BUNDLE).exists():
        raise ConfigError(f"{path}: is no bundle: there is no {IN_BUNDLE} in it")
    return path / IN_BUNDLE


def lines_of(path: Path, most: int = MOST_UNPACKED) -> Iterator[bytes]:
    """Yield the whole lines of a file; of one that ends in `.gz` up to `most` bytes, and those before it is cut short.

    Raises ConfigError that names the file, and the line where there is one.
    """
    packed, number = path.suffix == ".gz", 0
    try:
        with _opened(path, packed=packed) as file:
            for number, text in enumerate(iter(partial(file.readline, LONGEST_LINE), b""), 1):
                if len(text) == LONGEST_LINE:
                    raise ConfigError(f"{path}: line {number}: is no snapshot: longer than {LONGEST_LINE} bytes")
                if packed and (most := most - len(text)) < 0:
                    raise ConfigError(
                        f"{path}: line {number}: holds more than can be unpacked here; unpack it yourself"
                    )
                if text.endswith(b"\n"):
                    yield text
    except EOFError:
        return  # whoever packed it was stopped; the lines up to there are whole
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ConfigError(f"{path}: line {number + 1}: cannot be unpacked: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None


def _opened(path: Path, *, packed: bool) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path)) if packed else path.open("rb")
