"""What does each source of evidence say in a summary? A passage each, and none where a source gave nothing."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from stallwatch.evidence import collectives, gpuwords
from stallwatch.evidence.standing import Stack, Stand, stacks_of, standing
from stallwatch.sources import descriptors, environment, gpus, kernel, lines, ras, stacks, threads
from stallwatch.sources.descriptors import DescriptorsReading, ProcessDescriptors
from stallwatch.sources.environment import EnvironmentReading
from stallwatch.sources.gpus import GpuStateReading
from stallwatch.sources.kernel import KernelLinesReading
from stallwatch.sources.lines import LinesReading
from stallwatch.sources.ras import RasReading
from stallwatch.sources.stacks import StacksReading
from stallwatch.sources.threads import ProcessThreads, Thread, ThreadsReading
from stallwatch.wording import joined

MOST_LINES = 40
MOST_STANDS = 8
MANNERS = "(sleeps: was not once on a CPU; wakes: was now and then)"
MOST_FRAMES = 12


@dataclass(frozen=True, slots=True)
class Passage:
    """A title, a sentence, lines as they are; `odd` names who differs from the others and what tells so."""

    title: str
    said: str = ""
    lines: tuple[str, ...] = ()
    odd: str = ""


def passages(sources: Mapping[str, Any]) -> Iterator[Passage]:
    """Yield a passage for each source that says something; raises msgspec.ValidationError where one is not its own."""
    told = {name: msgspec.convert(sources[name], kind) for name, (kind, _) in TELLERS.items() if name in sources}
    yield from _standing(told.get(stacks.NAME), told.get(threads.NAME))
    for name, (_, tell) in TELLERS.items():
        if name in told:
            yield from tell(told[name])


def _standing(python: StacksReading | None, kernel: ThreadsReading | None) -> Iterator[Passage]:
    each = {stack.who: stack for stack in stacks_of(python, kernel.processes if kernel else ())}
    found = standing(each.values())
    if not found.stands:
        return
    by = "their Python stacks" if python else "what the kernel shows of them"
    lines = [line for stand in found.stands[:MOST_STANDS] for line in _stand(stand, each[stand.who[0]])]
    odd = f"by {by}: {joined(found.odd)}" if found.odd else ""
    yield Passage("Where the ranks stand", f"By {by}: {found.sentence}.", tuple(lines), odd)


def _stand(stand: Stand, stack: Stack) -> Iterator[str]:
    """Return who stands here, and the innermost frames of the first of them."""
    yield f"{' '.join(stand.who)}: {stand.words}"
    yield from (f"    {frame}" for frame in (stack.frames or stack.kernel)[:MOST_FRAMES])


def _threads(reading: ThreadsReading) -> Iterator[Passage]:
    own = [process for process in reading.processes if not process.descendant]
    lines = [_process(process) for process in own[:MOST_LINES]]
    others = _manners(thread for one in reading.processes if one.descendant for thread in one.threads)
    if others:
        lines.append(f"descendants: {_counted(others)}")
    if lines:
        said = f"The main thread of each process, and what its others did in {reading.seconds:.1f} s {MANNERS}."
        yield Passage("Threads", said, tuple(lines))


def _process(process: ProcessThreads) -> str:
    main = next((one for one in process.threads if one.tid == process.pid), None)
    rest = _manners(thread for thread in process.threads if thread.tid != process.pid)
    who = f"{process.rank or process.process} (pid {process.pid})"
    others = f"; others: {_counted(rest)}" if rest else ""
    return f"{who}: {_thread(main) if main else 'gone'}{others}"


def _manners(threads: Iterable[Thread]) -> Counter[str]:
    return Counter(thread.manner or "seen but once" for thread in threads)


def _thread(thread: Thread) -> str:
    call = (
        f"{thread.syscall_name}{f' on {thread.syscall_on}' if thread.syscall_on else ''}" if thread.syscall_name else ""
    )
    stack = " < ".join(thread.stack[:4]) if thread.stack else thread.wchan or ""
    cpu = "" if thread.cpu_ratio is None else f"{100 * thread.cpu_ratio:.0f} % CPU"
    return joined([f"{thread.state} {thread.manner}".strip(), cpu, f"in {call}" if call else "", stack])


def _counted(counts: Mapping[str, int]) -> str:
    return joined(f"{count} {manner}" for manner, count in sorted(counts.items(), key=lambda one: -one[1]))


def _descriptors(reading: DescriptorsReading) -> Iterator[Passage]:
    lines = [line for process in reading.processes[:MOST_LINES] for line in _held(process)]
    if lines:
        yield Passage("Descriptors and connections", "", tuple(lines))


def _held(process: ProcessDescriptors) -> Iterator[str]:
    who = process.rank or process.process
    kinds = joined(f"{count} {kind}" for kind, count in sorted(process.kinds.items(), key=lambda one: -one[1]))
    states = joined(f"{count} {state}" for state, count in process.tcp_states.items())
    yield f"{who}: {kinds or 'none can be seen'}{f'; TCP: {states}' if states else ''}"
    for one in process.tcp:
        if one.receive_queue or one.send_queue:
            what = "not accepted" if one.state == "listen" else "bytes unread"
            yield f"  {one.state} {one.local} {one.remote}: {one.receive_queue} {what}, {one.send_queue} bytes unsent"


def _gpus(reading: GpuStateReading) -> Iterator[Passage]:
    if reading.gpus:
        yield Passage("GPUs", "", tuple(gpuwords.lines(reading)), gpuwords.odd(reading))


def _ras(reading: RasReading) -> Iterator[Passage]:
    """Tell what NCCL says; a rank that it points at is lost, or has launched less than the others."""
    suspects = collectives.suspects(reading)
    odd = f"by NCCL: {joined(suspects)}" if suspects else ""
    yield Passage("NCCL", "", collectives.told(reading), odd)


def _lines(reading: LinesReading) -> Iterator[Passage]:
    for log in reading.logs:
        shown = log.lines[-MOST_LINES:]
        told = [joined([line.time, line.rank, f"{line.kind} {line.word}", line.text]) for line in shown]
        if told:
            yield Passage("Last telling lines of its log", "", tuple(told))


def _kernel(reading: KernelLinesReading) -> Iterator[Passage]:
    told = [
        joined([time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(line.at)), line.kind, line.process, line.text])
        for line in reading.lines[-MOST_LINES:]
    ]
    if told:
        yield Passage("Kernel log", "Of the GPUs, memory, and hung tasks; times in UTC.", tuple(told))


def _environment(reading: EnvironmentReading) -> Iterator[Passage]:
    """Tell what all ranks have in common once, and of each only what is its own."""
    each = [(one.rank or one.process, dict(one.variables)) for one in reading.processes]
    if not any(variables for _, variables in each):
        return
    first = each[0][1]
    common = {name: value for name, value in first.items() if all(other.get(name) == value for _, other in each)}
    lines = [f"{name}={value}" for name, value in common.items()]
    for who, variables in each:
        own = [f"{name}={value}" for name, value in variables.items() if name not in common]
        lines += [f"{who}: {' '.join(own)}"] if own else []
    yield Passage("Environment", f"Of {len(each)} ranks; what all have in common stands first.", tuple(lines))


Tell = Callable[[Any], Iterable[Passage]]
TELLERS: Mapping[str, tuple[type[Any], Tell]] = {
    stacks.NAME: (StacksReading, lambda _reading: ()),
    ras.NAME: (RasReading, _ras),
    threads.NAME: (ThreadsReading, _threads),
    gpus.NAME: (GpuStateReading, _gpus),
    lines.NAME: (LinesReading, _lines),
    kernel.NAME: (KernelLinesReading, _kernel),
    descriptors.NAME: (DescriptorsReading, _descriptors),
    environment.NAME: (EnvironmentReading, _environment),
}
