"""What does the log of a played server tell? What the scenario's words and literal lines mean for its life."""

from stallwatch.collectors.log import Log, told_by
from stallwatch.logs.life import Life
from stallwatch.logs.rank_phase import RankPhase
from stallwatch.simulation.player import UPTIME, Player
from stallwatch.snapshot import Moment

EACH_RANK_SAYS = frozenset(
    {"distributed_init", "loading_weights", "loaded", "allocating_memory", "compiling", "capturing_graphs"}
)
LAST_WORDS = {"loading_weights": "loading", "loaded": "load_end", "capturing_graphs": "capturing", "ready": "decode"}


def log_of(player: Player, moment: Moment) -> Log | None:
    """Return what the log tells, None where it cannot be read; the file of a server that has gone is still there."""
    state = player.state
    if state.ended == "orderly":
        _reach(player.life, "stopping", moment.monotonic)
    if state.there:
        _feed(player, moment.monotonic)
        player.logged = state.has("log") or (state.has("phase") and "log" not in state.values)
    if not player.logged:
        return None
    path = player.server.log_path or ""
    return told_by(player.life, player.server.name, path, moment.monotonic, player.played.version)


def _feed(player: Player, now: float) -> None:
    """Take what the log says in this segment into the life that it tells of."""
    state = player.state
    word, phase = state.word("log"), state.word("phase")
    if phase is not None and phase != player.life.phase and player.totals.get(("phase", 0)) != _begin(player, "phase"):
        begin = player.totals["phase", 0] = _begin(player, "phase")
        _reach(player.life, phase, begin)
        if phase in EACH_RANK_SAYS:
            player.life.ranks = {rank: RankPhase(rank, phase, begin) for rank in player.ranks}
    if player.progressing and word != "progress":
        player.life.last_progress, player.progressing = _begin(player, "log"), False
    if isinstance(word, tuple):
        _lines(player, word, _begin(player, "log"))
    elif word == "progress":
        player.life.last_progress, player.progressing = now, True
        player.life.last_marker = LAST_WORDS.get(player.life.phase or "", "")
    elif word == "heartbeat":
        player.life.last_heartbeat = now


def _begin(player: Player, key: str) -> float:
    return UPTIME + player.state.values[key].begin


def _reach(life: Life, phase: str, at: float) -> None:
    """Note the line that tells of a phase: it is progress, unless it tells of the end."""
    if life.phase == phase:
        return
    life.phase, life.phase_since, life.progress = phase, at, None
    if phase != "stopping":
        life.last_progress = at
        life.last_marker = phase if phase == "ready" else LAST_WORDS.get(phase, "")


def _lines(player: Player, lines: tuple[str, ...], begin: float) -> None:
    if player.totals.get(("lines", 0)) == begin:
        return
    player.totals["lines", 0] = begin
    text = "".join(f"{line}\n" for line in lines if line)
    for mark in player.scanner.scan(text.encode()).marks:
        if mark.marker.begins_life:
            player.life = Life()
        player.life.take(mark, begin)
