"""Layout: nothing is wider than the terminal, nothing is lost, and colour is only where it is wanted."""

import io

import pytest

from stallwatch.terminal.layout import Line, Row, printed, table, width_of, wrapped

COLUMNS = ("rank", "GPU", "wchan", "fds")
ROWS = [Row(("TP0", "", "futex_do_wait", "3")), Row(("TP1", "", "do_epoll_wait", "4"), odd=True)]


class Terminal(io.StringIO):
    """A stream that is a terminal, or only looks like one."""

    encoding = "utf-8"

    def __init__(self, *, tty=True):
        super().__init__()
        self.tty = tty

    def isatty(self):
        """Tell what it is."""
        return self.tty


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def texts(lines):
    """Return what is read."""
    return [line.text for line in lines]


def test_a_table_leaves_out_what_nobody_has_and_marks_the_odd_row():
    """The mark is a letter, so that it can be seen without colour."""
    assert texts(table(COLUMNS, ROWS, 100)) == [
        "  rank  wchan          fds",
        "  TP0   futex_do_wait  3",
        "> TP1   do_epoll_wait  4",
    ]


def test_what_does_not_fit_beside_follows_below():
    """Each part begins with the name and the mark."""
    assert texts(table(COLUMNS, ROWS, 22)) == [
        "  rank  wchan",
        "  TP0   futex_do_wait",
        "> TP1   do_epoll_wait",
        "  rank  fds",
        "  TP0   3",
        "> TP1   4",
    ]


def test_a_cell_has_an_end():
    """A long name does not push the rest away."""
    assert max(map(len, texts(table(COLUMNS, [Row(("x" * 500, "1", "w", "2"))], 100)))) <= 45


def test_a_command_is_not_broken_where_it_fits_a_line():
    """It can be copied."""
    lines = texts(wrapped("Save the stack of every one: `py-spy dump --pid 1` and go on.", 40))
    assert any("`py-spy dump --pid 1`" in line for line in lines)
    assert max(map(len, lines)) <= 40
    assert max(map(len, texts(wrapped(f"`{'a b ' * 50}` {'c' * 90}", 40)))) <= 40


@pytest.mark.parametrize(
    ("tty", "variables", "coloured"),
    [(True, {}, True), (False, {}, False), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False)],
)
def test_colour_is_for_terminals_that_want_it(monkeypatch, tty, variables, coloured):
    """None when piped, none where NO_COLOR says so."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    said = printed([Line("STALLED", "bad"), Line("plain")], Terminal(tty=tty))
    assert said == ("\x1b[1;31mSTALLED\x1b[0m\nplain\n" if coloured else "STALLED\nplain\n")


def test_what_a_stream_cannot_write_becomes_a_question_mark():
    """A name with an accent makes no error where the locale is C."""
    stream = Terminal(tty=False)
    stream.encoding = "ascii"
    assert printed([Line("modèle")], stream) == "mod?le\n"


@pytest.mark.parametrize(("columns", "width"), [("60", 60), ("300", 100), ("10", 40)])
def test_the_width_is_that_of_the_terminal_within_bounds(monkeypatch, columns, width):
    """Piped it is the widest, whatever the terminal has."""
    monkeypatch.setenv("COLUMNS", columns)
    assert width_of(Terminal()) == width
    assert width_of(Terminal(tty=False)) == 100
