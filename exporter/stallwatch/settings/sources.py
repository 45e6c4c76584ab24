"""Where does each setting come from?

Flags win over the environment, the environment over the file, the file over the defaults. Each source is checked on its
own against the types in `config`, so that an error names the file, variable or flag at fault, and no secret.
"""

import os
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

import msgspec

from stallwatch.config import Config, ConfigError, RuleError
from stallwatch.sections import Section
from stallwatch.settings.flags import FILE_FLAG, FLAGS, add_flags, given
from stallwatch.settings.showing import shown, shown_key, shown_kind
from stallwatch.settings.spelling import closest, hint

PREFIX = "STALLWATCH_"
# Not settings: what tests hand to stand-ins, and what Kubernetes gives every pod beside a Service named stallwatch.
FOREIGN = re.compile(r"STALLWATCH_(FAKE_.*|SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_.*)?)?)")
FILE_VARIABLE = "STALLWATCH_CONFIG__FILE"
__all__ = ["FLAGS", "ConfigError", "add_flags", "file_of", "given", "load"]


def load(flags: Mapping[str, Any], environ: Mapping[str, str]) -> Config:
    """Return the settings of all sources; `flags` maps key paths (and `config.file`) to the values that were given."""
    file = file_of(flags, environ)
    sources = (*([_of_file(file)] if file else []), _of_environment(environ), _of_flags(flags))
    values: dict[str, Any] = {}
    for source in sources:
        values = _merged(values, source.section(Config, source.raw, ""))
    try:
        return msgspec.structs.replace(msgspec.convert(values, Config), file=file)
    except msgspec.ValidationError as error:
        refused = error.__cause__
        if not isinstance(refused, RuleError):
            raise
        places = [
            (source, key) for key in (refused.key, refused.other) for source in reversed(sources) if source.sets(key)
        ]
        source, key = places[0]
        raise ConfigError(f"{source.origin(key)}: {refused}") from None


def file_of(flags: Mapping[str, Any], environ: Mapping[str, str]) -> Path | None:
    """Return the configuration file, or None where none was named."""
    name = flags.get(FILE_FLAG) or environ.get(FILE_VARIABLE)
    return Path(name) if name else None


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: _merged(below[key], above[key]) for key in below.keys() & above.keys() if isinstance(above[key], dict)}
    return {**below, **above, **both}


@dataclass(frozen=True, slots=True)
class Source:
    """Settings of one origin, and how to read them."""

    raw: Any
    origin: Callable[[str], str]  # the file, variable or flag that sets a key path
    base: Path  # what relative file names are relative to
    text: bool = False  # every value is text

    def sets(self, path: str) -> bool:
        """Say whether this key path is given here."""
        found = self.raw
        for key in path.partition("[")[0].split("."):
            if not isinstance(found, dict) or key not in found:
                return False
            found = found[key]
        return True

    def section(self, kind: type[Section], raw: Any, at: str) -> dict[str, Any]:
        """Return the values of a mapping, whole or in part."""
        types_of = _types_of(kind)
        if raw is None:  # a key with nothing but comments below it
            raw = {}
        if not isinstance(raw, Mapping):
            self.fail(at, f"expected a mapping of {', '.join(sorted(types_of))}, got {shown_kind(raw)}")
        for key in raw:
            if key not in types_of:
                self.fail(_joined(at, shown_key(key)), _unknown(shown_key(key), types_of))
        return {key: self.value(types_of[key], value, _joined(at, key)) for key, value in raw.items()}

    def value(self, kind: Any, raw: Any, at: str) -> Any:
        """Return one value of this type, which may be a section or a list itself."""
        if get_origin(kind) in {Union, types.UnionType}:
            if raw is None:
                return None
            kind = next(arm for arm in get_args(kind) if arm is not type(None))
        if isinstance(kind, type) and issubclass(kind, Section):
            return self.section(kind, raw, at)
        if get_origin(kind) is tuple:
            return self.items(get_args(kind)[0], raw, at)
        extra = _extra(kind)
        return self.section(extra["partial"], raw, at) if "partial" in extra else self.leaf(kind, extra, raw, at)

    def items(self, kind: Any, raw: Any, at: str) -> list[Any]:
        """Return the values of a list, in which a mapping must be complete."""
        if self.text and isinstance(raw, str):
            raw = [item.strip() for item in raw.split(",")]
        if not isinstance(raw, list | None):
            self.fail(at, f"expected a list, got {shown_kind(raw)}")
        values = [self.value(kind, item, f"{at}[{number}]") for number, item in enumerate(raw or ())]
        if isinstance(kind, type) and issubclass(kind, Section):
            needed = [field.name for field in msgspec.structs.fields(kind) if field.required]
            for number, value in enumerate(values):
                for name in needed:
                    if name not in value:
                        self.fail(f"{at}[{number}].{name}", "missing, and every entry needs it")
        return values

    def leaf(self, kind: Any, extra: Mapping[str, Any], raw: Any, at: str) -> Any:
        """Return one plain value."""
        try:
            parsed = extra["parse"](raw) if "parse" in extra else raw
            if self.text and kind is bool:
                parsed = {"true": True, "1": True, "false": False, "0": False}.get(str(raw).lower(), raw)
            value = msgspec.convert(parsed, kind, strict=not self.text or kind is bool)
        except ValueError:
            got = "something else, which is not shown" if extra.get("secret") else shown(raw)
            self.fail(at, f"expected {_expected(kind)}, got {got}")
        return os.path.abspath(self.base / value) if extra.get("file") else value  # noqa: PTH100 - resolve() would follow links

    def fail(self, at: str, wrong: str) -> NoReturn:
        """Refuse what stands at this key path."""
        origin = self.origin(at)
        raise ConfigError(": ".join(part for part in (origin, at, wrong) if part))


def _types_of(kind: type[Section]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(kind) if field.type != Path | None}


def _joined(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


def _extra(kind: Any) -> Mapping[str, Any]:
    metas = [meta for meta in getattr(kind, "__metadata__", ()) if isinstance(meta, msgspec.Meta)]
    return (metas[0].extra or {}) if metas else {}


def _expected(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    metas = [meta.description for meta in getattr(kind, "__metadata__", ()) if isinstance(meta, msgspec.Meta)]
    return metas[0] or "another value" if metas else "true or false"


def _unknown(key: str, allowed: Mapping[str, Any]) -> str:
    return f"unknown key; allowed: {', '.join(sorted(allowed))}{hint(key, allowed)}"


def _of_environment(environ: Mapping[str, str]) -> Source:
    variables = {_variable(path): path for path in _paths(Config)}
    raw: dict[str, Any] = {}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or FOREIGN.fullmatch(name) or name == FILE_VARIABLE:
            continue
        if name not in variables:
            close = closest(name, variables)
            instead = f"did you mean {close}?" if close else f"allowed: {', '.join(variables)}"
            raise ConfigError(f"{name}: unknown variable; {instead}")
        _put(raw, variables[name], environ[name])
    return Source(raw, _variable, Path(), text=True)


def _variable(path: str) -> str:
    return PREFIX + path.partition("[")[0].replace(".", "__").upper()


def _paths(kind: type[Section], at: str = "") -> list[str]:
    """List the key paths of all plain values; what a list of mappings holds can only be written in the file."""
    paths = []
    for name, type_of in _types_of(kind).items():
        path = _joined(at, name)
        if isinstance(type_of, type) and issubclass(type_of, Section):
            paths += _paths(type_of, path)
        elif path != "servers":
            paths.append(path)
    return paths


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    *sections, last = path.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[last] = value


def _of_flags(flags: Mapping[str, Any]) -> Source:
    raw: dict[str, Any] = {}
    for path, value in flags.items():
        if path != FILE_FLAG:
            _put(raw, path, value)
    names = {flag.path: flag.name for flag in FLAGS}
    return Source(raw, lambda path: names.get(path.partition("[")[0], f"--{path}"), Path(), text=True)


def _of_file(path: Path) -> Source:
    from stallwatch.settings.yaml_file import read_yaml  # noqa: PLC0415 YAML is loaded only where there is a file

    return Source(read_yaml(path), lambda _: str(path), path.parent)
