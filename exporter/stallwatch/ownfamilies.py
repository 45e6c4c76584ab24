"""How does the exporter itself fare: its collectors, its workers, the age of what it says?"""

from collections import Counter
from collections.abc import Iterable, Mapping

from stallwatch.expense import Expense
from stallwatch.lanes import LaneState
from stallwatch.notify.tally import Tally
from stallwatch.signals import ON_DEMAND
from stallwatch.snapshot import Family, Moment
from stallwatch.view import Kept, View


def own_families(
    view: View, *, reloaded: bool, dropped: Mapping[str, int] | None = None, tally: Tally | None = None
) -> Iterable[Family]:
    """Yield the families about the exporter.

    `dropped` are the series that its pages left out, by collector, `tally` what came of its own notifications.
    """
    moment = view.snapshot.moment
    text = "Time of the snapshot that this scrape shows; every other time here is stated on the same clock."
    yield Family("stallwatch_snapshot_timestamp_seconds", text, "gauge", (), (((), round(moment.unix, 3)),))
    yield from _collectors(view.lanes, moment)
    yield _dropped(view.lanes, dropped or {})
    yield from _workers(view)
    text = "Until when the GPUs are released and not read; absent while they are not."
    until = () if view.gpu_released_until is None else (((), round(moment.unix_of(view.gpu_released_until), 3)),)
    yield Family("stallwatch_gpu_released_until_timestamp_seconds", text, "gauge", (), until)
    if view.kept:
        yield from _evidence(view.kept)
    text = "0 when the configuration that is there cannot be used, and the one before is."
    yield Family("stallwatch_config_last_reload_successful", text, "gauge", (), (((), float(reloaded)),))
    yield from _notifications(tally, moment)
    if view.expense:
        yield from _process(view.expense, moment)


def _collectors(lanes: Iterable[LaneState], moment: Moment) -> Iterable[Family]:
    by_collector: dict[str, list[LaneState]] = {}
    for lane in lanes:
        by_collector.setdefault(lane.collector, []).append(lane)
    known = {name: [lane.success for lane in some if lane.success is not None] for name, some in by_collector.items()}
    success = tuple(((name,), float(all(some))) for name, some in known.items() if some)
    text = (
        "1 when the last round of the collector gave a reading for every server that it is asked for; absent where "
        "none is due and nothing broken: the GPUs are released, or the kernel log may not be read."
    )
    yield Family("stallwatch_collector_success", text, "gauge", ("collector",), success)
    durations = {
        name: [lane.duration for lane in some if lane.duration is not None] for name, some in by_collector.items()
    }
    longest = tuple(((name,), max(some)) for name, some in durations.items() if some)
    text = "How long the last round took, of several the longest."
    yield Family("stallwatch_collector_duration_seconds", text, "gauge", ("collector",), longest)
    ends = {name: [lane.last_success for lane in some if lane.last_success] for name, some in by_collector.items()}
    last = tuple(((name,), round(moment.unix_of(max(some)), 3)) for name, some in ends.items() if some)
    text = "When the collector last gave a reading."
    yield Family("stallwatch_collector_last_success_timestamp_seconds", text, "gauge", ("collector",), last)
    counts: Counter[tuple[str, str]] = Counter()
    for lane in lanes:
        counts.update({(lane.collector, reason): count for reason, count in lane.failures})
    failures = tuple((key, float(count)) for key, count in sorted(counts.items()))
    text = "Rounds that missed something, by reason."
    yield Family("stallwatch_collector_failures_total", text, "counter", ("collector", "reason"), failures)


def _evidence(kept: Kept) -> Iterable[Family]:
    text = "Bundles of evidence that are kept."
    yield Family("stallwatch_evidence_bundles", text, "gauge", (), (((), float(kept.bundles)),))
    latest = sorted(kept.latest.values(), key=lambda bundle: bundle.server)
    text = "When evidence of this server was gathered last."
    times = tuple(((bundle.server,), round(bundle.at, 3)) for bundle in latest)
    yield Family("stallwatch_evidence_last_timestamp_seconds", text, "gauge", ("server",), times)
    text = "1 for the latest bundle of each server: its name is what `stallwatch evidence show` takes."
    names = tuple(((bundle.server, bundle.name), 1.0) for bundle in latest)
    yield Family("stallwatch_evidence_info", text, "gauge", ("server", "bundle"), names)
    text = "Sources that gave none of the evidence asked for; `write` where no bundle could be written."
    failures = tuple(((source,), float(count)) for source, count in sorted(kept.failures.items()))
    yield Family("stallwatch_evidence_failures_total", text, "counter", ("source",), failures)


def _dropped(lanes: Iterable[LaneState], series: Mapping[str, int]) -> Family:
    counts = Counter(series)
    for lane in lanes:
        counts[lane.collector] += lane.dropped
    text = "Servers, processes, ranks, samples and series that were left out since they were too many, over all rounds."
    samples = tuple(((name,), float(count)) for name, count in sorted(counts.items()))
    return Family("stallwatch_collector_dropped_total", text, "counter", ("collector",), samples)


def _workers(view: View) -> Iterable[Family]:
    standing = [worker for worker in view.workers if worker.name not in ON_DEMAND]
    up = tuple(((worker.name,), float(worker.up)) for worker in standing)
    yield Family("stallwatch_worker_up", "1 when the worker process lives.", "gauge", ("worker",), up)
    restarts = tuple(((worker.name,), float(worker.restarts)) for worker in standing)
    text = "Workers started in place of one that ended or got stuck; not counted where we replaced it on purpose."
    yield Family("stallwatch_worker_restarts_total", text, "counter", ("worker",), restarts)
    abandoned = tuple(((worker.name,), float(worker.abandoned)) for worker in view.workers)
    text = "Workers that are stuck in a read and have not ended yet."
    yield Family("stallwatch_worker_abandoned", text, "gauge", ("worker",), abandoned)
    running = [(worker.name, worker.expense) for worker in standing if worker.expense]
    cpu = tuple(((name,), expense.cpu_seconds) for name, expense in running)
    text = "CPU time of the worker that runs now."
    yield Family("stallwatch_worker_cpu_seconds_total", text, "counter", ("worker",), cpu)
    memory = tuple(((name,), float(expense.resident_bytes)) for name, expense in running)
    text = "Resident memory of the worker that runs now."
    yield Family("stallwatch_worker_resident_memory_bytes", text, "gauge", ("worker",), memory)


def _notifications(tally: Tally | None, moment: Moment) -> Iterable[Family]:
    counts = tuple(((result,), float(count)) for result, count in tally.counts.items()) if tally else ()
    text = "Tries to tell the webhook: delivered, failed (and tried again) or given_up (refused); absent without one."
    yield Family("stallwatch_notifications_total", text, "counter", ("result",), counts)
    last = tally.last_success if tally else None
    text = "When the webhook last took a notification."
    samples = () if last is None else (((), round(moment.unix_of(last), 3)),)
    yield Family("stallwatch_notification_last_success_timestamp_seconds", text, "gauge", (), samples)


def _process(expense: Expense, moment: Moment) -> Iterable[Family]:
    """Yield what every Prometheus client says of its own process, under the names that dashboards expect."""
    told = (
        ("process_cpu_seconds_total", "CPU time of the exporter without its workers.", expense.cpu_seconds),
        ("process_resident_memory_bytes", "Resident memory of it without its workers.", expense.resident_bytes),
        ("process_open_fds", "File descriptors that the exporter holds.", expense.open_files),
        ("process_start_time_seconds", "When the exporter was started.", moment.unix_of_boottime(expense.started)),
    )
    for name, text, value in told:
        kind = "counter" if name.endswith("_total") else "gauge"
        yield Family(name, text, kind, (), () if value is None else (((), round(value, 3)),))
