"""What is said of the node and of the watching? The line at the top, what is wrong, what cannot be read."""

from collections.abc import Iterable
from dataclasses import dataclass

from stallwatch.pages import verdicts, words
from stallwatch.pages.cards import anchor, failure_line
from stallwatch.pages.markup import Html, joined, named, tag
from stallwatch.view import View
from stallwatch.wording import duration

READY_WITHIN = 30.0
"""A snapshot older than this many seconds means that the exporter itself is not well."""

STALE = "Stallwatch itself is not well."


@dataclass(frozen=True, slots=True)
class Watch:
    """What is watched, and how well: `age` is that of the view in seconds."""

    view: View
    node: str
    age: float

    @property
    def began(self) -> bool:
        """Tell whether there was a first look."""
        return bool(self.view.lanes)

    @property
    def stale(self) -> bool:
        """Tell whether the view is too old to be taken for the present."""
        return self.began and self.age > READY_WITHIN

    @property
    def worst(self) -> str:
        """Return the worst verdict that can be stood by: of what was long ago nothing is known."""
        if self.stale:
            return "unknown"
        return verdicts.worst(verdict.state for verdict in self.view.verdicts.values())


def title(watch: Watch) -> str:
    """Return the title of the page: the worst first, as a tab shows little of it."""
    counts = verdicts.counts(watch.view.verdicts)
    told = " · ".join(f"{count} {state}" for state, count in counts.items()) or "no server"
    return f"{'OLD: ' if watch.stale else ''}{told} on {watch.node} - Stallwatch"


def summary(watch: Watch) -> Html:
    """Return the line at the top; each count leads to the first such server."""
    node = joined(" ", tag("span", "on ", named(watch.node), class_="node"))
    if not watch.view.verdicts:
        return tag("h1", "No inference server", node, class_="summary")
    first = {watch.view.verdicts[name].state: name for name in reversed(verdicts.by_urgency(watch.view.verdicts))}
    parts = [
        tag("a", verdicts.shape(state), f"{count} {state}", href=f"#{anchor(first[state])}", class_=f"v-{state}")
        for state, count in verdicts.counts(watch.view.verdicts).items()
    ]
    return tag("h1", [joined(" · " if n else None, part) for n, part in enumerate(parts)], node, class_="summary")


def warnings(watch: Watch) -> Html:
    """Return what is wrong with the watching itself, loudly."""
    return joined(
        [tag("p", tag("b", word), " ", text, class_="warning", data_warning=word) for word, text in _wrong(watch)]
    )


def _wrong(watch: Watch) -> Iterable[tuple[str, str]]:
    if not watch.began:
        yield "No look yet.", "The exporter has just started; the first verdicts come within seconds."
    if watch.stale:
        age = duration(watch.age)
        yield STALE, f"It last looked {age} ago. What stands below is how things were then, not how they are now."
    for worker in watch.view.workers:
        if worker.abandoned:
            count = "One reader" if worker.abandoned == 1 else f"{worker.abandoned} readers"
            told = f"{count} of `{worker.name}` got no answer from the kernel or the driver"
            yield "A read is stuck.", f"{told}; what it read is left out meanwhile."


def nobody(watch: Watch) -> Html | None:
    """Return what to make of it where no server is seen."""
    if watch.view.verdicts or not watch.began:
        return None
    return tag(
        "section",
        tag("p", "Nothing to watch: no SGLang or vLLM server is seen on this node."),
        tag("p", "One that starts is found within seconds, without any configuration.", class_="quiet"),
        class_="card nobody",
    )


def unread(watch: Watch) -> Html:
    """Return what cannot be read of the node as a whole."""
    lines = [failure_line(failure) for failure in watch.view.snapshot.failures if not failure.server]
    names = set(watch.view.pasts)
    lines += [
        joined(named(failure.server), ": ", failure_line(failure))
        for failure in watch.view.snapshot.failures
        if failure.server and failure.server not in names
    ]
    if lines:
        body = tag("ul", [tag("li", line) for line in lines], class_="missing")
    else:
        body = tag("p", "Nothing: whatever concerns the node as a whole can be read.", class_="quiet")
    heading = tag("h2", "What is missing of this node and why", id="node-h")
    return tag("section", heading, body, class_="card", id="node", aria_labelledby="node-h")


def looked(watch: Watch) -> Html:
    """Return when this was."""
    now = watch.view.snapshot.moment.unix
    return tag("p", "As of ", words.clock(now, now), class_="quiet looked")
