"""What do the files around a launcher tell: its configuration file, its environment, the version it runs?"""

import re
from collections.abc import Iterable

from stallwatch.engines.command_line import interpreter
from stallwatch.engines.engine import Argv
from stallwatch.node import inside
from stallwatch.node.procfs import Procfs
from stallwatch.redaction import clean

CONFIG_LIMIT = 64 << 10
VARIABLES = ("CUDA_VISIBLE_DEVICES", "VIRTUAL_ENV", "CONDA_PREFIX", "JOURNAL_STREAM", "NVIDIA_VISIBLE_DEVICES")


class QuarantinedError(Exception):
    """A read that never returned before, and is not tried now."""


def config_text(procfs: Procfs, pid: int, path: str) -> str:
    """Read the file that a launcher's `--config` names, as that process sees it; ValueError says what is wrong."""
    if not path.startswith("/"):
        path = f"{_working_directory(procfs, pid)}/{path}"
    root = procfs.path(pid, "root")
    guard(procfs, root + path)
    try:
        # What the process may not read itself it could not have read: it would be us who shows it.
        return inside.read_text(root, path, CONFIG_LIMIT, lambda file: procfs.may_read(pid, file))
    except OSError as error:
        raise ValueError(error.strerror) from error


def version(procfs: Procfs, pid: int, package: str, argv: Argv, variables: dict[str, str]) -> str:
    """Find the version of a package beside the interpreter that a launcher runs; empty where there is no telling."""
    pattern = re.compile(rf"{re.escape(package)}-([0-9][0-9A-Za-z.+]{{0,40}})\.dist-info")
    root = procfs.path(pid, "root")
    for prefix in dict.fromkeys(_prefixes(procfs, pid, argv, variables)):
        guard(procfs, f"{root}{prefix}/lib")
        for folder in _package_folders(root, prefix):
            found = next(filter(None, map(pattern.fullmatch, inside.list_names(root, folder))), None)
            if found:
                return found[1]
    return ""


def guard(procfs: Procfs, path: str) -> None:
    """Note that a path is about to be touched, since its file system may be dead; raises where that has hung before."""
    text = f"log {path}"
    if text in procfs.skip:
        raise QuarantinedError(clean(path))
    procfs.note(text)


def _working_directory(procfs: Procfs, pid: int) -> str:
    try:
        folder, root = procfs.link(pid, "cwd") or "/", procfs.link(pid, "root") or "/"
    except PermissionError as error:
        raise ValueError("its working directory cannot be read") from error
    # The kernel names the folder from our root, or from that of a container; below a chroot the way to it comes first.
    return folder.removeprefix(root) if root != "/" and f"{folder}/".startswith(f"{root}/") else folder


def _prefixes(procfs: Procfs, pid: int, argv: Argv, variables: dict[str, str]) -> Iterable[str]:
    try:
        program = procfs.link(pid, "exe") or ""
    except PermissionError:
        program = ""
    named = (variables.get("VIRTUAL_ENV", ""), variables.get("CONDA_PREFIX", ""))
    parents = (path.rpartition("/bin/")[0] for path in (interpreter(argv), *argv[:3], program))
    return (prefix for prefix in (*parents, *named, "/usr/local", "/usr") if prefix.startswith("/"))


def _package_folders(root: str, prefix: str) -> Iterable[str]:
    pythons = [name for name in inside.list_names(root, f"{prefix}/lib") if name.startswith("python3")]
    return (f"{prefix}/lib/{name}/{kind}-packages" for name in pythons for kind in ("site", "dist"))
