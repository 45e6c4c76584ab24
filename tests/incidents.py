"""Builders of views of servers in trouble and of bundles, for the tests of evidence."""

from dataclasses import replace

import msgspec

from pasts import NOW, a_past, moment, serving
from readings import NAME, a_server
from stallwatch.evidence import store
from stallwatch.evidence.store import MANIFEST, Manifest
from stallwatch.snapshot import Moment, Snapshot
from stallwatch.verdict import judge
from stallwatch.view import Bundle, Kept, View


def at(later):
    """Return the moment so many seconds after that at which pasts are judged."""
    now = moment()
    return Moment(now.unix + later, now.monotonic + later, now.boottime + later)


def hung(still, **fields):
    """Return the past of a server that has requests and has stood still for so long."""
    return serving(still=still, **fields)


def a_view(*pasts, later=0.0, kept=None):
    """Return the view of servers with these pasts, judged as they are."""
    now = at(later)
    verdicts = {past.server.name: judge(past, now) for past in pasts}
    snapshot = Snapshot(now, tuple(past.server for past in pasts))
    return View(snapshot, {past.server.name: past for past in pasts}, (), (), verdicts, kept=kept)


def bundle(at_unix, *, server=NAME, incarnation="", name="20270115T080000Z-sglang-30000"):
    """Return what is known of a bundle that is kept."""
    return Bundle(name, server, at_unix, incarnation)


def kept(*bundles):
    """Return evidence that is kept."""
    return Kept(len(bundles), {one.server: one for one in bundles})


def named(past, name):
    """Return the same past of a server of another name."""
    return replace(past, server=replace(past.server, name=name))


WHOLE = Manifest(
    stallwatch="1", server="sglang:30000", incarnation="a", node="n", at=1.0, begun=0.0, verdict="stalled",
    signature="cold_deadlock", why="",
)  # fmt: skip


def files(at=0.0, size=10, server="sglang:30000"):
    """Return the files of a small bundle."""
    manifest = msgspec.structs.replace(WHOLE, at=at, server=server)
    return {"summary.md": b"x" * size, MANIFEST: msgspec.json.encode(manifest)}


def written(directory, at, size=10, server="sglang:30000"):
    """Write a bundle and return its name."""
    return store.write(directory, store.name_of(server, at), files(at, size, server))


__all__ = [
    "NAME",
    "NOW",
    "WHOLE",
    "a_past",
    "a_server",
    "a_view",
    "at",
    "bundle",
    "files",
    "hung",
    "kept",
    "named",
    "written",
]
