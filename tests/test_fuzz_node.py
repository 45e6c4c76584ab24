"""Whatever the driver, a command line or a title says: what is told of it is clean, short and not too much."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from discovery_node import Node
from hostile_parts import COMMANDS, QUICK, SLOW
from stallwatch.collectors.gpu import GpuReader
from stallwatch.gpus.nvml import VALUE_FIELDS, Nvml
from stallwatch.node.procfs import parse_cmdline, parse_listener, parse_stat
from stallwatch.node.table import kind_of
from stallwatch.node.usage import Stat


class NvmlError(Exception):
    """An error as the driver's bindings raise it."""

    def __init__(self, value):
        super().__init__("\x1b[31m")
        self.value = value


CODES = (0, 1, 3, 4, 6, 9, 12, 13, 15, 16, 18, 21, 999, -5)
NUMBERS = st.one_of(st.integers(0, 100), st.integers(-(2**63), 2**64))
TEXTS = st.one_of(st.text(max_size=9), st.binary(max_size=9), st.just("\n" * 300))
VALUES = NUMBERS.map(lambda number: SimpleNamespace(**dict.fromkeys(VALUE_FIELDS, number)))
ANSWERS = {  # by how the name of the function ends
    "Count": st.integers(0, 3),
    "Version": TEXTS,
    "UUID": TEXTS,
    "Name": TEXTS,
    "PciInfo": st.builds(SimpleNamespace, busId=st.one_of(st.none(), TEXTS)),
    "UtilizationRates": st.builds(SimpleNamespace, gpu=NUMBERS),
    "MemoryInfo": st.builds(SimpleNamespace, used=NUMBERS, total=NUMBERS),
    "_v3": st.lists(
        st.builds(SimpleNamespace, pid=st.integers(0, 2**32), usedGpuMemory=st.one_of(st.none(), NUMBERS)), max_size=3
    ),
    "Samples": st.tuples(
        st.integers(-1, 9), st.lists(st.builds(SimpleNamespace, timeStamp=NUMBERS, sampleValue=VALUES), max_size=3)
    ),
    "FieldValues": st.builds(
        SimpleNamespace, nvmlReturn=st.sampled_from((0, 3, 15)), value=VALUES, valueType=st.integers(0, 99)
    ).map(lambda value: [value]),
}


class AnyDriver:
    """Answers each call with something of the right shape and any content."""

    NVMLError = NvmlError

    def __init__(self, draw):
        self._draw = draw

    def __getattr__(self, name):
        strategy = next((one for end, one in ANSWERS.items() if name.endswith(end)), NUMBERS)
        return lambda *_arguments: self._answer(strategy)

    def _answer(self, strategy):
        if self._draw(st.integers(0, 9)) == 0:
            raise NvmlError(self._draw(st.sampled_from(CODES)))
        return self._draw(strategy)


@SLOW
@given(st.data())
def test_a_driver_that_says_anything_is_believed_only_where_it_can_be(data):
    """Names are clean, shares are shares, and nothing raises."""
    reader = GpuReader(Nvml(AnyDriver(data.draw), lambda _note: None), clock=iter(range(0, 100, 5)).__next__)
    for _ in range(2):
        reading, failures = reader.read([], frozenset())
        for gpu in reading.gpus:
            assert all(text.isprintable() and len(text) <= 200 for text in (gpu.uuid, gpu.name, gpu.pci_bus_id))
            assert gpu.utilization is None or 0 <= gpu.utilization <= 1
            assert gpu.memory_used is None or gpu.memory_used >= 0
        assert all(failure.reason.replace("_", "").isalpha() and failure.detail.isprintable() for failure in failures)


@SLOW
@given(st.lists(COMMANDS, min_size=1, max_size=6), st.data())
def test_command_lines_and_titles_of_any_words_make_servers_or_none(lines, data):
    """All that is said of them is short and printable; no two have one name."""
    with TemporaryDirectory() as folder:
        node = Node(Path(folder))
        for pid, words in enumerate(lines, 10):
            node.tree.add(pid, *words, ppid=data.draw(st.integers(1, pid)), start=float(pid))
        for server in node.look().values():
            texts = [server.name, server.launch.model, server.launch.host, server.launch.dist_init_addr]
            texts += [text for one in server.processes for text in (one.name, one.rank)]
            assert all(text.isprintable() and len(text) <= 220 for text in texts)
        assert all(failure.detail.isprintable() for failure in node.failures)


def test_a_command_line_of_mebibytes_is_cut():
    """Also one of very many words."""
    assert len(parse_cmdline(b"a\0" * (4 << 20))) == 2048
    assert (
        kind_of(parse_cmdline(b"python\0-m\0sglang.launch_server\0" + b"x" * (4 << 20)), "python").identity.role
        == "launcher"
    )


@QUICK
@given(st.binary(max_size=15).filter(lambda name: b"\0" not in name))
def test_a_process_of_any_name_is_told(name):
    """Brackets, spaces and newlines in it are no fields."""
    text = b"7 (%b) S 1 2 3 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99 1000 10 0\n" % name
    assert (parse_stat(text).ppid, parse_stat(text).start_ticks) == (1, 99)
    assert Stat.parse(text, 0.0).id == (7, 99)


@QUICK
@given(st.binary(max_size=200))
def test_tables_of_the_kernel_are_no_text_of_ours(line):
    """A line that is none is no listener."""
    with suppress(ValueError):
        parse_listener(line)
