"""How log lines are written, and what never stands in one."""

import io
import json
import logging

import pytest

from stallwatch.journal import HIDDEN, Changes, JsonFormatter, LogfmtFormatter, LoopFaults, Redaction, redact, setup


def written(formatter, message, *args, **extra):
    """Return the line of one event."""
    record = logging.getLogger("any").makeRecord("any", logging.INFO, "f", 1, message, args, None, extra=extra)
    record.created = 1700000000.0125
    Redaction().filter(record)
    return formatter.format(record)


def test_a_line_of_logfmt_has_time_level_message_and_extras():
    """The keys come in their order, and only what needs quotes has some."""
    line = written(LogfmtFormatter(), "signal %s", "missing", server="sglang:30000", seconds=1.5, none=None)
    start = 'ts=2023-11-14T22:13:20.012Z level=info msg="signal missing"'
    assert line == f"{start} server=sglang:30000 seconds=1.5 none=None"


def test_a_line_of_json_has_the_same_keys():
    """Numbers stay numbers, what JSON has no word for becomes text."""
    line = json.loads(written(JsonFormatter(), "look", server="a", seconds=1.5, odd=float("nan"), path=("x",)))
    assert line == {
        "ts": "2023-11-14T22:13:20.012Z",
        "level": "info",
        "msg": "look",
        "server": "a",
        "seconds": 1.5,
        "odd": "nan",
        "path": "('x',)",
    }


FORGERIES = [
    "a\nts=1 level=error msg=forged",
    'a" level=error msg="b',
    "a\r\x1b[2Kb",
    "a\u2028b\u0085c",
    "\u202eabc",
    "\udcff",
    "",
]


@pytest.mark.parametrize("text", FORGERIES)
def test_no_text_can_forge_a_line(text):
    """Newlines, quotes, control characters and characters that turn the direction are escaped."""
    line = written(LogfmtFormatter(), text, server=text)
    assert line.isprintable()
    assert line.split(" level=info msg=")[1] == f"{json_text(text)} server={json_text(text)}"
    assert json.loads(written(JsonFormatter(), text, server=text))["server"] == text
    assert len(written(JsonFormatter(), text).splitlines()) == 1


def json_text(text):
    """Write a text the way that logfmt quotes it: like JSON, and these texts have no letters beyond ASCII."""
    return json.dumps(text)


def test_letters_of_any_script_stay_readable():
    """Only what cannot be printed is escaped."""
    assert 'msg="größer 模型"' in written(LogfmtFormatter(), "größer 模型")


def test_an_extra_cannot_take_the_place_of_a_key():
    """An extra that is called like a key of the line gets another name, and no key can hold a break."""
    line = written(LogfmtFormatter(), "m", **{"level": "error", "a\nb=c": 1})
    assert line.endswith("level=info msg=m extra_level=error a_b_c=1")


def test_an_exception_stays_on_its_line():
    """The traceback is one quoted value, without secrets."""
    stream = io.StringIO()
    logger = setup("logfmt", "info", stream)
    error = ValueError("api_key='sk-verysecret'\nforged")
    logger.error("failed", exc_info=error)
    assert stream.getvalue().count("\n") == 1
    assert 'msg=failed exception="ValueError' in stream.getvalue()
    assert "verysecret" not in stream.getvalue()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("api_key='x y z', port=1", f"api_key={HIDDEN}, port=1"),
        ("admin_api_key='x\\'y', b", f"admin_api_key={HIDDEN}, b"),
        ("api_key='never closed x", f"api_key={HIDDEN}"),
        ("launch --api-key x --port 1", f"launch --api-key {HIDDEN} --port 1"),
        ("launch --api-key=x --port 1", f"launch --api-key={HIDDEN} --port 1"),
        ("['--admin-api-key', 'x', '--port']", f"['--admin-api-key', {HIDDEN}, '--port']"),
        ("Authorization: Bearer x", f"Authorization: {HIDDEN}"),
        ("{'authorization': 'Basic x'}", f"{{'authorization': {HIDDEN}}}"),
        ("#token: 5x", f"#token: {HIDDEN}"),
        ("HF_TOKEN=x A=1", f"HF_TOKEN={HIDDEN} A=1"),
        ("AWS_SECRET=x", f"AWS_SECRET={HIDDEN}"),
        ('DB_PASSWORD="x y" z', f"DB_PASSWORD={HIDDEN} z"),
        ('{"hf_token": "x", "a": 1}', f'{{"hf_token": {HIDDEN}, "a": 1}}'),
        ("http://user:x@host/", f"http://user:{HIDDEN}@host/"),
        ("bad key sk-0123456789abcdef", f"bad key sk-{HIDDEN}"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text, left):
    """The secret goes, what stands around it stays."""
    assert redact(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "--tokenizer-path /m",
        "max_total_num_tokens=5",
        "port 30000 refuses",
        "a: b = c",
        "",
        "#token: 5, token usage: 1",
    ],
)
def test_what_is_no_secret_stays(text):
    """Words that only begin like a secret are no secret."""
    assert redact(text) == text


def test_extras_and_arguments_are_searched_too():
    """A secret is hidden wherever it comes from: an argument, a nested extra, an extra that is called a key."""
    line = written(LogfmtFormatter(), "got %s", "api_key='x-y'", flags=["--api-key", "x-y"], hf_token="x-y")
    assert "x-y" not in line
    assert line.count(HIDDEN) == 3


def test_searching_a_long_text_takes_no_longer_than_it_is_long():
    """A hostile text of a mebibyte is searched before the time limit of the test, which a square of it would exceed."""
    for part in ("--", "token ", "api_key='", "a", "://a:", "--token "):
        redact(part * ((1 << 20) // len(part)))


def test_setup_touches_only_its_own_logger():
    """A second call replaces the first, and the root logger is left alone."""
    first, second = io.StringIO(), io.StringIO()
    before = list(logging.getLogger().handlers)
    setup("logfmt", "info", first)
    setup("json", "warning", second)
    logging.getLogger("stallwatch.part").info("quiet")
    logging.getLogger("stallwatch.part").warning("loud")
    assert first.getvalue() == ""
    assert [json.loads(line)["msg"] for line in second.getvalue().splitlines()] == ["loud"]
    assert logging.getLogger().handlers == before


@pytest.fixture(autouse=True)
def _plain_logger():
    """Leave the logger as it was, so that other tests see what they log."""
    logger = logging.getLogger("stallwatch")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        """Return the time."""
        return self.now


@pytest.fixture
def journal():
    """Yield a function that returns the lines since it was last called."""
    stream = io.StringIO()
    setup("json", "info", stream)

    def lines():
        found = [json.loads(line) for line in stream.getvalue().splitlines()]
        stream.seek(0)
        stream.truncate()
        return [{key: value for key, value in line.items() if key != "ts"} for line in found]

    return lines


def test_what_is_wrong_is_logged_when_it_begins_changes_and_ends(journal):
    """A failure that lasts makes three lines, not one each second."""
    clock = Clock()
    changes = Changes(logging.getLogger("stallwatch.t"), clock=clock)
    key = ("gpu", "", "late")
    named = {"collector": "gpu", "reason": "late"}
    for age in ("3 s", "4 s", "5.5 s"):
        changes.see({key: f"no answer for {age}"})
    assert journal() == [{"level": "warning", "msg": "signal missing", **named, "detail": "no answer for 3 s"}]
    changes.see({key: "no worker"})
    assert [(line["msg"], line["detail"]) for line in journal()] == [("signal missing for another reason", "no worker")]
    clock.now += 12.34
    changes.see({})
    changes.see({})
    assert journal() == [{"level": "info", "msg": "signal back", **named, "seconds": 12.3}]


def test_each_key_is_followed_for_itself(journal):
    """One failure that ends says nothing of another."""
    changes = Changes(logging.getLogger("stallwatch.t"))
    changes.see({("log", "a", "pipe"): "", ("log", "b", "pipe"): ""})
    journal()
    changes.see({("log", "b", "pipe"): ""})
    assert [(line["msg"], line["server"]) for line in journal()] == [("signal back", "a")]


def test_a_signal_whose_reason_changes_is_not_back(caplog):
    """Only when no reason is left has it come back."""
    clock = Clock()
    changes = Changes(logging.getLogger("stallwatch.t"), clock=clock)
    with caplog.at_level("INFO", logger="stallwatch.t"):
        changes.see({("engine", "a", "refused"): ""})
        clock.now += 10
        changes.see({("engine", "a", "not_enabled"): ""})
        assert "back" not in caplog.text
        clock.now += 10
        changes.see({})
    said = ["signal missing", "signal missing for another reason", "signal back"]
    assert [record.getMessage() for record in caplog.records] == said
    assert caplog.records[-1].seconds == 20.0


def test_what_is_of_no_concern_any_more_is_not_back(journal):
    """A server that has gone has no signal that could come back."""
    changes = Changes(logging.getLogger("stallwatch.t"))
    changes.see({("log", "a", "pipe"): "", ("log", "b", "pipe"): ""})
    journal()
    changes.forget(lambda key: key[1] == "a")
    changes.see({})
    assert [(line["msg"], line["server"]) for line in journal()] == [("signal back", "b")]


def test_a_fault_of_the_event_loop_is_one_line_a_minute(caplog):
    """The same again is not said again before; a fault of ours comes with its traceback, one of the system without."""
    now = [0.0]
    faults = LoopFaults(logging.getLogger("stallwatch.test"), clock=lambda: now[0])
    for now[0] in (0.0, 1.0, 59.0, 61.0):
        faults(None, {"message": "no socket", "exception": OSError(24, "Too many open files")})
    assert [(record.getMessage(), record.error) for record in caplog.records] == [
        ("no socket", "[Errno 24] Too many open files")
    ] * 2
    faults(None, {"message": "ours", "exception": KeyError("key")})
    faults(None, {"message": "nothing raised"})
    assert [bool(record.exc_info) for record in caplog.records] == [False, False, True, False]
