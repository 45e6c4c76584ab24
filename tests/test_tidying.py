"""What is left behind goes once a minute, and what is there at the start is not gone through for it."""

import gc
import json
import os
import subprocess
import sys
import weakref

import pytest

from stallwatch.tidying import EVERY_SECONDS, Tidying

TELLING = """
import gc, sys, threading, time
from stallwatch import tidying
from stallwatch.cli import main

def tell():
    ends = time.monotonic() + 20
    tidied = lambda: gc.get_freeze_count() and collections() >= begun + 3
    while not tidied() and time.monotonic() < ends:
        time.sleep(0.01)
    print("tidied" if tidied() else "left untidy", flush=True)

def collections():
    return gc.get_stats()[2]["collections"]

gc.disable()
begun = collections()
tidying.EVERY_SECONDS = 0.0
threading.Thread(target=tell, daemon=True).start()
main(["serve", "--web.listen-address=127.0.0.1:0"])
"""
WORKING = """
import gc, os, sys
from stallwatch import tidying
from stallwatch.child import main

gc.disable()
tidying.EVERY_SECONDS = 0.0
note = os.memfd_create("note")
os.ftruncate(note, 512)
main(["stub", "{}", str(note), "stub_reader"])
"""


class Clock:
    """Tells the time that it is set to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        """Return it."""
        return self.now


class Ring:
    """Holds itself, as a closed connection and its reader hold each other."""

    def __init__(self):
        self.itself = self


@pytest.fixture
def clock():
    """Return a clock; Python collects only what the test has it collect, and nothing stays frozen."""
    gc.disable()
    yield Clock()
    gc.unfreeze()
    gc.enable()


def left_behind():
    """Leave a ring behind, and return what tells whether it is there."""
    return weakref.ref(Ring())


def test_what_is_left_behind_goes_once_a_minute(clock):
    """Not before, since it takes time, and each minute anew."""
    tidy = Tidying(clock)
    for _ in range(2):
        ring = left_behind()
        clock.now += EVERY_SECONDS - 1.0
        tidy()
        assert ring()
        clock.now += 1.0
        tidy()
        assert ring() is None


def test_what_was_there_at_the_start_is_not_gone_through_again(clock):
    """That is nearly all: what is still garbage then goes first, so that it does not stay for good."""
    garbage = left_behind()
    before = len(gc.get_objects())
    Tidying(clock)
    assert garbage() is None
    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects()) < before / 10


def test_freed_tuples_are_not_hoarded(clock):
    """Python keeps those that it shortened as it made them, thousands of them, until it is tidied up."""
    tidy = Tidying(clock)
    made = [tuple(item for item in range(count % 8 + 1)) for count in range(16_000)]
    made.clear()
    hoarded = sys.getallocatedblocks()
    clock.now += EVERY_SECONDS
    tidy()
    assert sys.getallocatedblocks() < hoarded - 5_000


def test_an_exporter_is_tidied_look_by_look():
    """It begins once all is loaded."""
    off = {"STALLWATCH_STATE__ENABLED": "false", "STALLWATCH_EVIDENCE__ENABLED": "false"}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", TELLING], stdout=pipe, stderr=pipe, env={**os.environ, **off}) as one:
        told = one.stdout.readline()
        one.terminate()
        log = one.stderr.read()
    assert told == b"tidied\n"
    assert b"ended" in log
    assert one.returncode == 0


def test_a_worker_is_tidied_request_by_request():
    """What is loaded by then is not gone through again."""
    requests = [{"id": number, "read": "stub", "targets": [], "skip": []} for number in (1, 2, 3)]
    asked = "".join(f"{json.dumps(request)}\n" for request in requests)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WORKING]
    done = subprocess.run(command, input=asked, check=True, capture_output=True, text=True, timeout=30, env=environ)
    seen = [json.loads(line)["reading"] for line in done.stdout.splitlines()[1:]]
    collections = [reading["collections"] for reading in seen]
    assert collections == list(range(collections[0], collections[0] + 3))
    assert seen[0]["frozen"] > 1000
