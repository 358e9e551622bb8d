"""Read the serving configuration, and report each fault in one sentence.

    [surfaces.home]
    diversity = {method = "mmr", strength = 0.3}

    [[rules]]
    name = "launch"
    kind = "pin"
    items = ["242"]
    slot = 1

docs/control.md explains every key.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import tomllib
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from serving.configuration.contradictions import contradictions, doubts, list_variants
from serving.configuration.rules import Experiment, Rule
from serving.filtering.expression import FilterError, parse
from serving.surfaces import ALIASES, BUILT_IN, HOME, KINDS, Surface

MAX_BYTES = 4 << 20
MAX_RULES = 1_000
MAX_EXPERIMENTS = 100
MAX_SURFACES = 100
SHOWN = 80
TABLES = ("surfaces", "rules", "experiments")

Table = Mapping[str, Any]
Part = TypeVar("Part", Rule, Experiment, Surface)


@dataclass(frozen=True, kw_only=True)
class ServingConfiguration:
    """Surfaces by name, rules and experiments, as they hold together."""

    surfaces: Mapping[str, Surface] = field(default_factory=lambda: dict(BUILT_IN))
    rules: tuple[Rule, ...] = ()
    experiments: tuple[Experiment, ...] = ()
    warnings: tuple[str, ...] = ()
    """Possible contradictions, a sentence each."""
    version: str = "built-in"
    """First hexadecimal digits of the file's SHA-256."""
    source: str = "built-in"
    """The file's name, for messages."""


def read_configuration(path: Path) -> ServingConfiguration:
    """Read and check a serving configuration."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"{path} is larger than {MAX_BYTES} bytes; write fewer rules")
        table = tomllib.loads(content.decode("utf-8-sig"))
    except FileNotFoundError:
        near = difflib.get_close_matches(
            path.name, [one.name for one in path.parent.glob("*.toml")]
        )
        hint = f"; did you mean {path.with_name(near[0])}?" if near else ""
        raise ValueError(f"no serving configuration {path}{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the serving configuration {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    except RecursionError:
        raise ValueError(f"{path} is nested too deep; a table has a few levels") from None
    return check_configuration(table, str(path), hashlib.sha256(content).hexdigest()[:12])


def check_configuration(
    table: Table, source: str = "serving.toml", version: str = "unnamed"
) -> ServingConfiguration:
    """Check a configuration that was read."""
    faults = _Faults(source)
    for key in table.keys() - set(TABLES):
        faults.add(key, _unknown(key, TABLES))
    surfaces = dict(_surfaces(table.get("surfaces", {}), faults))
    rules = _listed(Rule, "rules", table.get("rules", []), MAX_RULES, faults)
    experiments = _listed(
        Experiment, "experiments", table.get("experiments", []), MAX_EXPERIMENTS, faults
    )
    rules = [_with_surfaces(rule, "rules", surfaces, faults) for rule in rules]
    experiments = [_with_surfaces(one, "experiments", surfaces, faults) for one in experiments]
    faults.raise_any()
    try:
        list(list_variants(surfaces, experiments))
    except ValueError as error:
        faults.add("[[experiments]]", _reason(error))
        faults.raise_any()
    for sentence in contradictions(surfaces, rules, experiments):
        faults.add("", sentence)
    faults.raise_any()
    return ServingConfiguration(
        surfaces=surfaces,
        rules=tuple(rules),
        experiments=tuple(experiments),
        warnings=tuple(doubts(rules)),
        version=version,
        source=source,
    )


class _Faults:
    """Faults of a file."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._sentences: dict[str, None] = {}

    def add(self, place: str, sentence: str) -> None:
        middle = f": {place}" if place else ""
        self._sentences[f"{self._source}{middle}: {sentence}"] = None

    def raise_any(self) -> None:
        if self._sentences:
            raise ValueError("\n".join(self._sentences))


def _surfaces(tables: object, faults: _Faults) -> Iterator[tuple[str, Surface]]:
    found = dict(BUILT_IN)
    if not isinstance(tables, Mapping):
        faults.add("surfaces", f"is {_shown(tables)}; write tables such as [surfaces.home]")
        tables = {}
    if len(tables) > MAX_SURFACES:
        faults.add("surfaces", f"are {len(tables)}; at most {MAX_SURFACES} are allowed")
        tables = {}
    for alias in ALIASES.keys() & tables.keys():
        if ALIASES[alias] in tables:
            faults.add(f"[surfaces.{alias}]", f"is another name of {ALIASES[alias]!r}; write one")
    for given, table in tables.items():
        name, place = ALIASES.get(str(given), str(given)), f"[surfaces.{given}]"
        if not isinstance(table, Mapping):
            faults.add(place, f"is {_shown(table)}; write a table")
        elif "name" in table:
            faults.add(place, "unknown key 'name'; the table's own name is the surface's")
        elif (base := _base(name, table, place, faults)) is not None:
            surface = _part(Surface, {**_as_table(base), **table}, place, faults)
            if surface is not None and _filter_holds(surface, place, faults):
                found[name] = surface
    yield from found.items()


def _base(name: str, table: Table, place: str, faults: _Faults) -> Surface | None:
    """Find what a table changes: the surface of its name, or a new one of its kind."""
    kind = table.get("kind")
    base = BUILT_IN.get(name)
    if base is None and kind is None:
        near = difflib.get_close_matches(name, [*BUILT_IN, *ALIASES], n=1)
        hint = f"; or did you mean [surfaces.{near[0]}]?" if near else ""
        faults.add(place, f"a surface of your own needs kind = {' or '.join(KINDS)}{hint}")
        return None
    if kind is not None and (base is None or kind != base.kind):
        # Not a known kind: the check of the whole table says what is allowed.
        base = BUILT_IN.get(kind, HOME) if isinstance(kind, str) else HOME
    assert base is not None
    base = dataclasses.replace(base, name=name)
    # A learned blend has weights of its own.
    return dataclasses.replace(base, learned=False) if "sources" in table else base


def _as_table(surface: Surface) -> dict[str, Any]:
    table: dict[str, Any] = TypeAdapter(Surface).dump_python(surface, mode="json", by_alias=True)
    return table


def _filter_holds(surface: Surface, place: str, faults: _Faults) -> bool:
    try:
        if surface.filter is not None:
            parse(surface.filter)
    except FilterError as error:
        faults.add(place, f"filter = {_shown(surface.filter)}: {error}")
        return False
    return True


def _listed(kind: type[Part], name: str, tables: object, limit: int, faults: _Faults) -> list[Part]:
    if not isinstance(tables, Sequence) or isinstance(tables, str):
        faults.add(name, f"is {_shown(tables)}; write tables such as [[{name}]]")
        return []
    if len(tables) > limit:
        faults.add(name, f"are {len(tables)}; at most {limit} are allowed")
        return []
    found: dict[str, Part] = {}
    for number, table in enumerate(tables, 1):
        named = table.get("name") if isinstance(table, Mapping) else None
        place = f"[[{name}]] {named!r}" if isinstance(named, str) else f"[[{name}]] number {number}"
        if not isinstance(table, Mapping):
            faults.add(place, f"is {_shown(table)}; write a table")
            continue
        part = _part(kind, table, place, faults)
        if part is not None and part.name in found:
            faults.add(place, "there are two of this name; give each a name of its own")
        elif part is not None:
            found[part.name] = part
    return list(found.values())


def _with_surfaces(part: Part, name: str, surfaces: Collection[str], faults: _Faults) -> Part:
    """Write out other names of surfaces, and refuse those that there are not."""
    assert not isinstance(part, Surface)
    if part.surfaces is None:
        return part
    for surface in part.surfaces:
        if ALIASES.get(surface, surface) not in surfaces:
            faults.add(f"[[{name}]] {part.name!r}", f"surfaces: {_unknown(surface, surfaces)}")
    named = dict.fromkeys(ALIASES.get(surface, surface) for surface in part.surfaces)
    return dataclasses.replace(part, surfaces=tuple(named))


def _part(kind: type[Part], table: Table, place: str, faults: _Faults) -> Part | None:
    try:
        # JSON is where strict types take a list for a tuple, and a text for a time.
        text = json.dumps(table, default=str)
        return TypeAdapter(kind).validate_json(text, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        for fault in _distinct(error.errors(include_url=False)):
            faults.add(place, _sentence(kind, fault))
    except (RecursionError, UnicodeEncodeError):
        faults.add(place, "is nested too deep, or holds characters that are no text")
    return None


def _distinct(found: Sequence[Any]) -> list[Any]:
    """Leave out that a list is too short where its parts have faults of their own."""
    places = [fault["loc"] for fault in found]
    return [
        fault
        for fault in found
        if fault["type"] != "too_short"
        or all(
            place == fault["loc"] or place[: len(fault["loc"])] != fault["loc"] for place in places
        )
    ]


def _sentence(kind: type, fault: Mapping[str, Any]) -> str:
    """Format a fault that pydantic found: key, value, remedy."""
    location = fault["loc"]
    key = _dotted(location)
    if fault["type"] == "unexpected_keyword_argument":
        return _unknown(key, _keys_at(kind, location))
    if fault["type"] == "missing":
        return f"{key} is missing; give it a value"
    reason = fault["msg"].removeprefix("Value error, ")
    reason = reason[:1].lower() + reason[1:]
    if isinstance(fault["input"], Mapping) and fault["type"] == "value_error":
        return f"{key}: {reason}" if key else reason
    return f"{key} = {_shown(fault['input'])}: {reason}"


def _dotted(location: Sequence[str | int]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _keys_at(kind: type, location: Sequence[str | int]) -> list[str]:
    """List the keys of the dataclass that a key was found in."""
    for part in location[:-1]:
        hints = typing.get_type_hints(kind, include_extras=True)
        named = {_key(name, hint): hint for name, hint in hints.items()}
        kind = next(_dataclasses_in(named.get(str(part))), kind)
    return list_keys(kind)


def list_keys(kind: type) -> list[str]:
    """List the keys of a table."""
    hints = typing.get_type_hints(kind, include_extras=True)
    keys = [_key(name, hint) for name, hint in hints.items()]
    # A surface is named by its table.
    return [key for key in keys if kind is not Surface or key != "name"]


def _dataclasses_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from _dataclasses_in(part)


def _key(name: str, hint: Any) -> str:
    """How a field is called in a file."""
    aliases = [one.alias for one in typing.get_args(hint) if isinstance(one, FieldInfo)]
    return next((alias for alias in aliases if alias), name)


def _unknown(key: str, allowed: Iterable[str]) -> str:
    allowed = sorted(allowed)
    near = difflib.get_close_matches(key.rpartition(".")[2], allowed, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(allowed)}"
    return f"unknown {key!r}; {hint}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def _reason(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        return str(error.errors()[0]["msg"]).removeprefix("Value error, ")
    return str(error)
