r"""What did the server write, where a container runtime put each line into a form of its own?

Docker's json-file holds one JSON object per line, `{"log":"text\n","stream":"stderr","time":"..."}`. The form of the
CRI (containerd, CRI-O, and Podman's k8s-file) is `2026-01-01T00:00:00.000000000Z stderr F text`. Both cut what is
longer than some 16 KiB: in the first such a part has no newline at its end, in the second it is marked P. Parts are
joined, each stream by itself. A line that is not of the form is left as it is.
"""

import json
import re
from collections.abc import Callable

LONGEST_JOINED = 64 << 10
LONGEST_WRAPPED = 256 << 10
"""Room for a part of 16 KiB of which each byte became an escape of six."""
START = 80
"""So many bytes of a line tell of which form it is."""

_JSON_START = b'{"log":"'
_JSON = re.compile(rb'\{"log":"([^"\\]*(?:\\.[^"\\]*)*)","stream":"(stdout|stderr)"')
_CRI_START = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) (stdout|stderr) ([FP])(?::[^ ]{0,100})?"
_CRI = re.compile(rb"%s(?: (.*))?" % _CRI_START, re.DOTALL)

Taken = tuple[bytes, bytes, bool]
"""A stream, what is written to it, and whether its line ends there."""
Form = Callable[[bytes], Taken | None]


def form_of(start: bytes) -> Form | None:
    """Tell by how a line begins which form it and those after it have, None for lines as a server writes them."""
    if start.startswith(_JSON_START):
        return _of_json
    return _of_cri if start[:1].isdigit() and _CRI.match(start) else None


class Joiner:
    """Takes lines out of their form and joins what was cut."""

    def __init__(self) -> None:
        self._parts: dict[bytes, bytes] = {}  # by stream

    def forget(self) -> None:
        """Forget the parts of lines whose end has not come."""
        self._parts.clear()

    def join(self, lines: bytes, form: Form) -> bytes:
        """Return the lines that end in these whole lines of a file."""
        return b"".join(self._joined(line, form(line)) for line in lines.removesuffix(b"\n").split(b"\n"))

    def _joined(self, line: bytes, taken: Taken | None) -> bytes:
        if taken is None:
            return line[:LONGEST_JOINED] + b"\n"
        stream, text, ends = taken
        text = (self._parts.pop(stream, b"") + text)[:LONGEST_JOINED]
        if ends:
            return text + b"\n"
        self._parts[stream] = text
        return b""


def _of_json(line: bytes) -> Taken | None:
    found = _JSON.match(line)
    if found is None:
        return None
    text, stream = found.groups()
    if b"\\" not in text:
        return stream, text, False
    if text.endswith(b"\\n") and b"\\" not in text[:-2]:  # as nearly all are
        return stream, text[:-2], True
    text = _unescaped(text)
    return stream, text.removesuffix(b"\n"), text.endswith(b"\n")


def _of_cri(line: bytes) -> Taken | None:
    found = _CRI.match(line)
    return (found[1], found[3] or b"", found[2] == b"F") if found else None


def _unescaped(text: bytes) -> bytes:
    try:
        whole: str = json.loads(f'"{text.decode(errors="replace")}"', strict=False)
    except ValueError:
        return text
    return whole.encode(errors="replace")
