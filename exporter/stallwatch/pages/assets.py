"""Which files does the page need beside itself? Style, script and icons; their address changes when they do."""

import hashlib
from dataclasses import dataclass
from importlib import resources

from stallwatch.pages import verdicts

FOREVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it is served."""

    content_type: str
    body: bytes
    version: str

    def caching(self, asked: str | None) -> str:
        """Return how long an answer may be kept: for ever under the address that names this very content."""
        return FOREVER if asked == self.version else ASK_AGAIN


class Assets:
    """The files by name, read once."""

    def __init__(self) -> None:
        folder = resources.files("stallwatch.pages")
        found = {
            "style.css": _asset("text/css", (folder / "style.css").read_bytes()),
            "refresh.js": _asset("text/javascript", (folder / "refresh.js").read_bytes()),
        }
        icons = {f"{state}.svg": _asset("image/svg+xml", verdicts.icon(state).encode()) for state in verdicts.SHAPES}
        self.files = found | icons

    @property
    def version(self) -> str:
        """Return the version of all of them together: a page of another one is to be loaded anew."""
        return hashlib.sha256("".join(asset.version for asset in self.files.values()).encode()).hexdigest()[:12]

    def address(self, name: str) -> str:
        """Return where a file is served, relative to the page."""
        return f"assets/{name}?v={self.files[name].version}"


def _asset(content_type: str, body: bytes) -> Asset:
    return Asset(content_type, body, hashlib.sha256(body).hexdigest()[:12])
