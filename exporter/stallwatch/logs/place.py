"""Where is a log, and which files beside it had its name before?

A path that was found at a watched process belongs to that process, which may put a link there to a file that it must
not read itself. So such a path is followed below the root of the process and over no link: the kernel named it without
any. A path that is configured leads wherever it does for the exporter, as those to the logs of a kubelet do over links.
"""

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice

from stallwatch.node import inside

JOURNAL = "journal:"
"""So begins what names lines of the node's journal, and no file."""
MOST_SIBLINGS = 4096
_MOST_ENTRIES = 100_000

_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4")
_ROTATED = re.compile(r"[._-](\d[\w.:+-]*|old|bak|backup|prev|previous)")
"""What rotation puts behind a name: a number, a date, a word. Another server's log may begin with the same name."""


@dataclass(frozen=True, slots=True)
class Place:
    """A path and the root it begins with: none for a configured path, all of it where only that one file is meant."""

    path: str
    root: str = ""

    def held(self) -> AbstractContextManager[int]:
        """Hold what is there now, without opening it; raises OSError."""
        return inside.held(self.root, self.path.removeprefix(self.root), links=not self.root)

    def siblings(self) -> dict[str, os.stat_result]:
        """Return the files of its folder that are named as it is once rotated; empty where they cannot be seen."""
        found: dict[str, os.stat_result] = {}
        if self.root == self.path:
            return found
        with suppress(OSError), self._folder() as (folder, name), os.scandir(folder) as entries:
            alike = (
                entry
                for entry in islice(entries, _MOST_ENTRIES)
                if entry.name.startswith(name) and _ROTATED.fullmatch(entry.name, len(name))
            )
            for entry in islice(alike, MOST_SIBLINGS):
                if not entry.name.endswith(_COMPRESSED):
                    with suppress(FileNotFoundError):
                        found[entry.name] = entry.stat(follow_symlinks=False)
        return found

    def open_sibling(self, name: str) -> int:
        """Open one of those files; raises OSError where it is no regular file any more."""
        with self._folder() as (folder, _), inside.held_itself(name, folder) as handle:
            return inside.open_regular(handle)

    @contextmanager
    def _folder(self) -> Iterator[tuple[int, str]]:
        path = self.path.removeprefix(self.root) if self.root else os.path.realpath(self.path)
        folder, name = os.path.split(path)
        with inside.held(self.root, folder or "/", links=not self.root) as handle:
            descriptor = inside.open_folder(handle)
            try:
                yield descriptor, name
            finally:
                os.close(descriptor)
