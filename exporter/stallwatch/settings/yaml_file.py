"""What does a YAML file say?

Its plain values, or one line that says where it is wrong. No line shows what a mapping or list holds, nor a text that
YAML could not make sense of, since either may be a secret.
"""

from pathlib import Path
from typing import Any

import yaml

from stallwatch.config import ConfigError
from stallwatch.settings.showing import shown_key

LARGEST_FILE = 1 << 20


def read_yaml(path: Path) -> Any:
    """Return the one document of this file."""
    try:
        return _Loader(_text(path)).get_single_data()
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{path}{_position(error.problem_mark)}: {_problem(error)}") from None
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{path}: character {error.position + 1}: not allowed in YAML") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply") from None


def _position(mark: yaml.Mark | None) -> str:
    return f": line {mark.line + 1}, column {mark.column + 1}" if mark else ""


def _problem(error: yaml.MarkedYAMLError) -> str:
    # These two quote what stands in the file.
    quotes = isinstance(error, yaml.constructor.ConstructorError) or "tag handle" in (error.problem or "")
    return "not a plain YAML value" if quotes else error.problem or "not YAML"


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise ConfigError(f"{path}: larger than 1 MiB")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None


class _Loader(yaml.SafeLoader):
    """Plain YAML: no key twice, and no anchors, with which a small file can grow beyond all memory."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Refuse a node that is named, or that repeats a named one."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None) is not None:
            raise yaml.MarkedYAMLError(problem="anchors and aliases are not allowed", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - as inherited
        """Refuse a number or date that has the form but not the value."""
        try:
            return super().construct_object(node, deep=deep)
        except ValueError:
            problem = "an impossible number or date; quote it if it is text"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuse a key that stands twice in one mapping."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"key {shown_key(key.value)} stands here twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                seen.add(key.value)
        return node
