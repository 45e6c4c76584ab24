"""How does a bundle become one file for a bug report? Redacted once more, with the sums of its files."""

import gzip
import hashlib
import io
import os
import tarfile
from contextlib import suppress
from pathlib import Path

import msgspec

from stallwatch.config import ConfigError
from stallwatch.evidence import store
from stallwatch.recordingfile import lines_of
from stallwatch.redaction import redact
from stallwatch.redaction import redacted as redacted_data

LARGEST_FILE = 256 << 20
SUMS = "SHA256SUMS"
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def pack(bundle: Path, target: Path) -> list[str]:
    """Write the bundle to a new .tar.gz and return the names of its files; raises ConfigError, and leaves no half."""
    files = {path.name: _redacted(path) for path in _files_of(bundle)}
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())
    files[SUMS] = sums.encode()
    manifest = store.read_manifest(bundle)
    try:
        with open(os.open(target, _WRITE, 0o600), "wb") as file:  # noqa: PTH123 a descriptor is no path
            _archive(file, bundle.name, files, manifest.at if manifest else 0.0)
    except FileExistsError:
        raise ConfigError(f"{target}: is there already") from None
    except OSError as error:
        with suppress(OSError):
            target.unlink()
        raise ConfigError(f"{target}: cannot be written: {error.strerror}") from None
    return list(files)


def _files_of(bundle: Path) -> list[Path]:
    try:
        return [path for path in sorted(bundle.iterdir()) if path.is_file() and not path.is_symlink()]
    except OSError as error:
        raise ConfigError(f"{bundle}: cannot be packed: {error.strerror}") from None


def _archive(file: io.BufferedWriter, folder: str, files: dict[str, bytes], at: float) -> None:
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(at), 0o600
            archive.addfile(entry, io.BytesIO(data))


def _redacted(path: Path) -> bytes:
    """Return what a file holds, redacted by what it is; raises ConfigError where it is not what its name says."""
    try:
        if path.name.endswith(".jsonl.gz"):
            return _recording(path)
        return (_json if path.name.endswith(".json") else _text)(_read(path))
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be packed: {error}") from None


def _read(path: Path) -> bytes:
    data = store.read(path, LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise ValueError(f"longer than {LARGEST_FILE} bytes")
    return data


def _text(data: bytes) -> bytes:
    return redact(data.decode(errors="replace")).encode(errors="replace")


def _json(data: bytes) -> bytes:
    return msgspec.json.format(_line(data), indent=1) + b"\n"


def _line(data: bytes) -> bytes:
    return msgspec.json.encode(redacted_data(msgspec.json.decode(data)))


def _recording(path: Path) -> bytes:
    """Return a recording whose every line is redacted; a last line that was cut short is left out."""
    packed = io.BytesIO()
    with gzip.open(packed, "wb") as out:
        for line in lines_of(path):
            out.write(_line(line) + b"\n")
    return packed.getvalue()
