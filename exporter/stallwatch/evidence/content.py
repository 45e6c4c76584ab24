"""What stands in a bundle? One file per source, the verdict, the snapshot, the last half hour, and a summary of it all.

Each text goes through `redact` once more; the recording does not, which holds what is also published.
"""

import socket
from dataclasses import dataclass
from typing import Any

import msgspec

from stallwatch import __version__
from stallwatch.evidence import store
from stallwatch.evidence.gathering import Found
from stallwatch.evidence.incidents import Incident
from stallwatch.evidence.store import Manifest, SourceEntry
from stallwatch.evidence.summary import summary, text
from stallwatch.recording import line_of
from stallwatch.recordingfile import IN_BUNDLE
from stallwatch.redaction import redact, redacted
from stallwatch.redaction import told as named
from stallwatch.report import server_report
from stallwatch.verdict import foreseen
from stallwatch.view import View

LARGEST_SOURCE = 8 << 20


@dataclass(frozen=True, slots=True)
class Content:
    """All that is known of one incident, to be made into files."""

    incident: Incident
    view: View
    found: tuple[Found, ...]
    recording: bytes

    @property
    def name(self) -> str:
        """Return what the bundle is to be called."""
        return store.name_of(self.incident.past.server.name, self.view.snapshot.moment.unix)

    def files(self) -> dict[str, bytes]:
        """Return the files of the bundle by name."""
        sources = {one.source: _plain(one) for one in self.found if one.reading}
        texts = {f"{name}.json": _json(value) for name, value in sources.items()}
        kept = {name: text for name, text in texts.items() if len(text) <= LARGEST_SOURCE}
        told = redacted(server_report(self.incident.past, self.view))
        manifest = self._manifest(kept)
        return {
            store.SUMMARY: _summary(manifest, told, sources).encode(errors="replace"),
            "verdict.json": _json(told),
            "snapshot.json": _json(redacted(msgspec.json.decode(line_of(self.view.snapshot)))),
            **kept,
            **({IN_BUNDLE: self.recording} if self.recording else {}),
            store.MANIFEST: _json(msgspec.to_builtins(manifest)),
        }

    def _manifest(self, kept: dict[str, bytes]) -> Manifest:
        incident, verdict, moment = self.incident, self.incident.verdict, self.view.snapshot.moment
        return Manifest(
            stallwatch=__version__,
            server=incident.past.server.name,
            incarnation=incident.past.server.incarnation,
            node=socket.gethostname(),
            at=round(moment.unix, 3),
            begun=round(incident.begun, 3),
            verdict=verdict.state,
            signature=foreseen(incident.past, verdict, moment),
            why=incident.why,
            reason=redact(verdict.reason),
            sources=tuple(_entry(one, kept) for one in self.found),
        )


def _summary(manifest: Manifest, told: dict[str, Any], sources: dict[str, Any]) -> str:
    """Return the summary; a fault of ours in it must not cost what was gathered."""
    try:
        return summary(manifest, told, sources)
    except Exception as error:  # noqa: BLE001 what is wrong is said in its place
        return f"# {text(manifest.server)}: {manifest.verdict}\n\nNo summary could be made: {named(error)}.\n"


def _entry(found: Found, kept: dict[str, bytes]) -> SourceEntry:
    file = f"{found.source}.json"
    missing = [f"{one.reason}: {one.detail}" if one.detail else one.reason for one in found.failures]
    if found.reading and file not in kept:
        missing.append(f"too_large: more than {LARGEST_SOURCE} bytes")
    return SourceEntry(
        source=found.source,
        file=file if file in kept else None,
        seconds=found.seconds,
        dropped=found.reading.dropped if found.reading else 0,
        missing=tuple(redact(why) for why in missing),
    )


def _plain(found: Found) -> Any:
    return redacted(msgspec.to_builtins(found.reading))


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
