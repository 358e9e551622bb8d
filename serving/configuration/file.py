"""Read the serving configuration, and report each fault in one sentence.

    [surfaces.home]
    diversity = {method = "mmr", strength = 0.3}

    [[rules]]
    name = "launch"
    kind = "pin"
    items = ["242"]
    slot = 1

docs/control.md explains every key. A certain contradiction is refused with both names; a possible
one is a warning, since only a bundle tells which items an expression has.
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
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from recsys.content.config import EndpointConfig
from serving.configuration.rules import Experiment, Rule
from serving.surfaces import BUILT_IN, HOME, KINDS, SOURCES, STRICT, Surface, suggest

MAX_BYTES = 4 << 20
SHOWN = 80


def contradictions(
    surfaces: Mapping[str, Surface], rules: Sequence[Rule], experiments: Sequence[Experiment]
) -> Iterator[str]:
    """List the settings that cannot hold together."""
    for one, other in combinations(experiments, 2):
        if one.meets(other):
            yield (
                f"experiments {one.name!r} and {other.name!r} run on one surface at one time; "
                "part their surfaces, or their from and until"
            )
    pins = [(rule, rule.slot) for rule in rules if rule.slot is not None]
    for rule, slot in pins:
        for name, surface in surfaces.items():
            if rule.on(name) and slot > surface.max_k:
                yield (
                    f"rule {rule.name!r} pins to slot {slot}, and lists of surface {name!r} "
                    f"have at most {surface.max_k}; choose a lower slot or raise its max_k"
                )
    for (first, slot), (second, its_slot) in combinations(pins, 2):
        if slot == its_slot and first.meets(second):
            yield (
                f"rules {first.name!r} and {second.name!r} both pin to slot {slot} of one surface "
                "at one time; choose another slot, or part their surfaces, users or times"
            )
    yield from (sentence for sentence, is_certain in clashes(rules) if is_certain)


def clashes(rules: Sequence[Rule]) -> Iterator[tuple[str, bool]]:
    """List what two rules do to an item of both, and whether there certainly is such an item.

    There is if both name it, or have the same expression; there may be if one has an expression.
    """
    for one, other in combinations(rules, 2):
        complaint = _complaint(one, other)
        if complaint is None or not one.meets(other):
            continue
        named = f"rules {one.name!r} and {other.name!r}"
        others = set(other.items)
        shared = next((item_id for item_id in one.items if item_id in others), None)
        if one.where is None and other.where is None:
            if shared is not None:
                yield f"{named}: item {shared!r} is {complaint}", True
        elif one.where == other.where and not one.items and not other.items:
            yield f"{named}: where {one.where} is {complaint}", True
        elif shared or not one.items or not other.items:
            yield f"{named}: an item that is in both is {complaint}", False


def _complaint(one: Rule, other: Rule) -> str | None:
    kinds = {one.kind, other.kind}
    if kinds == {"pin", "hide"}:
        return "pinned and hidden; remove it from one of them"
    if kinds == {"boost", "bury"} and one.priority == other.priority:
        return "boosted and buried with equal priority; give one of them a higher priority"
    # Pins of expressions never show one item twice: the second takes its next.
    if kinds == {"pin"} and one.where is None and other.where is None:
        return "pinned twice on one surface; remove it from one of them"
    return None


def list_variants(
    surfaces: Mapping[str, Surface], experiments: Sequence[Experiment]
) -> Iterator[tuple[str, Surface]]:
    """List the surfaces as they are and as each arm makes them, with words for which it is."""
    for name, surface in surfaces.items():
        yield f"surface {name!r}", surface
        for experiment in experiments:
            for arm in experiment.arms if experiment.on(name) else ():
                words = f"arm {arm.name!r} of experiment {experiment.name!r} on surface {name!r}"
                yield words, arm.overrides.of(surface)


MAX_TABLES = {"surfaces": 100, "rules": 1_000, "experiments": 100, "wishes": 100}

Table = Mapping[str, Any]
Part = TypeVar("Part", Rule, Experiment, Surface, "WishModel")
Listed = TypeVar("Listed", Rule, Experiment)


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class WishModel(EndpointConfig):
    """Language model that reads what rules leave unread of a wish."""

    timeout_seconds: float = 2.0
    """How long a wish waits for it, retries included; then the rules' reading is kept."""
    max_retries: int = 1
    first_wait_seconds: float = 0.2
    concurrency: int = 4
    """Wishes that are read at once; others are read by rules alone."""


@dataclass(frozen=True, kw_only=True)
class ServingConfiguration:
    """Surfaces by name, rules and experiments, as they hold together."""

    surfaces: Mapping[str, Surface] = field(default_factory=lambda: dict(BUILT_IN))
    rules: tuple[Rule, ...] = ()
    experiments: tuple[Experiment, ...] = ()
    wishes: WishModel | None = None
    warnings: tuple[str, ...] = ()
    """Possible contradictions, a sentence each."""
    version: str = "built-in"
    """First hexadecimal digits of the file's SHA-256."""
    source: str = "built-in"
    """The file's name, for messages."""

    @property
    def bundles(self) -> frozenset[str]:
        """Versions of bundles that arms name."""
        arms = [arm for experiment in self.experiments for arm in experiment.arms]
        return frozenset(arm.bundle for arm in arms if arm.bundle is not None)

    def unknown_sources(self, outside: Collection[str] = ()) -> Iterator[str]:
        """List sources of surfaces that are neither built in nor models of other packages."""
        known = (*SOURCES, *outside)
        for words, surface in list_variants(self.surfaces, self.experiments):
            for name in sorted(surface.weights.keys() - known):
                yield f"{words} has unknown source {name!r}; {suggest(name, known)}"


def read_configuration(path: Path) -> ServingConfiguration:
    """Read and check a serving configuration."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"{path} is larger than {MAX_BYTES} bytes; write fewer rules")
        table = tomllib.loads(content.decode("utf-8-sig"))
    except FileNotFoundError:
        there = [one.name for one in path.parent.glob("*.toml")]
        near = difflib.get_close_matches(path.name, there, n=1)
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
    reader = _Reader(source)
    for key in table.keys() - MAX_TABLES.keys():
        reader.add(key, _unknown(key, MAX_TABLES))
    surfaces = reader.read_surfaces(table.get("surfaces", {}))
    rules = reader.read_list(Rule, "rules", table, surfaces)
    experiments = reader.read_list(Experiment, "experiments", table, surfaces)
    wishes = reader.read(WishModel, table["wishes"], "[wishes]") if "wishes" in table else None
    reader.raise_any()
    try:
        list(list_variants(surfaces, experiments))
    except ValueError as error:
        reader.add("[[experiments]]", _reason(error))
        reader.raise_any()
    for sentence in contradictions(surfaces, rules, experiments):
        reader.add("", sentence)
    reader.raise_any()
    return ServingConfiguration(
        surfaces=surfaces,
        rules=tuple(rules),
        experiments=tuple(experiments),
        wishes=wishes,
        warnings=tuple(sentence for sentence, _ in clashes(rules)),
        version=version,
        source=source,
    )


class _Reader:
    """Reads the tables of a file, and collects its faults."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._faults: dict[str, None] = {}

    def add(self, place: str, sentence: str) -> None:
        middle = f": {place}" if place else ""
        self._faults[f"{self._source}{middle}: {sentence}"] = None

    def raise_any(self) -> None:
        if self._faults:
            raise ValueError("\n".join(self._faults))

    def read_surfaces(self, tables: object) -> dict[str, Surface]:
        """Read the tables of surfaces; those that a file leaves out are as built in."""
        found = dict(BUILT_IN)
        if not isinstance(tables, Mapping):
            self.add("surfaces", f"is {_shown(tables)}; write tables such as [surfaces.home]")
            return found
        if not self._are_few("surfaces", tables):
            return found
        for given, table in tables.items():
            name, place = str(given), f"[surfaces.{given}]"
            if not isinstance(table, Mapping):
                self.add(place, f"is {_shown(table)}; write a table")
            elif "name" in table:
                self.add(place, "unknown key 'name'; the table's own name is the surface's")
            elif (base := self._base(name, table, place)) is not None:
                whole = TypeAdapter(Surface).dump_python(base, mode="json", by_alias=True) | table
                if (surface := self.read(Surface, whole, place)) is not None:
                    found[name] = surface
        return found

    def _base(self, name: str, table: Table, place: str) -> Surface | None:
        """Find what a table changes: the surface of its name, or a new one of its kind."""
        kind = table.get("kind")
        base = BUILT_IN.get(name)
        if base is None and kind is None:
            near = difflib.get_close_matches(name, BUILT_IN, n=1)
            hint = f"; or did you mean [surfaces.{near[0]}]?" if near else ""
            self.add(place, f"a surface of your own needs kind = {' or '.join(KINDS)}{hint}")
            return None
        if kind is not None and (base is None or kind != base.kind):
            # Not a known kind: the check of the whole table names the allowed ones.
            base = BUILT_IN.get(kind, HOME) if isinstance(kind, str) else HOME
        assert base is not None
        # A learned blend has weights of its own.
        learned = base.learned and "sources" not in table
        return dataclasses.replace(base, name=name, learned=learned)

    def read_list(
        self, kind: type[Listed], name: str, table: Table, surfaces: Collection[str]
    ) -> list[Listed]:
        """Read the tables of rules or of experiments."""
        tables = table.get(name, [])
        if not isinstance(tables, Sequence) or isinstance(tables, str):
            self.add(name, f"is {_shown(tables)}; write tables such as [[{name}]]")
            return []
        found: dict[str, Listed] = {}
        for number, one in enumerate(tables if self._are_few(name, tables) else (), 1):
            named = one.get("name") if isinstance(one, Mapping) else None
            which = repr(named) if isinstance(named, str) else f"number {number}"
            place = f"[[{name}]] {which}"
            if not isinstance(one, Mapping):
                self.add(place, f"is {_shown(one)}; write a table")
            elif (part := self.read(kind, one, place)) is not None:
                if part.name in found:
                    self.add(place, "there are two of this name; give each a name of its own")
                for surface in part.surfaces or ():
                    if surface not in surfaces:
                        self.add(place, f"surfaces: {_unknown(surface, surfaces)}")
                found.setdefault(part.name, part)
        return list(found.values())

    def _are_few(self, name: str, tables: Collection[object]) -> bool:
        few = len(tables) <= MAX_TABLES[name]
        if not few:
            self.add(name, f"are {len(tables)}; at most {MAX_TABLES[name]} are allowed")
        return few

    def read(self, kind: type[Part], table: Table, place: str) -> Part | None:
        try:
            # JSON is where strict types take a list for a tuple, and a text for a time.
            text = json.dumps(table, default=str)
            return TypeAdapter(kind).validate_json(text, strict=True, by_alias=True, by_name=False)
        except ValidationError as error:
            for fault in _distinct(error.errors(include_url=False)):
                self.add(place, _sentence(kind, fault))
        except (RecursionError, UnicodeEncodeError):
            self.add(place, "is nested too deep, or holds characters that are no text")
        return None


def _distinct(found: Sequence[Any]) -> Iterator[Any]:
    """Leave out that a list is too short where its parts have faults of their own."""
    places = [fault["loc"] for fault in found]
    for fault in found:
        own, size = fault["loc"], len(fault["loc"])
        within = any(place != own and place[:size] == own for place in places)
        if fault["type"] != "too_short" or not within:
            yield fault


def _sentence(kind: type, fault: Mapping[str, Any]) -> str:
    """Format a fault that pydantic found: key, value, remedy."""
    key = ""
    for part in fault["loc"]:
        key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else str(part)
    if fault["type"] == "unexpected_keyword_argument":
        return _unknown(key, _keys_at(kind, fault["loc"]))
    if fault["type"] == "missing":
        return f"{key} is missing; give it a value"
    reason = fault["msg"].removeprefix("Value error, ")
    reason = reason[:1].lower() + reason[1:]
    if isinstance(fault["input"], Mapping) and fault["type"] == "value_error":
        return f"{key}: {reason}" if key else reason
    return f"{key} = {_shown(fault['input'])}: {reason}"


def _fields(kind: Any) -> dict[str, Any]:
    """Find the annotation of each key of a table."""
    fields = kind.__pydantic_fields__
    return {one.alias or name: one.annotation for name, one in fields.items()}


def _keys_at(kind: type, location: Sequence[str | int]) -> list[str]:
    """List the keys of the dataclass that a key was found in."""
    for part in location[:-1]:
        kind = next(_dataclasses_in(_fields(kind).get(str(part))), kind)
    return list_keys(kind)


def list_keys(kind: type) -> list[str]:
    """List the keys of a table."""
    # A surface is named by its table.
    return [key for key in _fields(kind) if kind is not Surface or key != "name"]


def _dataclasses_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from _dataclasses_in(part)


def _unknown(key: str, allowed: Iterable[str]) -> str:
    return f"unknown {key!r}; {suggest(key.rpartition('.')[2], sorted(allowed))}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def _reason(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        return str(error.errors()[0]["msg"]).removeprefix("Value error, ")
    return str(error)
