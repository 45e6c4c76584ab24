"""Where do the ranks of a server stand, and which of them stands elsewhere?

Ranks that stand at the same place are one group. In a hang most of them wait for one that does not come: the one that
is not in the collective is the one to look at. That points, and proves nothing: a rank on another node is not seen.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Protocol

from stallwatch.evidence.frames import GPU, PEERS, WORK, Meaning, is_of_kernel, meaning, says_something, without_line
from stallwatch.sources.stacks import ProcessStacks, StacksReading, ThreadStack

REACH = 4  # a wait is among the innermost frames
MOST_TOLD = 4
MOST_NAMED = 3
# Where the main thread waits in this file, the thread that runs this function does the work.
_HANDED_ON = ("tp_worker_overlap_thread.py", "forward_thread_func")


class KernelThread(Protocol):
    """A thread as the kernel shows it: None and empty is what could not be seen."""

    @property
    def tid(self) -> int:
        """Its number, that of its process where it is the main one."""

    @property
    def state(self) -> str:
        """The letter of its state."""

    @property
    def wchan(self) -> str | None:
        """The function of the kernel it sleeps in."""

    @property
    def syscall_name(self) -> str:
        """The system call it is in."""

    @property
    def stack(self) -> tuple[str, ...] | None:
        """Its stack in the kernel, innermost first."""


class KernelProcess(Protocol):
    """A process as the kernel shows it, or a descendant of one."""

    @property
    def rank(self) -> str:
        """Its rank, empty where it is none."""

    @property
    def pid(self) -> int:
        """Its number."""

    @property
    def descendant(self) -> bool:
        """Whether it is not the rank itself."""

    @property
    def threads(self) -> Sequence[KernelThread]:
        """Its threads."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Where one rank stands: frames as `function (file:line)`, and those of the kernel below them; innermost first."""

    who: str
    frames: tuple[str, ...]
    kernel: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stand:
    """Ranks that stand at the same place: what it is in words, and the innermost frame that says something."""

    who: tuple[str, ...]
    words: str
    kind: str  # of frames.py, empty where the place is not known
    frame: str


@dataclass(frozen=True, slots=True)
class Standing:
    """Where all ranks stand, the largest group first; `odd` are those to look at, where some stand out."""

    stands: tuple[Stand, ...]
    odd: tuple[str, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a stack stands, and the rest of its frames by which it may differ from another one there."""

    words: str
    kind: str
    frame: str
    rest: tuple[str, ...]


def stacks_of(reading: StacksReading | None, processes: Iterable[KernelProcess] = ()) -> tuple[Stack, ...]:
    """Return the stack of each rank: Python's where py-spy gave it, else the kernel's."""
    kernel = {one.pid: (one.rank, _kernel_frames(one)) for one in processes if one.rank and not one.descendant}
    python = {one.pid: one for one in (reading.processes if reading else ()) if one.rank and one.threads}
    stacks = [Stack(one.rank, frames_of(_telling(one)), kernel.get(pid, ("", ()))[1]) for pid, one in python.items()]
    stacks += [Stack(rank, frames) for pid, (rank, frames) in kernel.items() if pid not in python and frames]
    return tuple(sorted(stacks, key=lambda stack: (len(stack.who), stack.who)))


def frames_of(thread: ThreadStack) -> tuple[str, ...]:
    """Return the frames of a thread as text."""
    return tuple(f"{frame.name} ({frame.file}:{frame.line})" for frame in thread.frames)


def standing(stacks: Iterable[Stack]) -> Standing:
    """Group ranks by where they stand."""
    groups: dict[tuple[str, tuple[str, ...]], list[tuple[str, _Place]]] = {}
    for stack in stacks:
        place = _place(stack)
        frame = "" if place.kind else without_line(place.frame)
        groups.setdefault((frame or place.words, place.rest), []).append((stack.who, place))
    found = sorted(groups.values(), key=len, reverse=True)
    stands = tuple(
        Stand(tuple(who for who, _ in group), words, group[0][1].kind, group[0][1].frame)
        for group, words in zip(found, _told_apart([group[0][1] for group in found]), strict=True)
    )
    return Standing(stands, _odd(stands), _sentence(stands))


def told(stack: Stack) -> str:
    """Say where one process stands: `waits for events (epoll)`."""
    place = _place(stack)
    return _phrase(place.words, place.kind, 1)


def _place(stack: Stack) -> _Place:
    frames = tuple(filter(says_something, stack.frames)) or stack.frames
    meanings = [meaning(frame, frames[depth + 1 :]) for depth, frame in enumerate(frames)]
    for depth, known in enumerate(meanings):
        if known and (known.kind == WORK or depth < REACH or is_of_kernel(frames[depth])):
            outside = zip(frames[depth:], meanings[depth:], strict=True)
            rest = tuple(without_line(frame) for frame, one in outside if one is None)
            return _Place(known.words + _during(known, meanings[depth + 1 :]), known.kind, frames[depth], rest)
    frame = frames[0] if frames else ""
    words = f"in {frame}" if frame else "in no frame at all"
    below = next(filter(None, (meaning(one, ()) for one in stack.kernel)), None)
    if below:
        words += f", {below.words}" if below.kind == WORK else f", waiting {below.words}"
    return _Place(words, "", frame, tuple(map(without_line, frames)))


def _during(known: Meaning, outer: Iterable[Meaning | None]) -> str:
    """Say what larger work a wait belongs to."""
    works = (one.words.removeprefix("in ") for one in outer if one and one.kind == WORK and known.kind != WORK)
    return next((f", during {words}" for words in works), "")


def _told_apart(places: Sequence[_Place]) -> Iterator[str]:
    """Return the words of each place, with a frame by which it differs where another place has the same words."""
    for place in places:
        alike = [other.rest for other in places if other.words == place.words]
        layers = zip_longest(*alike, fillvalue="")
        differing = [layer for layer in layers if len(set(layer)) > 1]
        best = max(differing, key=lambda layer: len(set(layer)), default=())
        frame = best[alike.index(place.rest)] if best else ""
        yield f"{place.words}, at {frame}" if frame else place.words


def _odd(stands: Sequence[Stand]) -> tuple[str, ...]:
    """Return the ranks to look at: who is not where a clear majority waits, else who is in no collective at all."""
    total, rest = sum(len(stand.who) for stand in stands), stands[1:]
    if not rest:
        return ()
    first = stands[0]
    if total > 2 and len(first.who) * 3 >= total * 2:
        # Who waits in a collective while the others do something else is only ahead of them.
        odd = [stand for stand in rest if first.kind in (PEERS, GPU) or stand.kind != PEERS]
    else:
        odd = [stand for stand in stands if stand.kind not in (PEERS, GPU)]
        if len(odd) == len(stands) or sum(len(stand.who) for stand in odd) * 2 > total:
            odd = []
    return tuple(who for stand in odd for who in stand.who)


def _sentence(stands: Sequence[Stand]) -> str:
    total = sum(len(stand.who) for stand in stands)
    parts = [f"{_subject(stand.who, total)} {_phrase(stand.words, stand.kind, len(stand.who))}" for stand in stands]
    left = sum(len(stand.who) for stand in stands[MOST_TOLD:])
    return ", ".join(parts[:MOST_TOLD] + ([f"and {left} elsewhere"] if left else []))


def _subject(who: Sequence[str], total: int) -> str:
    if len(who) == total > 1:
        return "both ranks" if total == 2 else f"all {total} ranks"
    if len(who) > MOST_NAMED:
        return f"{len(who)} ranks"
    return " and ".join(filter(None, (", ".join(who[:-1]), who[-1])))


def _phrase(words: str, kind: str, number: int) -> str:
    if kind and kind != WORK:
        return f"{'waits' if number == 1 else 'wait'} {words}"
    return f"{'is' if number == 1 else 'are'} {words}"


def _telling(process: ProcessStacks) -> ThreadStack:
    """Return the main thread, or the one that works for it."""
    main = process.threads[0]
    file, function = _HANDED_ON
    if any(frame.file.endswith(file) for frame in main.frames):
        workers = (one for one in process.threads if any(function in frame.name for frame in one.frames))
        return next(workers, main)
    return main


def _kernel_frames(process: KernelProcess) -> tuple[str, ...]:
    main = next((thread for thread in process.threads if thread.tid == process.pid), None)
    if main is None:
        return ()
    if main.state == "R":
        return ("running",)
    return tuple(filter(None, (*(main.stack or ()), main.wchan, main.syscall_name)))
