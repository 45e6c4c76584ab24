"""Where do bundles of evidence lie, how are they written, found again, and thrown away?

A bundle is a directory with a `manifest.json`; only such directories are ever listed or removed. One is written under
another name, renamed once it is whole, and renamed again before it is removed, so that whoever is killed meanwhile
leaves only what the next one clears away. Two exporters may keep theirs in one directory. Only the exporter's own user
may look into it.
"""

import errno
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from stallwatch.keeping import usual_file
from stallwatch.plainfile import read_plain
from stallwatch.sections import EvidenceConfig
from stallwatch.view import Bundle

logger = logging.getLogger("stallwatch.evidence")

MANIFEST = "manifest.json"
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


def directory_of(config: EvidenceConfig, environ: Mapping[str, str]) -> Path:
    """Return where bundles lie; unless configured, beside the file with what a restart must not forget."""
    return Path(config.directory) if config.directory else usual_file(environ).parent / "evidence"


def name_of(server: str, at: float) -> str:
    """Return the name of a bundle: when it was gathered (UTC), and of which server."""
    letters = re.sub(r"[^A-Za-z0-9._-]", "-", server)[:64]
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(at))}-{letters}"


def write(directory: Path, name: str, files: Mapping[str, bytes]) -> str:
    """Write a bundle and return its name, with a number where that name is taken; raises OSError."""
    make(directory)
    part = _part(directory, name)
    try:
        for file, data in files.items():
            with open(os.open(part / file, _WRITE, 0o600), "wb") as handle:  # noqa: PTH123 a descriptor is no path
                handle.write(data)
                handle.flush()
                os.fsync(handle.fileno())
        return _named(part, name)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _part(directory: Path, name: str) -> Path:
    """Make a directory of our own, which nobody else takes for a bundle."""
    return Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=".part", dir=directory))


def _named(part: Path, name: str) -> str:
    """Give a whole bundle its name, or that name with a number; another exporter may take one at the same time."""
    for number in range(1, 100):
        final = name if number == 1 else f"{name}-{number}"
        if os.path.lexists(part.with_name(final)):
            continue
        try:
            part.rename(part.with_name(final))
        except OSError as error:
            if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
                raise
        else:
            return final
    raise FileExistsError(errno.EEXIST, "all names are taken", str(part.with_name(name)))


def make(directory: Path) -> None:
    """Make the directory; raises OSError where it is another's, who could put links into it."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if status.st_uid not in {os.geteuid(), 0} or status.st_mode & stat.S_IWOTH:
        raise PermissionError(None, "others may write into it", str(directory))


def bundles(directory: Path) -> list[Bundle]:
    """List the bundles, oldest first; empty where there is no such directory. Raises OSError where it is unreadable."""
    return [Bundle(path.name, one.server, one.at, one.incarnation) for path, one in manifests(directory)]


def manifests(directory: Path) -> list[tuple[Path, Manifest]]:
    """List the bundles by where they lie, each with what it says of itself; as `bundles` does it."""
    found = [(path, manifest) for path in paths(directory) if (manifest := read_manifest(path))]
    return sorted(found, key=lambda one: (one[1].at, one[0].name))


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
        return msgspec.json.decode(read(bundle / MANIFEST, LARGEST_MANIFEST), type=Manifest)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None


def read(path: Path, most: int) -> bytes:
    """Return the first `most` bytes of a file of a bundle; raises OSError where it is none, but a link or a pipe."""
    try:
        return read_plain(path, most, links=False)
    except ValueError:
        raise OSError(errno.EINVAL, "is no regular file", str(path)) from None


def size_of(bundle: Path) -> int:
    """Return how many bytes the files of a bundle hold; nothing once it is gone."""
    size = 0
    with suppress(OSError):
        for path in bundle.iterdir():
            size += path.lstat().st_size
    return size


def prune(directory: Path, keep: int, most_bytes: int, written: str = "") -> list[Bundle]:
    """Remove the oldest bundles beyond a count and an amount of bytes, and return those that are left, oldest first.

    The one that was just written, or else the newest, always stays. One that is of a later time than it was written
    before the clock was set back, so that it counts as older. What cannot be removed stays, and is said.
    """
    clear(directory)
    known = bundles(directory)
    now = next((one.at for one in known if one.name == written), float("inf"))
    known.sort(key=lambda one: (one.name == written, one.at <= now))
    sizes = {bundle.name: size_of(directory / bundle.name) for bundle in known}
    count, size, left = len(known), sum(sizes.values()), []
    for bundle in known:
        if (
            count > 1
            and (count > keep or size > most_bytes)
            and bundle is not known[-1]
            and _removed(directory, bundle)
        ):
            count, size = count - 1, size - sizes[bundle.name]
        else:
            left.append(bundle)
    return left


def clear(directory: Path) -> None:
    """Remove what somebody who was killed left unfinished; what is young may be another's who is still at it."""
    with suppress(FileNotFoundError):
        for path in directory.iterdir():
            if _PART.fullmatch(path.name) and not path.is_symlink() and _is_old(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_old(path: Path) -> bool:
    try:
        return abs(time.time() - path.stat().st_mtime) > UNFINISHED
    except OSError:
        return False  # whoever was at it is done


def _removed(directory: Path, bundle: Bundle) -> bool:
    """Remove a bundle and tell whether it is gone; one that another exporter removes at the same time is."""
    part = directory / f".{bundle.name}.removed.part"
    shutil.rmtree(part, ignore_errors=True)  # of one that was killed
    try:
        (directory / bundle.name).rename(part)
    except FileNotFoundError:
        return True
    except OSError as error:
        extra = {"bundle": bundle.name, "error": error.strerror}
        logger.warning("evidence cannot be thrown away", extra=extra)
        return False
    shutil.rmtree(part, ignore_errors=True)
    return True
