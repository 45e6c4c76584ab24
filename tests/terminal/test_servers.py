"""What a person reads of the servers: the worst first, its sentence, its odd rank, its endpoints, what is missing."""

import pytest

from stallwatch.replay import play
from stallwatch.report import report
from stallwatch.simulation.scenario import load_scenario, scenario_file
from stallwatch.terminal.servers import lines
from stallwatch.view import View

NOW = 1_800_000_000.0
GOLDEN = """\
sglang:30000: STALLED (cold_deadlock) for 12 min
  It stands in loading weights (76 GiB on each of 8 GPUs) but nothing has moved for 12 min (limit 10
  min, since faults and compile cannot be read): GPUs 0 % at 10% of their power limit, schedulers
  asleep, log without progress since `loading` for 12 min, port 30000 refuses connections.
  rank         pid     GPU  GPU %  GiB  W   CPU %  st  phase            thr
  TP0          100101  0    0      76   60  0      S   loading_weights  1
  TP1          100102  1    0      76   60  0      S   loading_weights  1
  TP2          100103  2    0      76   60  0      S   loading_weights  1
  TP3          100104  3    0      76   60  0      S   loading_weights  1
  TP4          100105  4    0      76   60  0      S   loading_weights  1
  TP5          100106  5    0      76   60  0      S   loading_weights  1
  TP6          100107  6    0      76   60  0      S   loading_weights  1
  TP7          100108  7    0      76   60  0      S   loading_weights  1
  detokenizer  100109                       0      S                    1
  processes  scheduler 8 of 8, launcher 1, detokenizer 1
  log        last progress line `loading` 12 min ago
  phase      loading weights for 13 min
  moved      io 12 min ago, gpu memory 12 min ago, log 12 min ago
  owed       not ready for 13 min
  endpoint  answer               a good one proves      took   asked     last good  failed
> /health   refuses connections  the scheduler answers  0.0 s  10 s ago  never      53
  missing    engine
  what to do next, by the runbook InferenceServerStalled:
  1. `cold_deadlock`: look at the last line of the log, per rank: which rank never wrote it? Then
     its stack. A hidden barrier after the load is the usual place.
  2. The stack of every scheduler, not only of the first:
     `timeout 20 py-spy dump --nonblocking --pid PID`.
  3. Do not kill it before the stacks and the log are saved."""


def status_of(name, at):
    """Return what would be reported of a shipped scenario at this second."""
    look = next(look for look in play(load_scenario(scenario_file(name))) if look.t >= at)
    return report(View(look.snapshot, look.pasts, (), (), look.verdicts, look.not_ready_seconds))


def told(name, at, width=100):
    """Return what a person reads of it."""
    status = status_of(name, at)
    return [line.text for line in lines(status, status["servers"], width=width)]


def entry(verdict="idle", **fields):
    """Return a server as an exporter reports it, with as little as the oldest one does."""
    defaults = {"server": "vllm:8000", "signature": "", "since": NOW - 720, "reason": "Nothing is owed.", "missing": []}
    return defaults | {"verdict": verdict, "ranks": []} | fields


def read(*entries, **status):
    """Return what a person reads of these servers."""
    return [line.text for line in lines({"time": NOW, **status}, list(entries))]


def test_the_cold_deadlock_is_told_as_the_readme_shows():
    """Word for word."""
    assert "\n".join(told("cold_deadlock_after_weights", 790)) == GOLDEN


@pytest.mark.parametrize("width", [100, 60, 40])
@pytest.mark.parametrize(
    ("name", "at", "verdict"),
    [
        ("cold_deadlock_after_weights", 790, "STALLED"),
        ("cold_deadlock_after_weights", 20, "STARTING"),
        ("split_ranks", 900, "STALLED"),
        ("lost_scheduler", 530, "DEAD"),
        ("blind", 600, "UNKNOWN"),
        ("slow_tokens", 600, "BUSY"),
        ("exporter_restart_when_idle", 900, "IDLE"),
    ],
)
def test_each_verdict_fits_the_terminal_and_says_what_it_is_first(name, at, verdict, width):
    """The first line is the status, as monitoring plugins are read."""
    text = told(name, at, width)
    assert verdict in text[0]
    assert max(map(len, text)) <= width


def test_the_rank_that_differs_is_marked_by_a_sign_and_a_word():
    """The GPU at rest among busy ones, and its rank."""
    text = told("split_ranks", 900)
    marked = [line for line in text if line.startswith("> TP")]
    assert marked[0].split()[:4] == [">", "TP3", "100104", "3"]
    assert marked[1:] == ["> TP3: lags behind, GPU at rest"]


def test_a_rank_that_has_gone_is_counted_out():
    """So many of so many, and who is gone since when."""
    text = told("lost_scheduler", 530)
    assert "  processes  scheduler 7 of 8, launcher 1, detokenizer 1; gone: TP5 for 5 min" in text
    assert "> TP5: gone" in text


def test_a_server_that_is_well_has_no_steps():
    """Nor has one that starts, whose closed port is not marked."""
    text = told("cold_deadlock_after_weights", 20)
    assert not [line for line in text if line.startswith(">") or "runbook" in line]
    assert any("refuses connections" in line for line in text)


def test_what_is_missing_is_told_with_why():
    """What nobody tells more of stands in one line."""
    failures = [
        {"collector": "gpu", "server": "", "reason": "library_not_found", "detail": "libnvidia-ml.so.1"},
        {"collector": "log", "server": "other", "reason": "pipe", "detail": "a pipe"},
    ]
    text = read(entry(missing=["gpu: library_not_found", "health", "log: pipe"]), failures=failures)
    assert text[-2:] == [
        "  missing    health, log: pipe",
        "             gpu: library_not_found (libnvidia-ml.so.1)",
    ]


def test_a_signal_that_was_never_seen_to_move_is_not_said_to_have_moved():
    """It bears the time of the first sight; the log's time is its own."""
    moved = {"log": NOW - 720, "io": NOW - 10, "faults": NOW - 2}
    text = read(entry(first_seen=NOW - 10, last_movement=moved, marker="load_end", marker_rank="TP5"))
    assert "  moved      faults 2 s ago, log 12 min ago; not in the 10 s that it is watched: io" in text
    assert "  log        last progress line `load_end` on TP5 12 min ago" in text


def test_a_short_look_says_what_it_cannot_know_right_under_the_status():
    """So that nobody takes it for more than it is."""
    text = read(entry("starting"), looked_for=10.0)
    assert text[0] == "vllm:8000: STARTING for 12 min"
    assert text[1].startswith("  No exporter was asked; this is a look of 10 s, which cannot know what came before")


def test_the_worst_server_comes_first():
    """An unknown word of a later version is as bad as unknown."""
    text = read(entry("idle"), entry("novel", server="b"), entry("stalled", server="a"), entry("busy", server="c"))
    heads = [line.split(":")[0] for line in text if ": " in line and line[0].isalpha()]
    assert heads == ["a", "b", "c", "vllm"]


def test_why_no_server_is_seen_is_told():
    """Where the processes of others are hidden that is no empty node; what else is missing is no reason."""
    hidden = {"collector": "discovery", "server": "", "reason": "processes_hidden", "detail": "/proc hides processes"}
    others = [{**hidden, "collector": "gpu"}, {**hidden, "server": "sglang:30000"}]
    text = read(failures=[hidden, *others])
    assert text == ["No inference server is seen on this node.", "  /proc hides processes"]
