"""A disk of 64 KiB that a test may fill."""

import os
import subprocess
from contextlib import contextmanager

import pytest


@contextmanager
def small_disk(path):
    """Mount a file system of 64 KiB there, and a function that fills it up to the last byte."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)], check=True)

    def fill():
        try:
            with (path / "ballast").open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4096)
        except OSError:
            return path / "ballast"

    try:
        yield fill
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
