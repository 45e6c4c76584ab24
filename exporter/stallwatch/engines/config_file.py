"""Which flags stand in the file that `--config` names on the command line of a server?

The file is of a stranger, so nothing is built from it: a few lines of YAML can grow beyond all memory when they are.
Only the keys of the outermost mapping count, each with its value or, of a list, the first one, as they are written.
"""

from collections.abc import Iterator

import yaml

DEEPEST = 16
LONGEST_KEY, LONGEST_VALUE = 100, 1000
MOST_KEYS = 1000
_TRUE = frozenset(("true", "yes", "on"))
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def flags_in(text: str) -> list[str]:
    """Return the flags as words of a command line; raises ValueError for what is no mapping, without quoting it."""
    try:
        _require_shallow(text)
        document = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise ValueError(type(error).__name__) from None
    if not isinstance(document, yaml.MappingNode):
        raise ValueError("no mapping")  # noqa: TRY004  (a bad file is one kind of error to the caller)
    return [flag for key, value in document.value[:MOST_KEYS] for flag in _flag(key, value)]


def _require_shallow(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError("nested too deeply")


def _flag(key: yaml.Node, value: yaml.Node) -> Iterator[str]:
    if isinstance(value, yaml.SequenceNode) and value.value:
        value = value.value[0]
    if not isinstance(key, yaml.ScalarNode) or not isinstance(value, yaml.ScalarNode):
        return
    flag = "--" + str(key.value)[:LONGEST_KEY].replace("_", "-")
    kind = value.tag.rpartition(":")[2]
    if kind == "bool" and value.value.lower() in _TRUE:
        yield flag
    elif kind not in ("bool", "null"):
        yield f"{flag}={value.value[:LONGEST_VALUE]}"
