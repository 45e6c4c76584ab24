"""What do the answers of NCCL RAS tell of a server that stands still, and whom do they point at?

A difference between ranks is a sign only where it stays the same: ranks that work are never all at the same operation.
"""

from collections.abc import Iterator, Sequence

from stallwatch.sources.ras import RasReading
from stallwatch.sources.ras_answer import Communicator, Count, Lost, Operation

MOST_TOLD = 6
MOST_NAMED = 4
_STATES = {
    "dead": ("is dead to the others", "are dead to the others"),
    "unresponsive": ("does not answer", "do not answer"),
    "absent": ("has left its communicator", "have left their communicator"),
}
_NO_PROOF = "; its thread answers even while a collective hangs, so that this does not say that they are well"


def told(reading: RasReading) -> tuple[str, ...]:
    """Return what is to be said, in sentences of one line."""
    found = [*_lost(reading), *_failed(reading), *_standing(reading)]
    if not found:
        found = [*_moving(reading), *_nothing(reading)][:1]
    return tuple(f"NCCL RAS: {sentence}" for sentence in found[:MOST_TOLD])


def suspects(reading: RasReading) -> tuple[str, ...]:
    """Return the ranks to look at: those that are lost, and those that have launched fewer operations than most."""
    lost = [one.rank for one in _all_lost(reading)]
    behind = [rank for _, operation in _standing_operations(reading) for rank in _behind(operation)]
    return tuple(dict.fromkeys((*lost, *behind)))


def _standing_operations(reading: RasReading) -> Iterator[tuple[Communicator, Operation]]:
    """Yield what differs between ranks, and is the same in both answers."""
    if len(reading.looks) < 2:
        return
    before = _differing(reading.looks[0].answer.communicators)
    for key, (communicator, operation) in _differing(reading.looks[-1].answer.communicators).items():
        if key in before and before[key][1] == operation:
            yield communicator, operation


def _differing(communicators: Sequence[Communicator]) -> dict[tuple[str, str], tuple[Communicator, Operation]]:
    return {
        (communicator.id, operation.name): (communicator, operation)
        for communicator in communicators
        for operation in communicator.operations
        if len(operation.counts) > 1
    }


def _standing(reading: RasReading) -> Iterator[str]:
    for _, operation in _standing_operations(reading):
        few, most = operation.counts[1:], operation.counts[0]
        who = ", ".join(f"{_who(count)} launched {count.launched:,} {operation.name}" for count in few[:MOST_NAMED])
        others = "the others" if most.size > 1 or not most.ranks else most.ranks[0]
        yield f"{who}, {others} {most.launched:,}, and that has not changed in {_seconds(reading):.0f} s"


def _moving(reading: RasReading) -> Iterator[str]:
    names = sorted({name for _, name in _differing(reading.looks[-1].answer.communicators)})
    if names:
        what = f"the ranks differ in how many {', '.join(names)} they have launched"
        once = len(reading.looks) < 2
        yield f"{what}; asked but once, that says nothing" if once else f"{what}, and that moves: no sign of a hang"


def _nothing(reading: RasReading) -> Iterator[str]:
    look = reading.looks[-1]
    if not look.json:
        yield f"nothing stands out{_NO_PROOF}"
        return
    size = max((one.size for one in look.answer.communicators), default=0)
    if size:
        yield f"all {size} ranks answer and have launched the same collectives{_NO_PROOF}"
    else:
        yield "it knows of no communicator yet"


def _failed(reading: RasReading) -> Iterator[str]:
    ranks = dict.fromkeys(rank for one in reading.looks[-1].answer.communicators for rank in one.failed)
    if ranks:
        yield f"{_names(tuple(ranks))} {'reports' if len(ranks) == 1 else 'report'} an error"


def _lost(reading: RasReading) -> Iterator[str]:
    by_state: dict[str, list[str]] = {}
    for one in _all_lost(reading):
        by_state.setdefault(one.state, []).append(one.rank)
    for state, ranks in by_state.items():
        single, many = _STATES[state]
        yield f"{_names(ranks)} {single if len(ranks) == 1 else many}"


def _all_lost(reading: RasReading) -> Iterator[Lost]:
    """Yield who is lost at the last look, each one once."""
    answer = reading.looks[-1].answer
    lost = (*answer.lost, *(one for communicator in answer.communicators for one in communicator.lost))
    first: dict[str, Lost] = {}
    for found in lost:
        first.setdefault(found.rank, found)
    yield from first.values()


def _behind(operation: Operation) -> tuple[str, ...]:
    most = operation.counts[0]
    return tuple(rank for count in operation.counts[1:] if count.launched < most.launched for rank in count.ranks)


def _who(count: Count) -> str:
    if len(count.ranks) == count.size:
        return f"{_names(count.ranks)} {'has' if count.size == 1 else 'have'}"
    return f"{count.size} ranks have"


def _names(ranks: Sequence[str]) -> str:
    return f"{len(ranks)} ranks" if len(ranks) > MOST_NAMED else ", ".join(ranks)


def _seconds(reading: RasReading) -> float:
    return reading.looks[-1].at - reading.looks[0].at
