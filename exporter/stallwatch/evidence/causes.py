"""Which class of cause does a signature stand for? One sentence for whoever has not seen the node."""

CAUSES = {
    "cold_deadlock": (
        "Nothing computes and nobody burns CPU: its ranks sleep, each waiting for another or for something outside "
        "(a collective over the CPU such as gloo, a lock, a file system, a rank that took another path)."
    ),
    "spin_deadlock": (
        "The GPUs are busy at little power: each waits inside a kernel of a collective (NCCL, custom all-reduce, "
        "NVSHMEM) for a rank that never came, or the kernel itself does not end."
    ),
    "split_ranks": (
        "Some GPUs spin in a collective and others rest: a resting rank did not join, so it is the one to look at."
    ),
    "cpu_spin": "Its schedulers burn CPU while the GPUs rest: a loop without end, or a poll for what never comes.",
    "unscheduled": (
        "Requests wait and none is run, though the scheduler turns: it finds no room for them (KV cache, a grammar, a "
        "peer of disaggregated serving) or has lost them."
    ),
    "frontend_stall": "The schedulers turn and HTTP does not answer: the web process, tokenizer or detokenizer stands.",
    "loop_stopped": "Nothing is owed, but a scheduler that turned before turns no more: the next request would hang.",
    "rendezvous": (
        "Its ranks wait for each other before anything is loaded: one did not start, cannot be reached, or waits at "
        "another address."
    ),
    "stopped": "A process is stopped from outside, by a debugger, SIGSTOP or a frozen cgroup, until it is let go.",
    "lost_process": "A process that it cannot do without has gone or is a zombie, and the others wait for it.",
    "crashed": "All of it went without an orderly end: it was killed, ran out of memory, or failed.",
    "orphaned_memory": "Its launcher has gone; what is left of it serves nobody and still holds memory of GPUs.",
    "device_fault": "A GPU of it has failed; see its Xids and what the driver wants done.",
}
NO_CAUSE = "What it is cannot be told from what was seen; the sections below say what was."


def cause_of(signature: str) -> str:
    """Return the class of cause of a signature."""
    return CAUSES.get(signature, NO_CAUSE)
