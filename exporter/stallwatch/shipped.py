"""What comes with this version beside the package, and how is it written out? Rules, runbooks, dashboards."""

import sys
from pathlib import Path

FOLDERS = ("alerts", "grafana/dashboards", "grafana/provisioning")


class ConflictError(Exception):
    """Files of the folder differ from those that would be written; `paths` names them."""

    def __init__(self, paths: list[Path]) -> None:
        super().__init__(", ".join(map(str, paths)))
        self.paths = paths


def shipped_folder(folder: str, package: Path = Path(__file__).parent) -> Path:
    """Return the folder of this name: of the installed wheel, else of the checkout that the package runs from."""
    packaged = package / "bundle" / folder
    return packaged if packaged.is_dir() else package.parents[1] / folder


def shipped_files() -> dict[Path, bytes]:
    """Return what is written out: path below the folder that is asked for -> content."""
    found = [(Path(name), shipped_folder(name)) for name in FOLDERS]
    return {
        name / path.relative_to(root): path.read_bytes()
        for name, root in found
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def write_out(directory: Path, *, force: bool = False) -> tuple[int, int]:
    """Write everything below a folder; return how many files were new or changed, and how many are there now.

    The folder is made where it is missing. A file that is there already and differs is overwritten only by `force`;
    else nothing at all is written and ConflictError names those files. Raises OSError where it cannot be written.
    """
    files = shipped_files()
    changed = [path for path, content in files.items() if _content(directory / path) != content]
    differing = [path for path in changed if (directory / path).exists()]
    if differing and not force:
        raise ConflictError(differing)
    for path in changed:
        _write(directory / path, files[path])
    return len(changed), len(files)


def bundle(directory: Path, *, force: bool = False) -> int:
    """Write everything out, say what was done, and return the exit code."""
    try:
        changed, there = write_out(directory, force=force)
    except ConflictError as error:
        names = "".join(f"\n  {path}" for path in error.paths)
        sys.stderr.write(f"stallwatch bundle: nothing is written; {directory} has other versions of:{names}\n")
        sys.stderr.write("--force overwrites them\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"stallwatch bundle: {error.filename}: {error.strerror}\n")
        return 1
    sys.stdout.write(f"{directory}: {there} files, {changed} of them new or changed\n")
    return 0


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")  # a Prometheus that reads meanwhile never sees half a file
    part.write_bytes(content)
    part.replace(path)
