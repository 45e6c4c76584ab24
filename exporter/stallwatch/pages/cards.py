"""What is shown of one server? The verdict, why, since when, how its signals ran, and what the verdict rests on."""

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

from stallwatch import wording
from stallwatch.collectors.gpu import Gpu, GpuReading
from stallwatch.pages import probes, ranks, verdicts, words
from stallwatch.pages.markup import Html, joined, named, tag
from stallwatch.pages.sparklines import Mark, sparklines
from stallwatch.past import Past
from stallwatch.snapshot import Failure, Moment
from stallwatch.trends import HalfHour
from stallwatch.verdict import Verdict, foreseen
from stallwatch.view import Bundle, View, stands_still

ENGINES = {"sglang": "SGLang", "vllm": "vLLM"}
FEW_SERVERS = 2
"""Up to so many servers, what a verdict rests on is unfolded for all of them."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One server as it is shown."""

    past: Past
    verdict: Verdict
    moment: Moment
    half_hour: HalfHour | None
    evidence: Bundle | None = None

    @property
    def name(self) -> str:
        """Return its name."""
        return self.past.server.name

    @property
    def key(self) -> str:
        """Return the id of its card, with nothing in it that ends an id."""
        return anchor(self.name)


def anchor(name: str) -> str:
    """Return the id of the card of a server."""
    return f"server-{quote(name, safe=':', errors='replace')}"


def card(view: View, name: str, half_hour: HalfHour | None) -> Html:
    """Return the card of one server."""
    shown = Shown(view.pasts[name], view.verdicts[name], view.snapshot.moment, half_hour, view.evidence_of(name))
    state = shown.verdict.state
    troubled = state in verdicts.TROUBLED
    return tag(
        "article",
        tag("header", _heading(shown), _since(shown)),
        tag("p", shown.verdict.reason, class_="reason"),
        tag("div", _charts(shown, view), _facts(shown), class_="signals"),
        _rest(view, shown),
        class_=f"card v-{state}{' troubled' if troubled else ''}",
        id=shown.key,
        data_server=name,
        data_verdict=state,
        aria_labelledby=f"{shown.key}-h",
    )


def _heading(shown: Shown) -> Html:
    verdict, server = shown.verdict, shown.past.server
    badge = tag("span", verdicts.shape(verdict.state), tag("span", verdict.state), class_="badge")
    likely = foreseen(shown.past, verdict, shown.moment)
    kind = verdict.signature or (f"looks like {likely}" if likely else "")
    signature = tag("span", words.plain(kind), class_="signature") if kind else None
    engine = f"{ENGINES.get(server.engine, server.engine)} {server.version}".strip()
    model = named(server.launch.model) if server.launch.model else None
    parts = tuple(part for part in (engine, model, _sizes(shown.past)) if part)
    what = tag("p", [joined(" · " if n else None, part) for n, part in enumerate(parts)], class_="what")
    title = tag("h2", badge, " ", tag("span", named(shown.name), class_="name"), " ", signature, id=f"{shown.key}-h")
    return joined(title, what)


def _sizes(past: Past) -> str:
    launch = past.server.launch
    sizes = (("TP", launch.tp_size), ("PP", launch.pp_size), ("DP", launch.dp_size))
    parts = [f"{name} {size}" for name, size in sizes if size > 1]
    if launch.nnodes > 1:
        parts.append(f"node {launch.node_rank} of {launch.nnodes}")
    return " ".join(parts)


def _since(shown: Shown) -> Html:
    now, since = shown.moment.unix, shown.verdict.since
    length = tag("span", f"for {wording.duration(now - since)}", class_="length")
    return tag("p", length, tag("span", " since ", words.clock(since, now)), class_="since")


def _charts(shown: Shown, view: View) -> Html:
    if shown.half_hour is None:
        return tag("p", "Nothing is remembered of the last half hour yet.", class_="quiet")
    limits = [gpu.power_limit_watts for gpu in _gpus(view, shown.past) if gpu.power_limit_watts]
    return sparklines(shown.key, shown.half_hour, mark_of(shown), max(limits, default=None))


def mark_of(shown: Shown) -> Mark:
    """Return the moment to draw through the charts: the last movement of what hangs, else when the verdict began."""
    verdict, moment = shown.verdict, shown.moment
    at = moment.monotonic - (moment.unix - verdict.since)
    state, label = verdict.state, f"{verdict.state} for"
    if state == "suspect":
        at = max(shown.past.stamps.values(), default=at)
    age = wording.duration(moment.monotonic - at)
    if state in {"suspect", "stalled"}:
        return Mark(at, f"last movement {age} ago", trouble=True)
    return Mark(at, f"{label} {age}", trouble=state in verdicts.TROUBLED)


def _facts(shown: Shown) -> Html:
    rows = [(tag("dt", name), tag("dd", value)) for name, value in _known_facts(shown)]
    return tag("dl", (tag("div", row) for row in rows), class_="facts")


def _known_facts(shown: Shown) -> Iterable[tuple[str, object]]:
    past, moment = shown.past, shown.moment
    if past.phase is not None:
        yield "Phase", _phase(shown)
    if past.waiting:
        yield "Waits on purpose", words.plain(past.waiting)
    if work := _work(past):
        yield "Requests", work
    if past.moved:
        yield "Last movement", _movement(past, moment)
    if weights := wording.weights(past):
        yield "GPU memory", weights
    if past.ending.restarts:
        looping = ", never ready in between: it crashes in a loop" if past.ending.crash_looping else ""
        yield "Restarts", f"{past.ending.restarts}{looping}"
    if shown.evidence:
        gathered = words.ago(shown.evidence.at, moment.unix)
        yield "Evidence", joined(gathered, ": ", tag("code", f"stallwatch evidence show {shown.evidence.name}"))
    if past.ending.gone_since is None:
        yield "Started", words.ago(moment.unix_of(past.started), moment.unix)


def _movement(past: Past, moment: Moment) -> str:
    """Return when each signal moved last, and which was never seen to move: such bear the time of the first sight."""
    moved = sorted(((signal, at) for signal, at in past.moved.items() if at > past.first_seen), key=lambda one: -one[1])
    still = [words.plain(signal) for signal, at in past.moved.items() if at <= past.first_seen]
    ages = [f"{words.plain(signal)} {wording.duration(moment.monotonic - at)}" for signal, at in moved]
    watched = wording.duration(moment.monotonic - past.first_seen)
    never = f"not in the {watched} that it is watched: {', '.join(still)}" if still else ""
    return "; ".join(filter(None, [f"{' · '.join(ages)} ago" if ages else "", never]))


def _phase(shown: Shown) -> Html:
    past, moment = shown.past, shown.moment
    since = "" if past.phase_since is None else f" for {wording.duration(moment.monotonic - past.phase_since)}"
    text = f"{words.plain(past.phase or '')}{since}"
    if past.progress is None:
        return joined(text)
    share = words.percent(past.progress)
    return joined(text, f", {share} ", tag("progress", share, value=past.progress, max=1, aria_label="progress"))


def _work(past: Past) -> str:
    running = [replica.running for replica in past.replicas if replica.running is not None]
    queued = [replica.queued for replica in past.replicas if replica.queued is not None]
    parts = [f"{sum(running):.0f} running" if running else "", f"{sum(queued):.0f} waiting" if queued else ""]
    return wording.joined(parts)


def _gpus(view: View, past: Past) -> list[Gpu]:
    reading = view.snapshot.get(GpuReading)
    uuids = {place.uuid for place in past.server.gpus}
    return [gpu for gpu in reading.gpus if gpu.uuid in uuids] if reading else []


def _rest(view: View, shown: Shown) -> Html:
    """Return what the verdict rests on, folded away where a server is well and there are many."""
    rows = ranks.rank_rows(
        shown.past, {gpu.uuid: gpu for gpu in _gpus(view, shown.past)}, still=stands_still(shown.verdict.state)
    )
    odd = [row.name for row in rows if row.odd]
    missing = missing_of(view.snapshot.failures, shown)
    troubled = shown.verdict.state in verdicts.TROUBLED
    unfolded = troubled or bool(odd) or len(view.verdicts) <= FEW_SERVERS
    told = wording.joined([_counted(len(rows), "process"), _counted(len(missing), "signal missing", "signals missing")])
    return tag(
        "details",
        tag("summary", "Ranks, health and what is missing ", tag("span", told, class_="quiet")),
        ranks.table(shown.key, shown.past, rows) if rows else tag("p", "No rank of it is known.", class_="quiet"),
        probes.replica_table(shown.key, shown.past, shown.moment),
        probes.table(shown.key, shown.past, shown.moment),
        _missing(missing),
        id=f"{shown.key}-rest",
        open=unfolded,
        data_open=int(unfolded),
    )


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or f'{one}es'}" if count else ""


def missing_of(failures: Iterable[Failure], shown: Shown) -> list[Html]:
    """Return what cannot be read of a server, each with its reason; of the whole node in short."""
    own, whole = ([f for f in failures if f.server == server] for server in (shown.name, ""))
    told = {failure.collector for failure in (*own, *whole)}
    gone = shown.past.ending.gone_since is not None
    why = "its processes are gone" if gone else "no reading of it yet"
    silent = [signal for signal in shown.verdict.missing if signal.partition(":")[0] not in told]
    of_node = dict.fromkeys((failure.collector, failure.reason) for failure in whole)
    return [
        *(failure_line(failure) for failure in own),
        *(joined(tag("b", signal), f": {why}") for signal in silent),
        *(
            joined(tag("b", collector), f": {words.plain(reason)}, of the ", tag("a", "whole node", href="#node"))
            for collector, reason in of_node
        ),
    ]


def failure_line(failure: Failure) -> Html:
    """Return one thing that cannot be read, and why."""
    detail = joined(" (", named(failure.detail), ")") if failure.detail else None
    return joined(tag("b", failure.collector), f": {words.plain(failure.reason)}", detail)


def _missing(lines: list[Html]) -> Html:
    title = tag("h3", "What is missing and why")
    if not lines:
        return joined(title, tag("p", "Nothing: every signal of this server can be read.", class_="quiet"))
    return joined(title, tag("ul", [tag("li", line) for line in lines], class_="missing"))
