"""What do the endpoints of a server answer, and what do its replicas do?"""

from collections.abc import Iterable, Sequence

from stallwatch.collectors.health import Probe
from stallwatch.pages import words
from stallwatch.pages.markup import Html, joined, named, tag
from stallwatch.past import Past, ReplicaPast
from stallwatch.snapshot import Moment
from stallwatch.wording import duration

ANSWERS = {
    "ok": "answers",
    "refused": "refuses connections",
    "timeout": "no answer in time",
    "reset": "resets the connection",
    "empty": "closes without an answer",
    "unauthorized": "asks for a key",
    "http_error": "answers with an error",
    "invalid": "answers no valid HTTP",
    "unreachable": "cannot be reached",
    "tls_error": "TLS fails",
}
ALIVE = frozenset({"ok", "unauthorized"})
PROVES = {"scheduler": "the scheduler answers", "http": "the web process answers"}
PROBE_COLUMNS = ("Answer", "A good one proves that", "Time", "Asked", "Last good answer", "Failed in a row")
REPLICA_COLUMNS = ("Running", "Waiting", "Last token", "Loop turned")


def table(key: str, past: Past, moment: Moment) -> Html:
    """Return the outcome of the last probe of each endpoint."""
    title = tag("h3", "Health by endpoint")
    if not past.probes:
        return joined(title, tag("p", "No endpoint of it has been asked.", class_="quiet"))
    # While a server starts, a port that is closed yet is nothing odd.
    rows = [_probe_row(probe, moment, starts=past.ready is False) for probe in past.probes]
    return joined(title, _table(f"{key}-health", f"Health of {past.server.name}", "Endpoint", PROBE_COLUMNS, rows))


def _probe_row(probe: Probe, moment: Moment, *, starts: bool) -> Html:
    alive = probe.result in ALIVE
    status = f" ({probe.status})" if probe.status is not None else ""
    answer = f"{'✓' if alive else '✕'} {ANSWERS.get(probe.result, words.plain(probe.result))}{status}"
    good = "never" if probe.last_success is None else _age(probe.last_success, moment)
    return tag(
        "tr",
        tag("th", named(probe.path), scope="row"),
        tag("td", answer, class_="alive" if alive else "failed"),
        tag("td", PROVES.get(probe.scope, probe.scope)),
        tag("td", f"{probe.latency:.1f} s", class_="number"),
        tag("td", _age(probe.at, moment)),
        tag("td", good),
        tag("td", probe.consecutive_failures, class_="number"),
        class_=None if alive or starts else "odd",
    )


def replica_table(key: str, past: Past, moment: Moment) -> Html | None:
    """Return what each data-parallel replica does, where there are several."""
    if len(past.replicas) < 2:
        return None
    rows = [_replica_row(replica, moment, stands=_stands(past, replica, moment)) for replica in past.replicas]
    title = tag("h3", "Data-parallel replicas")
    return joined(title, _table(f"{key}-replicas", f"Replicas of {past.server.name}", "Replica", REPLICA_COLUMNS, rows))


def _stands(past: Past, replica: ReplicaPast, moment: Moment) -> bool:
    """Tell whether a replica has had work for long and made no token since, or whether its loop has long not turned."""
    begins = [at for at in (replica.pending_since, replica.tokens_at) if at is not None]
    longest = moment.monotonic - past.limit("suspect")
    if len(begins) == 2 and max(begins) <= longest:
        return True
    return replica.pending_since is None and replica.heartbeat is not None and replica.heartbeat <= longest


def _replica_row(replica: ReplicaPast, moment: Moment, *, stands: bool) -> Html:
    counts = [words.NOT_READ if value is None else f"{value:.0f}" for value in (replica.running, replica.queued)]
    tokens = replica.tokens_at if replica.tokens_at is not None else replica.finished_at
    return tag(
        "tr",
        tag(
            "th",
            "DP",
            replica.dp_rank,
            (" ", tag("span", "◀ stands still", class_="flag")) if stands else None,
            scope="row",
        ),
        [tag("td", count, class_="number") for count in counts],
        [tag("td", words.NOT_READ if at is None else _age(at, moment)) for at in (tokens, replica.heartbeat)],
        class_="odd" if stands else None,
    )


def _age(at: float, moment: Moment) -> str:
    return f"{duration(moment.monotonic - at)} ago"


def _table(key: str, label: str, first: str, columns: Sequence[str], rows: Iterable[Html]) -> Html:
    head = tag("tr", tag("th", first, scope="col"), (tag("th", column, scope="col") for column in columns))
    inner = tag("table", tag("thead", head), tag("tbody", rows))
    return tag("div", inner, class_="scroll", id=key, role="region", tabindex=0, aria_label=label)
