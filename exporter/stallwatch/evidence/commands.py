"""The command `stallwatch evidence`: which bundles are kept, what does one tell, and how is it passed on?"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from stallwatch.config import ConfigError
from stallwatch.evidence import store
from stallwatch.evidence.packing import pack
from stallwatch.evidence.summary import summary
from stallwatch.redaction import clean
from stallwatch.terminal.layout import Row, printed, table, width_of
from stallwatch.wording import duration

COLUMNS = ("bundle", "server", "verdict", "signature", "gathered", "MB")
LONGEST_NAME = 100
LONGEST_LINE = 2000
LARGEST_FILE = 64 << 20
UNREADABLE = (
    ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError, msgspec.MsgspecError,
)  # fmt: skip
"""What can be wrong with the files of a bundle that another version wrote."""


def list_bundles(directory: Path, *, as_json: bool = False) -> int:
    """Print the bundles, oldest first."""
    found = _readable(directory)
    if as_json:
        told = [{"bundle": path.name, "path": str(path), **_facts(manifest)} for path, manifest in found]
        sys.stdout.write(f"{json.dumps({'directory': str(directory), 'bundles': told})}\n")
    elif not found:
        sys.stdout.write(f"No evidence is kept in {directory}.\n")
    else:
        rows = [_row(path, manifest) for path, manifest in found]
        sys.stdout.write(printed(table(COLUMNS, rows, width_of(sys.stdout), longest=LONGEST_NAME), sys.stdout))
    return 0


def show(directory: Path, wanted: str) -> int:
    """Print what a bundle tells, as this version reads it."""
    for line in text_of(found_bundle(directory, wanted)).splitlines():
        sys.stdout.write(f"{clean(line, LONGEST_LINE)}\n")
    return 0


def pack_bundle(directory: Path, wanted: str, output: Path | None) -> int:
    """Write a bundle to one file and say what to look at before it is passed on."""
    bundle = found_bundle(directory, wanted)
    target = output or Path(f"{bundle.name}.tar.gz")
    files = pack(bundle, target)
    sys.stdout.write(
        f"{target}: {len(files)} files. What looks like a secret is hidden; names of models, hosts and paths are not.\n"
    )
    return 0


def found_bundle(directory: Path, wanted: str) -> Path:
    """Return the bundle that is meant: a path, its name, or the latest of a server or of all; raises ConfigError."""
    path = Path(wanted)
    if wanted and (os.sep in wanted or path.exists()):
        if store.read_manifest(path) is None:
            raise ConfigError(f"{wanted}: {_why_unread(path)}")
        return path.resolve()
    meant = [path for path, manifest in _readable(directory) if wanted in {"", path.name, manifest.server}]
    if not meant:
        what = f"no bundle, nor a server of one, is called {wanted}" if wanted else "no evidence is kept"
        raise ConfigError(f"{directory}: {what} (stallwatch evidence list)")
    return meant[-1]


def _why_unread(path: Path) -> str:
    if path.name.endswith((".tar.gz", ".tgz")):
        return "is a pack: unpack it first (tar xzf), and show what is in it"
    try:
        (path / store.MANIFEST).open("rb").close()
    except PermissionError as error:
        return f"cannot be read: {error.strerror}"
    except OSError:
        return "is no bundle of evidence"
    return "is no bundle of evidence that this version knows"


def text_of(bundle: Path) -> str:
    """Return what a bundle tells; of one that this version cannot read, what the version that wrote it said."""
    manifest = store.read_manifest(bundle)
    try:
        told = _data(bundle / "verdict.json")
        names = [entry.file for entry in manifest.sources if entry.file] if manifest else []
        sources = {name.removesuffix(".json"): _data(bundle / Path(name).name) for name in names}
        assert manifest is not None  # noqa: S101 without one it would be no bundle
        return summary(manifest, told, sources)
    except UNREADABLE:
        return _text(bundle / store.SUMMARY)


def _data(path: Path) -> Any:
    return msgspec.json.decode(store.read(path, LARGEST_FILE))


def _text(path: Path) -> str:
    try:
        return store.read(path, LARGEST_FILE).decode(errors="replace")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _readable(directory: Path) -> list[tuple[Path, store.Manifest]]:
    try:
        return store.manifests(directory)
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be read: {error.strerror}") from None


def _facts(manifest: store.Manifest) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(manifest)
    return {key: value for key, value in plain.items() if key != "sources"}


def _row(path: Path, manifest: store.Manifest) -> Row:
    age = f"{duration(time.time() - manifest.at)} ago"
    size = f"{store.size_of(path) / 1e6:.1f}"
    return Row((path.name, manifest.server, manifest.verdict, manifest.signature, age, size))
