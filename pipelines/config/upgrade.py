"""Settings of an earlier version, as values and as the text of a TOML file.

The text keeps its comments and its order. It is edited line by line and then read again: a file
whose new text does not hold the upgraded values is refused.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from pipelines.config.removed import REMOVED_KEYS, RENAMED_KEYS, removal
from pipelines.config.toml import Table, merge, nested, set_value, without_keys

Path = tuple[str, ...]
"""A dotted key in parts."""


def upgraded(table: Mapping[str, Any]) -> tuple[Table, list[str]]:
    """Rename the keys of an earlier version and leave out those that were removed.

    Returns:
        Settings under their present names; the renamed and removed keys, a line each.
    """
    found, changes = dict(table), []
    for old, new in RENAMED_KEYS.items():
        value, present = set_value(found, old), set_value(found, new)
        if value is None:
            continue
        found = without_keys(found, [old])
        if isinstance(value, Mapping) and isinstance(present, Mapping):
            value = merge(value, present)
        elif present is not None:
            changes.append(f"{old} = {value!r} left out: {new} is {present!r}")
            continue
        found = merge(found, nested(new, value))
        changes.append(f"{old} renamed: {new}")
    for key, instead in REMOVED_KEYS.items():
        if set_value(found, key) is not None:
            found = without_keys(found, [key])
            changes.append(f"{key} removed: {instead}")
    return found, changes


def refuse_old_keys(table: Mapping[str, Any], source: str) -> None:
    """Refuse settings under a name that was renamed or removed."""
    old = (key for key in (*RENAMED_KEYS, *REMOVED_KEYS) if set_value(table, key) is not None)
    if complaints := [f"{source}: {removal(key)}" for key in old]:
        raise ValueError("\n".join(complaints))


def upgrade_text(text: str, source: str) -> tuple[str, list[str]]:
    """Upgrade the text of a TOML file.

    Returns:
        The new text, and the renamed and removed keys, a line each.
    """
    try:
        wanted, changes = upgraded(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{source} is not valid TOML: {error}; nothing was changed") from error
    lines = text.splitlines()
    for old, new in RENAMED_KEYS.items():
        lines = _rename(lines, tuple(old.split(".")), tuple(new.split(".")))
    for key in REMOVED_KEYS:
        lines = _without(lines, tuple(key.split(".")))
    after = "".join(f"{line}\n" for line in lines)
    read = _read(after)
    if read is None or _filled(read) != _filled(wanted):
        raise ValueError(
            f"{source} is written in a way that cannot be rewritten line by line (an inline table, "
            f"or a section twice); nothing was changed. Change it by hand: {'; '.join(changes)}"
        )
    return (after if changes else text), changes


class _Statement(NamedTuple):
    """A header, or a key with its value, over some lines."""

    begin: int
    end: int
    path: Path
    table: Path
    """Table of the header above; its own for a header."""


def _statements(lines: list[str]) -> Iterator[_Statement]:
    table: Path = ()
    begin = 0
    while begin < len(lines):
        end = begin + 1
        while (read := _read("\n".join(lines[begin:end]))) is None and end < len(lines):
            end += 1
        if read and lines[begin].lstrip().startswith("["):
            table = _only_path(read)
            yield _Statement(begin, end, table, table)
        elif read:
            key = _read(lines[begin].split("=", 1)[0] + "= 0")
            yield _Statement(begin, end, table + _only_path(key or read), table)
        begin = end


def _read(text: str) -> Table | None:
    with suppress(tomllib.TOMLDecodeError):
        return tomllib.loads(text)
    return None


def _only_path(table: Any) -> Path:
    path: Path = ()
    while isinstance(table, dict) and table:
        name, table = next(iter(table.items()))
        path += (name,)
    return path


def _filled(table: Any) -> Any:
    """Leave out tables without keys."""
    if not isinstance(table, Mapping):
        return table
    parts = {name: _filled(value) for name, value in table.items()}
    return {name: value for name, value in parts.items() if value != {}}


def _without(lines: list[str], key: Path) -> list[str]:
    gone = [one for one in _statements(lines) if one.path[: len(key)] == key]
    lost = {place for one in gone for place in range(one.begin, one.end)}
    return [line for place, line in enumerate(lines) if place not in lost]


def _rename(lines: list[str], old: Path, new: Path) -> list[str]:
    known, moved, gone = list(_statements(lines)), list[str](), set[int]()
    is_set, lines = any(one.path == new for one in known), list(lines)
    for one in known:
        is_header = one.path == one.table
        shared = 0 if is_header else len(one.table)
        if one.path[: len(old)] != old or shared >= len(old):
            continue
        before, after = ".".join(old[shared:]), ".".join(new[shared:])
        if is_header or (new[:shared] == one.table and not is_set):
            lines[one.begin] = lines[one.begin].replace(before, after, 1)
            continue
        if not is_set:
            moved = lines[one.begin : one.end]
            moved[0] = moved[0].lstrip().replace(before, ".".join(new), 1)
            is_set = True
        gone |= set(range(one.begin, one.end))
    kept = [line for place, line in enumerate(lines) if place not in gone]
    top = max((one.end for one in _statements(kept) if not one.table), default=0)
    return [*kept[:top], *moved, *kept[top:]]
