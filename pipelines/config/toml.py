"""One TOML file -> typed, frozen dataclasses, with errors that name the file and the key.

    preset = "auto"             a file of pipelines/presets, below this one
    [two_tower]
    embedding_dim = 32          what differs from it

Dataclasses stay free of any knowledge of files: this module reads their fields, refuses keys that
they do not have, and lets pydantic check the types.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import TypeAdapter, ValidationError

from features.reading.databases import masked
from pipelines.config.removed import REMOVED_KEYS, RENAMED_KEYS, removal

Table = dict[str, Any]
Config = TypeVar("Config")
ADAPTERS: dict[type, TypeAdapter[Any]] = {}
ANY = "<name>"
"""In a dotted key: any name."""


def read_toml(path: Path) -> Table:
    """Read a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.toml")])
        hint = f"; did you mean {path.parent / near[0]}?" if near else ""
        raise ValueError(f"no configuration file {path}{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the configuration file {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"{path} is not valid TOML: {error}. Strings need quotes, tables look like [data]"
        ) from error


def parse_assignment(text: str) -> Table:
    """Turn ``a.b=c`` into nested tables; ``c`` is TOML, or a plain string where it is not."""
    dotted, equals, raw = text.partition("=")
    keys = [key.strip() for key in dotted.split(".")]
    if not equals or not all(keys):
        raise ValueError(
            f"--set {text!r} is not an assignment; write --set table.key=value, "
            "for example --set two_tower_training.max_epochs=5"
        )
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    return nested(".".join(keys), value)


def nested(key: str, value: Any) -> Table:
    """Turn a dotted key and its value into nested tables."""
    name, dot, rest = key.partition(".")
    return {name: nested(rest, value) if dot else value}


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Table:
    """Merge two trees of tables; the upper one's other values win."""
    merged = dict(below)
    for key, value in above.items():
        lower = merged.get(key)
        if isinstance(lower, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(lower, value)
        else:
            merged[key] = value
    return merged


def set_value(table: Mapping[str, Any], key: str) -> Any:
    """Look a dotted key up; None where it is not set."""
    found: Any = table
    for part in key.split("."):
        if not isinstance(found, dict) or part not in found:
            return None
        found = found[part]
    return found


def without_keys(table: Table, keys: Sequence[str]) -> Table:
    """Leave dotted keys out of nested tables."""
    kept = dict(table)
    for key in keys:
        name, _, rest = key.partition(".")
        below = kept.get(name)
        if not rest:
            kept.pop(name, None)
        elif isinstance(below, dict):
            kept[name] = without_keys(below, [rest])
    return kept


def dataclasses_in(annotation: Any) -> Iterator[type]:
    """Find the dataclasses in a field's type: itself, in a union, or as a container's element."""
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        yield annotation
    for part in typing.get_args(annotation):
        yield from dataclasses_in(part)


def is_mapping(annotation: Any) -> bool:
    """Return True if a field holds a mapping, or a mapping or None."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(is_mapping(part) for part in typing.get_args(annotation))
    return isinstance(origin, type) and issubclass(origin, Mapping)


def list_keys(kind: type, prefix: str = "") -> Iterator[str]:
    """List every dotted key that a dataclass and those inside it have."""
    for name, annotation in typing.get_type_hints(kind).items():
        if prefix + name in REMOVED_KEYS:
            continue
        yield prefix + name
        middle = f"{ANY}." if is_mapping(annotation) else ""
        for inner in dataclasses_in(annotation):
            yield from list_keys(inner, f"{prefix}{name}.{middle}")


def nearest_key(wanted: str, siblings: Iterable[str], anywhere: Iterable[str]) -> str | None:
    """Find the key a writer most likely meant: a neighbour, or else the same name elsewhere."""
    parent, dot, last = wanted.rpartition(".")
    if match := difflib.get_close_matches(last, siblings, n=1, cutoff=0.6):
        return parent + dot + match[0]
    by_last = {key.rpartition(".")[2]: key for key in reversed(list(anywhere))}
    match = difflib.get_close_matches(last, by_last, n=1, cutoff=0.8)
    return by_last[match[0]] if match else None


def describe_unknown(kind: type, key: str) -> str:
    """Describe a key that no dataclass has: what became of it, or the nearest that there is."""
    if removed := removal(key):
        return removed
    known, parent = list(list_keys(kind)), re.sub(r"\[\d+\]", "", key).split(".")[:-1]

    def is_sibling(other: str) -> bool:
        above = other.split(".")[:-1]
        pairs = zip(above, parent, strict=False)
        return len(above) == len(parent) and all(one in (ANY, name) for one, name in pairs)

    allowed = sorted(other.rpartition(".")[2] for other in known if is_sibling(other))
    match = nearest_key(key, allowed, known)
    hint = f"did you mean {match!r}?" if match else f"allowed here: {', '.join(allowed)}"
    return f"unknown key {key!r}; {hint}"


def dotted(location: Sequence[str | int]) -> str:
    """Write a pydantic location as a key: ('a', 0, 'b') -> a[0].b."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def validate(kind: type[Config], table: Mapping[str, Any], source: str) -> Config:
    """Build a dataclass from tables, strictly: a string is no number; messages name the source."""
    # JSON is where pydantic's strict mode takes a list for a tuple and a string for a path.
    encoded = json.dumps(table, default=str)
    try:
        found: Config = type_adapter(kind).validate_json(encoded, strict=True, extra="forbid")
        return found
    except ValidationError as error:
        lines = []
        for fault in error.errors():
            key, reason = dotted(fault["loc"]), fault["msg"].removeprefix("Value error, ")
            if fault["type"] == "unexpected_keyword_argument":
                line = describe_unknown(kind, key)
            elif fault["type"] == "missing":
                line = f"{key} is missing; give it a value"
            elif fault["type"] == "value_error" and isinstance(fault["input"], dict):
                line = f"{key}: {reason}"
            else:
                line = (
                    removal(key, fault["input"])
                    or f"{key} = {masked(repr(fault['input']))}: {reason}"
                )
            lines.append(f"{masked(source)}: {line}")
        # Not from the error, which has the values: a password may be one.
        raise ValueError("\n".join(dict.fromkeys(lines))) from None


def type_adapter(kind: type) -> TypeAdapter[Any]:
    """Return the validator of a dataclass, which takes a tenth of a second to build."""
    if kind not in ADAPTERS:
        ADAPTERS[kind] = TypeAdapter(kind)
    return ADAPTERS[kind]


def to_toml(table: Mapping[str, Any]) -> str:
    """Write tables as TOML; a None is left out, which reads back as the default."""
    return tomli_w.dumps(without_none(table))


def without_none(value: Any) -> Any:
    """Leave out the keys of tables that have no value."""
    if isinstance(value, Mapping):
        return {key: without_none(part) for key, part in value.items() if part is not None}
    return [without_none(part) for part in value] if isinstance(value, list) else value


def upgraded(table: Mapping[str, Any]) -> Table:
    """Rename the keys of an earlier version, and leave out those that were removed."""
    found = dict(table)
    for old, new in RENAMED_KEYS.items():
        if (value := set_value(found, old)) is not None:
            # What a file has under the new name wins.
            found = without_keys(found, [old])
            found = merge(nested(new, value), found)
    return without_keys(found, list(REMOVED_KEYS))


def refuse_old_keys(table: Mapping[str, Any], source: str) -> None:
    """Refuse settings under a name that was renamed or removed."""
    old = (key for key in (*RENAMED_KEYS, *REMOVED_KEYS) if set_value(table, key) is not None)
    if complaints := [f"{source}: {removal(key)}" for key in old]:
        raise ValueError("\n".join(complaints))
