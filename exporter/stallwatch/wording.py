"""How is a verdict put into words? One plain sentence with the numbers, for a person at 3 a.m."""

from collections import Counter
from collections.abc import Iterable, Sequence

from stallwatch.collectors.health import Probe
from stallwatch.gpus.xids import words_of
from stallwatch.past import Past, RankPast, XidPast
from stallwatch.snapshot import PHASES

ASLEEP_CORES = 0.05
SPINNING_CORES = 0.5
STALE_PROBE = 20.0
LONGEST = 1e9
MOST_ALIKE = 3  # ranks that it takes to say that one is unlike the others
BEFORE_STANDSTILL = 600.0
"""What the kernel told this long before the last movement may be what ended it."""


def duration(seconds: float) -> str:
    """Return seconds as a person says them: 42 s, 12 min, 3 h 5 min."""
    if not seconds < LONGEST:
        return "a long time"
    if seconds < 120:
        return f"{max(0, seconds):.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def limit(seconds: float, why: str = "") -> str:
    """Return a limit to stand after a duration, and what it rests on where it is not the usual one."""
    return f" (limit {joined((duration(seconds), why))})"


def unread(signals: Sequence[str]) -> str:
    """Return which signals cannot be read, as a clause: two by name, more by their number."""
    words = [signal.replace("_", " ") for signal in signals]
    return f"since {' and '.join(words) if len(words) <= 2 else f'{len(words)} signals'} cannot be read"


def joined(parts: Iterable[str]) -> str:
    """Join what is not empty by commas."""
    return ", ".join(part for part in parts if part)


def moving(signals: Iterable[str]) -> str:
    """Return which signals move, as a clause: `log moves`, `log and tokens move`; nothing where none does."""
    words = [signal.replace("_", " ") for signal in sorted(signals)]
    if len(words) < 2:
        return f"{words[0]} {'move' if words == ['tokens'] else 'moves'}" if words else ""
    return f"{', '.join(words[:-1])} and {words[-1]} move"


def seen(past: Past, now: float) -> str:
    """Return what is seen of a server that does not move: GPUs, schedulers, log, port, the rank that lags."""
    parts = (gpus(past), schedulers(past), log(past, now), queue(past), probes(past, now), lagging(past))
    return joined((*parts, waiting_elsewhere(past), kernel(past, now))) or "no signal says more"


def weights(past: Past) -> str:
    """Return how much memory the GPUs hold."""
    held, count = past.gpus.holding, len(past.server.gpus)
    if held.memory_max is None:
        return ""
    low, high = (f"{value / 1024**3:.0f}" for value in (held.memory_min or 0, held.memory_max))
    size = f"{high} GiB" if low == high else f"{low} to {high} GiB"
    return f"{size} on each of {count} GPUs" if count > 1 else f"{size} on its GPU"


def gpus(past: Past) -> str:
    """Return how busy the GPUs are, and at which power."""
    held = past.gpus.holding
    if held.utilization_min is None or held.utilization_max is None:
        return ""
    low, high = (f"{100 * value:.0f}" for value in (held.utilization_min, held.utilization_max))
    power = "" if past.gpus.power_ratio is None else f" at {past.gpus.power_ratio:.0%} of their power limit"
    return f"GPUs {high} %{power}" if low == high else f"GPUs {low} to {high} %{power}"


def schedulers(past: Past) -> str:
    """Return how much CPU the schedulers use."""
    known = [rank.cpu for rank in past.schedulers if rank.cpu is not None]
    if not known:
        return ""
    if max(known) < ASLEEP_CORES:
        return "schedulers asleep"
    low, high = f"{min(known):.1f}", f"{max(known):.1f}"
    if len(known) == 1:
        return f"its scheduler burns {high} cores"
    return f"schedulers burn {high} cores each" if low == high else f"schedulers burn {low} to {high} cores"


def log(past: Past, now: float) -> str:
    """Return how long the log has had no progress, and what the last line of it was."""
    if "log" not in past.moved:
        return ""
    where = f" since `{past.marker}`" if past.marker else ""
    whose = f" on {past.marker_rank}" if past.marker and past.marker_rank else ""
    return f"log without progress{where}{whose} for {duration(now - past.moved['log'])}"


def queue(past: Past) -> str:
    """Return what runs and waits."""
    running = [replica.running for replica in past.replicas if replica.running is not None]
    queued = [replica.queued for replica in past.replicas if replica.queued is not None]
    if not past.pending:
        return ""
    return f"requests: {sum(running):.0f} running, {sum(queued):.0f} waiting"


def probes(past: Past, now: float) -> str:
    """Return what the health endpoints answered last; how long ago, where another probe may be out since."""
    return joined(_probe(probe, past.server.launch.port) + _ago(now - probe.at) for probe in past.probes)


def _ago(seconds: float) -> str:
    return f" ({duration(seconds)} ago)" if seconds >= STALE_PROBE else ""


def _probe(probe: Probe, port: int | None) -> str:
    words = {
        "ok": f"{probe.path} answers",
        "refused": f"port {port} refuses connections",
        "timeout": f"{probe.path} gives no answer in {probe.latency:.0f} s",
        "empty": f"{probe.path} closes without an answer",
        "reset": f"{probe.path} resets the connection",
        "unauthorized": f"{probe.path} asks for a key",
        "http_error": f"{probe.path} answers {probe.status}",
    }
    return words.get(probe.result, f"{probe.path}: {probe.result}")


def kernel(past: Past, now: float) -> str:
    """Return what the kernel log tells since shortly before the server stood still, or in all where it never moved."""
    since = max(past.stamps.values(), default=past.started) - BEFORE_STANDSTILL
    told = [f"{_xid(xid)} {duration(now - xid.at)} ago" for xid in past.xids if xid.at >= since]
    hung = [f"{one.process} blocked for {duration(one.seconds)}" for one in past.blocked if one.at >= since]
    return f"the kernel reports {joined([*told, *hung])}" if told or hung else ""


def xids(faults: Iterable[XidPast]) -> str:
    """Return errors of GPUs by number, meaning and GPU."""
    return joined(map(_xid, faults))


def _xid(xid: XidPast) -> str:
    meaning = words_of(xid.code)
    return f"Xid {xid.code} of GPU {xid.gpu}{f' ({meaning})' if meaning else ''}"


def lagging(past: Past) -> str:
    """Name the ranks that are behind their peers: in phase, or at rest while others spin."""
    behind = odd_ranks(past)
    return f"{joined(behind[:4])} {'lags' if len(behind) == 1 else 'lag'} behind the others" if behind else ""


def odd_ranks(past: Past) -> list[str]:
    """Return the ranks that differ from most: an earlier phase, or no CPU while the others burn it."""
    ranks = past.schedulers
    phases = {rank.rank: -1 if rank.phase is None else PHASES.index(rank.phase) for rank in ranks}
    if phases and min(phases.values()) < max(phases.values()):
        furthest = max(phases.values())
        return _few([rank for rank, index in phases.items() if index < furthest], len(phases))
    cpu = {rank.rank: rank.cpu for rank in ranks if rank.cpu is not None}
    asleep = [rank for rank, cores in cpu.items() if cores < ASLEEP_CORES]
    if asleep and any(cores >= SPINNING_CORES for cores in cpu.values()):
        return _few(asleep, len(cpu))
    return []


def waiting_elsewhere(past: Past) -> str:
    """Name the ranks that sleep in another place of the kernel than most, of a server that does not move."""
    found = elsewhere(past)
    return joined(f"{rank} sleeps in {wchan} unlike the others" for rank, wchan in found.items())


def elsewhere(past: Past) -> dict[str, str]:
    """Return the few ranks that sleep in another function of the kernel than all others do, and that function.

    It means something only while nothing moves: the loop of a healthy rank is seen here and there.
    """
    asleep = {rank.rank: rank.wchan for rank in past.schedulers if rank.wchan and rank.missing_since is None}
    if len(asleep) < MOST_ALIKE:
        return {}
    usual, count = Counter(asleep.values()).most_common(1)[0]
    few = len(asleep) - count
    return {rank: wchan for rank, wchan in asleep.items() if wchan != usual} if 3 * few <= len(asleep) else {}


def names(ranks: Iterable[RankPast]) -> str:
    """Return the ranks, or processes that are none, by name."""
    return joined(rank.rank or rank.process for rank in ranks)


def _few(ranks: list[str], of: int) -> list[str]:
    return ranks if len(ranks) <= of / 2 else []
