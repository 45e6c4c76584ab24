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

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder

from stallwatch import __version__
from stallwatch.monitor import COLLECTORS
from stallwatch.notify.tally import Tally
from stallwatch.ownfamilies import own_families
from stallwatch.serverfamilies import server_families
from stallwatch.snapshot import Family
from stallwatch.view import View

logger = logging.getLogger("stallwatch.exposition")

END = b"# EOF\n"
ASKED_LATELY = 120.0
MOST_SERIES = 25_000  # of one collector

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
_ESCAPINGS = ("underscores", "allow-utf-8", "dots", "values")
FORMATS = frozenset(
    choose_encoder(f"{kind}; escaping={escaping}")[1]
    for kind, escaping in product(("", OPENMETRICS, "text/plain; version=1.0.0"), _ESCAPINGS)
)
"""The content types that there are: a page is kept for each, so a client must not be able to make up others."""


def chosen(accept: str) -> tuple[Callable[..., bytes], str]:
    """Return the encoder that an Accept header prefers and its content type, whatever stands in the header."""
    try:
        encoder, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is none
        return choose_encoder("")
    if content_type in FORMATS:
        return encoder, content_type
    return choose_encoder(OPENMETRICS if "openmetrics" in content_type else "")


class _Families:
    """What prometheus_client's encoders ask: a registry is anything with collect()."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families, self.dropped = bounded(families)

    def collect(self) -> Iterable[Metric]:
        return [metric(family) for family in self._families if family.samples]


def bounded(families: Iterable[Family], most: int = MOST_SERIES) -> tuple[list[Family], int]:
    """Return the families with no more series than one collector may state, and how many are left out."""
    kept, dropped = [], 0
    for family in families:
        fits = family if len(family.samples) <= most else replace(family, samples=family.samples[: max(0, most)])
        most -= len(fits.samples)
        dropped += len(family.samples) - len(fits.samples)
        kept.append(fits)
    return kept, dropped


def metric(family: Family) -> Metric:
    """Return a family as prometheus_client knows it; what is there twice is stated once, and a negative count not."""
    built = Metric(
        family.name.removesuffix("_total") if family.kind == "counter" else family.name, family.help, family.kind
    )
    seen: set[tuple[str, ...]] = set()
    for values, value in family.samples:
        if values not in seen and not (value < 0 and family.kind == "counter"):
            seen.add(values)
            built.add_sample(family.name, dict(zip(family.labels, values, strict=True)), value)
    return built


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
        self._asked: dict[str, tuple[str, float]] = {}  # content type -> an Accept header that chooses it, when
        self._pages: dict[str, Page] = {}
        self._chunks: dict[tuple[str, str], _Chunk] = {}
        self._broken: set[str] = set()
        self._dropped: Counter[str] = Counter()
        self._cut: set[str] = set()

    def publish(self, view: View) -> None:
        """Take a new view, and render it for those who asked of late."""
        self._view = view
        lately = view.snapshot.moment.monotonic - ASKED_LATELY
        self._asked = {kind: asked for kind, asked in self._asked.items() if asked[1] >= lately}
        self._pages = {kind: self._render(accept) for kind, (accept, _) in self._asked.items()}

    def page(self, accept: str) -> Page:
        """Return the scrape in the format that an Accept header prefers."""
        _, content_type = chosen(accept)
        self._asked[content_type] = (accept, time.monotonic())
        if content_type not in self._pages:
            self._pages[content_type] = self._render(accept)
        return self._pages[content_type]

    def _render(self, accept: str) -> Page:
        encoder, content_type = chosen(accept)
        body = b"".join(self._chunk(encoder, content_type, *group).removesuffix(END) for group in self.groups())
        if "openmetrics" in content_type:
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
        self,
        encoder: Callable[..., bytes],
        content_type: str,
        name: str,
        source: tuple[object, ...],
        families: Callable[[], Iterable[Family]],
    ) -> bytes:
        known = self._chunks.get((content_type, name))
        if known and len(known.source) == len(source) and all(map(_same, known.source, source)):
            return known.text
        try:
            stated = _Families(families())
            text = encoder(stated)
        except Exception:  # what one group cannot say must not silence the others
            if name not in self._broken:
                logger.exception("cannot be published", extra={"collector": name})
            self._broken.add(name)
            return b""
        self._broken.discard(name)
        self._note_dropped(name, stated.dropped)
        self._chunks[content_type, name] = _Chunk(source, text)
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
