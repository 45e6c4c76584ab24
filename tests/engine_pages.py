"""Builds metrics pages and load snapshot files as engines write them."""

import struct
from pathlib import Path

import msgspec

DATA = Path(__file__).parent / "data" / "engine"
SLOT = 16 * 1024


def body_of(name):
    """Return the page of a recorded reply, without its headers."""
    return (DATA / name).read_bytes().partition(b"\r\n\r\n")[2]


def sample(name, value, **labels):
    """Write one sample line; the labels are escaped by whoever gives them."""
    inside = ",".join(f'{label}="{text}"' for label, text in labels.items())
    return f"{name}{{{inside}}} {value}" if labels else f"{name} {value}"


def page(*lines):
    """Join lines into a page."""
    return "".join(f"{line}\n" for line in lines).encode()


def busy(value=7, **labels):
    """Write the gauge and the live counter of one SGLang scheduler."""
    return (
        sample("sglang:num_running_reqs", 1, **labels),
        sample("sglang:realtime_tokens_total", value, mode="decode", **labels),
    )


def beating(value, **labels):
    """Write the counter that one SGLang scheduler moves with each turn."""
    return sample("sglang:scheduler_process_cpu_seconds_total", value, **labels)


def load(rank, timestamp, **fields):
    """Describe what one rank writes into its slot, with a field that is of no interest."""
    return {"timestamp": timestamp, "dp_rank": rank, "token_usage": 0.5, **fields}


def pack(*slots, magic=b"SLNS", version=2, size=SLOT, count=None):
    """Build a snapshot file; a slot is a mapping, raw payload, or None while it is being written."""
    parts = [struct.pack("<4sHHI", magic, version, len(slots) if count is None else count, size)]
    for slot in slots:
        payload = slot if isinstance(slot, bytes) else msgspec.msgpack.encode(slot) if slot is not None else b""
        parts.append((struct.pack("<I", len(payload)) + payload).ljust(size, b"\0"))
    return b"".join(parts)
