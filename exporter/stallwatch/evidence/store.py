"""Where do bundles of evidence lie, how are they written, found again, and thrown away?

A bundle is a directory with a `manifest.json`; only such directories are ever listed or removed. One is written under
another name and renamed once it is whole. Only the exporter's own user may look into it.
"""

import os
import re
import shutil
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from stallwatch.keeping import usual_file
from stallwatch.view import Bundle

MANIFEST = "manifest.json"
RECORDING = "recording.jsonl.gz"
SUMMARY = "summary.md"
LARGEST_MANIFEST = 1 << 20
UNFINISHED = 600.0
NAME = re.compile(r"\d{8}T\d{6}Z-[A-Za-z0-9._-]{1,80}")
_PART = re.compile(rf"\.{NAME.pattern}\.part")
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class SourceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What one source gave: its file, in how many seconds, how much was left out, and why it or a part is missing."""

    source: str
    file: str | None
    seconds: float
    dropped: int = 0
    missing: tuple[str, ...] = ()


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a bundle is of; times are Unix seconds."""

    stallwatch: str
    server: str
    incarnation: str
    node: str
    at: float
    begun: float
    verdict: str
    signature: str
    why: str
    reason: str = ""
    sources: tuple[SourceEntry, ...] = ()


def usual_directory(environ: Mapping[str, str]) -> Path:
    """Return where bundles lie unless configured: beside the file with what a restart must not forget."""
    return usual_file(environ).parent / "evidence"


def name_of(server: str, at: float) -> str:
    """Return the name of a bundle: when it was gathered (UTC), and of which server."""
    letters = re.sub(r"[^A-Za-z0-9._-]", "-", server)[:64]
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(at))}-{letters}"


def write(directory: Path, name: str, files: Mapping[str, bytes]) -> str:
    """Write a bundle and return its name, with a number where that name is taken; raises OSError."""
    _make(directory)
    part = directory / f".{name}.part"
    shutil.rmtree(part, ignore_errors=True)  # of one that was killed
    part.mkdir(mode=0o700)
    try:
        for file, data in files.items():
            with open(os.open(part / file, _WRITE, 0o600), "wb") as handle:  # noqa: PTH123 a descriptor is no path
                handle.write(data)
                handle.flush()
                os.fsync(handle.fileno())
        final = name
        for number in range(2, 100):
            if not os.path.lexists(directory / final):
                break
            final = f"{name}-{number}"
        part.rename(directory / final)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return final


def _make(directory: Path) -> None:
    """Make the directory; raises OSError where it is another's, who could put links into it."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if status.st_uid not in {os.geteuid(), 0} or status.st_mode & stat.S_IWOTH:
        raise PermissionError(None, "others may write into it", str(directory))


def bundles(directory: Path) -> list[Bundle]:
    """List the bundles, oldest first; empty where there is no such directory. Raises OSError where it is unreadable."""
    found = [(path, manifest) for path in paths(directory) if (manifest := read_manifest(path))]
    listed = [Bundle(path.name, one.server, one.at, one.incarnation) for path, one in found]
    return sorted(listed, key=lambda bundle: (bundle.at, bundle.name))


def paths(directory: Path) -> list[Path]:
    """List the directories that are named as bundles are."""
    try:
        entries = list(directory.iterdir())
    except FileNotFoundError:
        return []
    return [path for path in entries if NAME.fullmatch(path.name) and not path.is_symlink() and path.is_dir()]


def read_manifest(bundle: Path) -> Manifest | None:
    """Return what a bundle says of itself, None where that cannot be read."""
    try:
        with (bundle / MANIFEST).open("rb") as file:
            return msgspec.json.decode(file.read(LARGEST_MANIFEST), type=Manifest)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None


def size_of(bundle: Path) -> int:
    """Return how many bytes the files of a bundle hold."""
    size = 0
    for path in bundle.iterdir():
        with suppress(OSError):
            size += path.lstat().st_size
    return size


def prune(directory: Path, keep: int, most_bytes: int) -> list[Bundle]:
    """Remove the oldest bundles beyond a count and an amount of bytes, and return those that are left.

    The newest one always stays. What a writer that was killed left unfinished goes as well; one that is young may be
    another's who is still at it.
    """
    for path in directory.iterdir():
        if _PART.fullmatch(path.name) and not path.is_symlink() and time.time() - path.stat().st_mtime > UNFINISHED:
            shutil.rmtree(path, ignore_errors=True)
    known = bundles(directory)
    sizes = {bundle.name: size_of(directory / bundle.name) for bundle in known}
    while len(known) > 1 and (len(known) > keep or sum(sizes[one.name] for one in known) > most_bytes):
        oldest, *known = known
        shutil.rmtree(directory / oldest.name)
    return known
