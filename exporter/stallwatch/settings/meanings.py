"""What does each key mean? The text that stands below its field, for the help and for the documentation."""

import ast
import inspect
from functools import cache

import msgspec

from stallwatch import config, sections


def meaning_of(path: str) -> str:
    """Return what a key path such as `health.interval` means; empty where the source of the package is not at hand."""
    *names, key = path.split(".")
    kind: type[sections.Section] = config.Config
    for name in names:
        kind = next(field.type for field in msgspec.structs.fields(kind) if field.name == name)
    return _meanings().get((kind.__name__, key), "")


def meanings_of(kind: type[sections.Section]) -> dict[str, str]:
    """Return what each key of a section means, in the order of its fields."""
    return {key: text for (section, key), text in _meanings().items() if section == kind.__name__}


@cache
def _meanings() -> dict[tuple[str, str], str]:
    try:
        source = "\n".join(map(inspect.getsource, (sections, config)))
    except OSError:  # shipped as bytecode only
        return {}
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    pairs = ((node.name, *pair) for node in classes for pair in zip(node.body, node.body[1:], strict=False))
    return {
        (name, field.target.id): " ".join(text.value.value.split())
        for name, field, text in pairs
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
