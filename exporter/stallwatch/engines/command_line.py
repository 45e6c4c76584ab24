"""Which program does a command line run, and what do its flags say?

A running server's flags were accepted by its argparse, so an abbreviation is whatever flag it is a prefix of. The file
named by `--config` holds long flags as keys; what stands on the command line itself wins over it.
"""

import re
from collections.abc import Collection, Mapping

from stallwatch.engines.engine import Argv, ReadText

_INTERPRETER = re.compile(r"(?:python|pypy)[0-9.]*[a-z]?")
# Only wrappers that become the program they start: one that stays has the program as a child, which is found itself.
_WRAPPERS = frozenset(
    ("chrt", "env", "gosu", "ionice", "nice", "nohup", "numactl", "prlimit", "setsid", "stdbuf", "taskset")
)


def program(argv: Argv, names: Collection[str]) -> tuple[str, ...]:
    """Return the words from the program on: `("-m", module, ...)` for a module, else its file name and arguments.

    `names` are the programs that may follow a wrapper such as numactl. An interpreter's own options are left out.
    """
    if not argv:
        return ()
    words = tuple(argv)
    if _base(words[0]) in _WRAPPERS:
        starts = (at for at, word in enumerate(words) if _base(word) in names or _INTERPRETER.fullmatch(_base(word)))
        words = words[next(starts, len(words)) :]
    if not words:
        return ()
    if _INTERPRETER.fullmatch(_base(words[0])):
        return _interpreted(words)
    return (_base(words[0]), *words[1:])


def interpreter(argv: Argv) -> str:
    """Return the interpreter as the command line names it, or the program where there is none."""
    return next((word for word in argv if _INTERPRETER.fullmatch(_base(word))), argv[0] if argv else "")


def flag_values(words: Argv, flags: Mapping[str, str], switches: Collection[str]) -> dict[str, str]:
    """Collect the values of these flags (`flag -> key`); keys in `switches` take no value. The last one counts."""
    values: dict[str, str] = {}
    for at, word in enumerate(words):
        if word == "--":
            break
        flag, equals, value = word.partition("=")
        key = _key(flag, flags)
        if key is None:
            continue
        if key in switches:
            values[key] = "true"
        elif equals:
            values[key] = value
        elif at + 1 < len(words) and not words[at + 1].startswith("--"):
            values[key] = words[at + 1]
    return values


def with_config(words: Argv, path: str | None, read_text: ReadText) -> tuple[str, ...]:
    """Put the flags of a configuration file before those of the command line; raises ValueError for a bad file."""
    if not path:
        return tuple(words)
    from stallwatch.engines.config_file import flags_in  # noqa: PLC0415  (it costs a worker YAML, and few nodes need it)

    return (*flags_in(read_text(path)), *words)


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _interpreted(words: tuple[str, ...]) -> tuple[str, ...]:
    at = 1
    while at < len(words) and words[at].startswith("-"):
        option = words[at]
        letter = next((place for place, text in enumerate(option) if text in "cmWX"), None)
        if option.startswith("--") or letter is None:
            at += 1
            continue
        value, taken = option[letter + 1 :], 1
        if not value:
            value, taken = words[at + 1] if at + 1 < len(words) else "", 2
        at += taken
        if option[letter] == "c":
            return ()
        if option[letter] == "m":
            return ("-m", value, *words[at:])
    script = words[at : at + 1]
    return (_script(script[0]), *words[at + 1 :]) if script else ()


def _script(path: str) -> str:
    folder, _, name = path.rpartition("/")
    # Only what lies in the package is told by its folder: any program may have a file of this name.
    return f"{_base(folder)}/{name}" if name.endswith(".py") else name


def _key(flag: str, flags: Mapping[str, str]) -> str | None:
    if not flag.startswith("-"):
        return None
    if flag in flags:
        return flags[flag]
    if not flag.startswith("--") or len(flag) < 4:
        return None
    flag = flag.replace("_", "-")
    keys = {key for name, key in flags.items() if name.startswith(flag)}
    return flags.get(flag) or (keys.pop() if len(keys) == 1 else None)
