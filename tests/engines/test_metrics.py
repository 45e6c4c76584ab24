"""Tests of what the engines' metrics say, in all the names that their versions had."""

import pytest

from engine_pages import beating, body_of, busy, page, sample
from stallwatch.engines.metrics import MOST_RANKS, NAMES, RankMetrics, ranks_of

BEFORE_TP_RANK = {"model_name": "m", "engine_type": "unified"}
SINCE_TP_RANK = {**BEFORE_TP_RANK, "tp_rank": "0", "pp_rank": "0"}
SINCE_EP_RANK = {**SINCE_TP_RANK, "moe_ep_rank": "0"}


def sglang(*lines):
    """Read a page of SGLang."""
    return ranks_of(page(*lines), NAMES["sglang"])[0]


def only(ranks):
    """Return the only rank."""
    (rank,) = ranks
    return rank


def summary(rank):
    """Name what was read of a rank, without the beats."""
    return (rank.dp_rank, rank.running, rank.queued, rank.tokens, rank.live)


REALTIME = {"prefill_compute": 33.0, "decode": 313.0, "prefill_cache": 30.0}


@pytest.mark.parametrize(
    ("name", "running", "tokens"),
    [
        ("sglang_0.5.9_ready.http", 0.0, {"prefill_compute": 7.0, "decode": 9.0}),
        ("sglang_0.5.9_busy.http", 1.0, REALTIME),
        ("sglang_0.5.9_after_traffic.http", 1.0, {**REALTIME, "decode": 498.0}),
        ("vllm_0.32.0_ready.http", 0.0, {"prompt": 0.0, "generation": 0.0}),
    ],
)
def test_recorded_replies_are_read(name, running, tokens):
    """The pages of real servers give one rank each, with counters that move while a request runs."""
    rank = only(ranks_of(body_of(name), NAMES[name.partition("_")[0]])[0])
    paused = 0.0 if "traffic" in name or "busy" in name else rank.paused
    assert rank == RankMetrics("0", running, 0.0, paused, tokens, live=True, beats={})


FINISHED = (sample("sglang:prompt_tokens_total", 100), sample("sglang:generation_tokens_total", 50))
OLD = {"prompt": 100.0, "generation": 50.0}


GENERATIONS = {
    "0.3.6": ({"model_name": "m"}, {"num_queue_reqs": 4}, 4),
    "0.4.6.post5": (
        BEFORE_TP_RANK,
        {"num_queue_reqs": 4, "num_grammar_queue_reqs": 1, "num_prefill_infight_queue_reqs": 2},
        7,
    ),
    "0.4.10.post2": (SINCE_TP_RANK, {"num_queue_reqs": 4, "num_prefill_prealloc_queue_reqs": 3}, 7),
    "0.5.2": (SINCE_TP_RANK, {"num_queue_reqs": 4, "num_prefill_inflight_queue_reqs": 2}, 6),
    "0.5.7": (SINCE_EP_RANK, {"num_decode_prealloc_queue_reqs": 1, "num_decode_transfer_queue_reqs": 2}, 3),
    "0.5.12": (SINCE_EP_RANK, {"num_queue_reqs": 0, "num_prefill_bootstrap_queue_reqs": 5}, 5),
    "0.5.23": (SINCE_EP_RANK, {"num_decode_transfer_queue_reqs": 2, "num_decode_host_receive_queue_reqs": 2}, 2),
}


@pytest.mark.parametrize("version", GENERATIONS)
@pytest.mark.parametrize("prefix", ["sglang:", "sglang_"])
def test_names_of_every_generation(prefix, version):
    """Each generation's queues are added up, and its tokens are read with whether they move while a request runs."""
    labels, queues, queued = GENERATIONS[version]
    live = "moe_ep_rank" in labels
    lines = [sample("sglang:num_running_reqs", 3, **labels), *FINISHED]
    lines += [sample(f"sglang:{name}", value, **labels) for name, value in queues.items()]
    lines += [sample("sglang:num_paused_reqs", 6, pid="11", **labels)]
    if live:
        lines.append(sample("sglang:realtime_tokens_total", 9, mode="decode", **labels))
    rank = only(sglang(*(line.replace("sglang:", prefix) for line in lines)))
    assert summary(rank) == ("0", 3.0, queued, {"decode": 9.0} if live else OLD, live)
    assert rank.paused == 6.0


def test_a_rank_for_each_data_parallel_rank():
    """Four ranks stay apart, in order, and one that has counted no token yet has live counters too."""
    lines = [line for rank in (3, 0, 2) for line in busy(rank + 10, dp_rank=rank, tp_rank=rank)]
    found = sglang(*lines, sample("sglang:num_running_reqs", 0, dp_rank="1", tp_rank="1"), *FINISHED)
    assert [summary(rank) for rank in found] == [
        ("0", 1.0, None, {"decode": 10.0}, True),
        ("1", 0.0, None, {}, True),
        ("2", 1.0, None, {"decode": 12.0}, True),
        ("3", 1.0, None, {"decode": 13.0}, True),
    ]


def test_tokens_of_all_ranks_together_are_told_apart():
    """Before 0.5.7 tokens are counted without a rank, so they belong to no rank when there are several."""
    gauges = [sample("sglang:num_running_reqs", rank, dp_rank=rank) for rank in range(2)]
    found = sglang(*gauges, *FINISHED, sample("sglang:num_queue_reqs", 9))
    assert [summary(rank) for rank in found] == [
        ("", None, None, OLD, False),
        ("0", 0.0, None, {}, False),
        ("1", 1.0, None, {}, False),
    ]


def test_schedulers_of_one_rank_are_not_added_up():
    """With all schedulers publishing, running requests and tokens are those of the one that tells most."""
    lines = [
        line
        for tp in range(2)
        for pp in range(2)
        for line in busy(20 + tp, dp_rank="0", tp_rank=tp, pp_rank=pp, moe_ep_rank=tp)
    ]
    assert summary(only(sglang(*lines))) == ("0", 1.0, None, {"decode": 21.0}, True)


def test_priorities_are_counted_once():
    """A gauge has its total under the empty priority; where there is none, and for counters, priorities add up."""
    gauge = [sample("sglang:num_queue_reqs", value, priority=name) for name, value in (("", 5), ("1", 3), ("2", 2))]
    split = [sample("sglang:num_running_reqs", value, priority=name) for name, value in (("1", 3), ("2", 4))]
    count = [sample("sglang:generation_tokens_total", 10, priority=name) for name in ("", "1", "2")]
    assert summary(only(sglang(*gauge, *split, *count))) == ("0", 7.0, 5.0, {"generation": 30.0}, False)


def test_labels_that_split_the_work_are_added_up():
    """Models, streaming and labels of the user's own each hold a part, also of each scheduler."""
    lines = [
        sample("sglang:generation_tokens_total", 10, is_streaming=streaming, tenant=tenant)
        for streaming in ("true", "false")
        for tenant in ("a", "b")
    ]
    lines += [sample("sglang:num_running_reqs", 2, model_name=name, tp_rank=tp) for name in "ab" for tp in "01"]
    assert summary(only(sglang(*lines))) == ("0", 4.0, None, {"generation": 40.0}, False)


def test_beats_of_each_scheduler_add_up_all_its_counters():
    """Idle time, stages and CPU of one scheduler make one number, and each scheduler has its own."""
    lines = [
        beating(100, dp_rank="0", tp_rank="0"),
        sample("sglang:scheduler_idle_seconds_total", 40, dp_rank="0", tp_rank="0"),
        sample("sglang:scheduler_stage_seconds_total", 5, dp_rank="0", tp_rank="0", category="idle"),
        sample("sglang:scheduler_stage_seconds_total", 2, dp_rank="0", tp_rank="0", category="run_batch"),
        beating(90, dp_rank="0", tp_rank="1"),
    ]
    assert sorted(only(sglang(*lines)).beats.values()) == [90.0, 147.0]


def test_process_counters_are_no_beats():
    """The CPU time of tokenizer and detokenizer says nothing about a scheduler."""
    assert sglang(sample("sglang:process_cpu_seconds_total", 5, component="detokenizer")) == ()


def test_an_unknown_mode_of_tokens_is_not_taken():
    """Kinds are a closed set, whatever a page holds."""
    line = sample("sglang:realtime_tokens_total", 5, mode="x" * 100)
    assert only(sglang(line, *busy(7))).tokens == {"decode": 7.0}


def test_vllm_engines_are_ranks():
    """The label `engine` is the rank, models add up, and swapped requests wait."""
    lines = [
        sample("vllm:num_requests_running", 2, engine=engine, model_name=model) for engine in "01" for model in "ab"
    ]
    lines += [sample("vllm:num_requests_waiting", 3, engine="1"), sample("vllm:num_requests_swapped", 1, engine="1")]
    lines += [sample("vllm:num_requests_waiting_by_reason", 3, engine="1", reason="capacity")]
    lines += [sample("vllm_prompt_tokens_total", 5, engine="0"), sample("vllm_generation_tokens_total", 6, engine="0")]
    lines += [sample("vllm:prompt_tokens_by_source_total", 5, engine="0", source="local_compute")]
    found, _ = ranks_of(page(*lines), NAMES["vllm"])
    assert [summary(rank) for rank in found] == [
        ("0", 4.0, None, {"prompt": 5.0, "generation": 6.0}, True),
        ("1", 4.0, 4.0, {}, True),
    ]


def test_vllm_without_engines_is_one_rank():
    """The first generation of vLLM has no label for the engine."""
    rank = only(ranks_of(page(sample("vllm:num_requests_running", 2, model_name="m")), NAMES["vllm"])[0])
    assert summary(rank) == ("0", 2.0, None, {}, False)


def test_foreign_pages_hold_nothing():
    """Neither an empty page, nor another program's, nor the other engine's has anything to say."""
    for text in (b"", b"<html></html>", page("up 1"), body_of("vllm_0.32.0_ready.http")):
        assert ranks_of(text, NAMES["sglang"]) == ((), 0)


def test_ranks_are_bounded():
    """Ranks that no engine has, by name or by number, are left out and counted."""
    lines = [sample("sglang:num_running_reqs", 1, dp_rank=rank) for rank in ("x", "123456", "-1", "a\\nb", "\x1b[0m")]
    assert [rank.dp_rank for rank in sglang(*lines, *busy(dp_rank="5"))] == ["5"]
    assert ranks_of(page(*lines), NAMES["sglang"]) == ((), len(lines))
    many = [sample("sglang:num_running_reqs", 1, dp_rank=rank) for rank in range(MOST_RANKS + 50)]
    ranks, dropped = ranks_of(page(*many), NAMES["sglang"])
    assert [rank.dp_rank for rank in ranks] == [str(rank) for rank in range(MOST_RANKS)]
    assert dropped == 50
