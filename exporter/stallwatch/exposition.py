"""How does a view become what Prometheus reads?

Families are built anew from each view, so a server that has gone leaves nothing behind, and one collector's families
are rendered again only when its reading is a new one. The bytes are ready before a scrape asks for them.
"""

import gzip
import logging
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from prometheus_client.exposition import choose_encoder

from stallwatch import __version__
from stallwatch.encoding import END, encoded
from stallwatch.notify.tally import Tally
from stallwatch.ownfamilies import own_families
from stallwatch.serverfamilies import server_families
from stallwatch.signals import COLLECTORS
from stallwatch.snapshot import Family
from stallwatch.view import View

logger = logging.getLogger("stallwatch.exposition")

ASKED_LATELY = 120.0
MOST_SERIES = 25_000  # of one collector

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
_ESCAPINGS = ("underscores", "allow-utf-8", "dots", "values")
FORMATS = frozenset(
    choose_encoder(f"{kind}; escaping={escaping}")[1]
    for kind, escaping in product(("", OPENMETRICS, "text/plain; version=1.0.0"), _ESCAPINGS)
)
"""The content types that there are: a page is kept for each, so a client must not be able to make up others."""


def chosen(accept: str) -> str:
    """Return the content type that an Accept header prefers, whatever stands in the header."""
    try:
        content_type = choose_encoder(accept)[1]
    except (TypeError, ValueError):  # a version that is none
        content_type = ""
    if content_type in FORMATS:
        return content_type
    return choose_encoder(OPENMETRICS if "openmetrics" in content_type else "")[1]


def bounded(families: Iterable[Family], most: int = MOST_SERIES) -> tuple[list[Family], int]:
    """Return the families with no more series than one collector may state, and how many are left out."""
    kept, dropped = [], 0
    for family in families:
        fits = family if len(family.samples) <= most else replace(family, samples=family.samples[: max(0, most)])
        most -= len(fits.samples)
        dropped += len(family.samples) - len(fits.samples)
        kept.append(fits)
    return kept, dropped


@dataclass(frozen=True, slots=True)
class Page:
    """A rendered scrape."""

    content_type: str
    plain: bytes
    zipped: bytes


@dataclass(slots=True)
class _Chunk:
    """One collector's rendered families, and what they were rendered from."""

    source: tuple[object, ...]
    text: bytes


class Exposition:
    """The current scrape in every format that is asked for."""

    def __init__(
        self,
        view: View,
        *,
        reloaded: Callable[[], bool] = lambda: True,
        tally: Callable[[], Tally | None] = lambda: None,
    ) -> None:
        self._view = view
        self._reloaded = reloaded
        self._tally = tally
        self._asked: dict[str, float] = {}  # content type -> when
        self._pages: dict[str, Page] = {}
        self._chunks: dict[tuple[bool, str], _Chunk] = {}
        self._broken: set[str] = set()
        self._dropped: Counter[str] = Counter()
        self._cut: set[str] = set()

    def publish(self, view: View) -> None:
        """Take a new view, and render it for those who asked of late."""
        self._view = view
        lately = view.snapshot.moment.monotonic - ASKED_LATELY
        self._asked = {kind: asked for kind, asked in self._asked.items() if asked >= lately}
        self._pages = {kind: self._render(kind) for kind in self._asked}

    def page(self, accept: str) -> Page:
        """Return the scrape in the format that an Accept header prefers."""
        content_type = chosen(accept)
        self._asked[content_type] = time.monotonic()
        if content_type not in self._pages:
            self._pages[content_type] = self._render(content_type)
        return self._pages[content_type]

    def _render(self, content_type: str) -> Page:
        openmetrics = "openmetrics" in content_type
        body = b"".join(self._chunk(*group, openmetrics=openmetrics) for group in self.groups())
        if openmetrics:
            body += END
        return Page(content_type, body, gzip.compress(body, compresslevel=1))

    def groups(self) -> Iterable[tuple[str, tuple[object, ...], Callable[[], Iterable[Family]]]]:
        """Yield the name of each group of families, what they are made of, and what makes them."""
        view, moment = self._view, self._view.snapshot.moment
        offset = round(moment.unix - moment.monotonic, 2)
        for collector in COLLECTORS:
            readings = view.snapshot.all(collector.reading)
            yield collector.name, (offset, *readings), _bound(collector.families, readings, view)
        yield "server", (view,), lambda: server_families(view)
        own = partial(own_families, view, dropped=self._dropped)
        yield "own", (view,), lambda: own(reloaded=self._reloaded(), tally=self._tally())
        yield "build", (), build_families

    def _chunk(
        self, name: str, source: tuple[object, ...], families: Callable[[], Iterable[Family]], *, openmetrics: bool
    ) -> bytes:
        known = self._chunks.get((openmetrics, name))
        if known and len(known.source) == len(source) and all(map(_same, known.source, source)):
            return known.text
        try:
            stated, dropped = bounded(families())
            text = encoded(stated, openmetrics=openmetrics)
        except Exception:  # what one group cannot say must not silence the others
            if name not in self._broken:
                logger.exception("cannot be published", extra={"collector": name})
            self._broken.add(name)
            return b""
        self._broken.discard(name)
        self._note_dropped(name, dropped)
        self._chunks[openmetrics, name] = _Chunk(source, text)
        return text

    def _note_dropped(self, name: str, count: int) -> None:
        if not count:
            self._cut.discard(name)
            return
        self._dropped[name] += count
        if name not in self._cut:
            logger.warning("too many series", extra={"collector": name, "left_out": count})
        self._cut.add(name)


def _same(one: object, other: object) -> bool:
    return one is other or (isinstance(one, float) and one == other)


def _bound(
    families: Callable[..., Iterable[Family]], readings: Sequence[object], view: View
) -> Callable[[], Iterable[Family]]:
    return lambda: families(readings, view.snapshot.moment)


def build_families() -> Iterable[Family]:
    """Yield what does not change while the exporter runs."""
    labels = ("version", "python_version")
    sample = ((__version__, platform.python_version()), 1.0)
    yield Family("stallwatch_build_info", "1, with the version of the exporter.", "gauge", labels, (sample,))
