"""The reference of a run's configuration and of a server's settings, from their dataclasses."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from docs.generators.text import code, entries, prose
from pipelines.config.removed import REMOVED_KEYS
from pipelines.config.run import SHARED, TRAININGS, RunConfig, SharedTraining
from pipelines.config.toml import dataclasses_in, is_mapping
from pipelines.presets import PRESETS
from recsys.training.passes import TrainingConfig
from serving.settings import PREFIX, Settings

HEAD = """# Configuration of a run

One TOML file holds a run: `preset`, `workspace`, and tables that override the preset. Every key is
listed here with its type, its default and what it does. A key may also be set by
`--set table.key=value`; unknown keys are refused with the nearest valid name, and each run writes
its resolved configuration beside its output. A preset's own values win over the defaults below.

"""
FIRST = """preset workspace device auto.budget
data.events data.items data.columns data.item_columns data.partitions data.online_events
data.time_format data.time_zone
filters.event_types filters.min_value filters.shown_types
features.user_features features.catalogue_only_items
content.encoder content.columns content.endpoint.base_url
evaluation.exclude_history blend.new_item_odds ranker_training.enabled ranker.task_values
release.when_undecided release.max_loss release.deciding_metric release.promote
updates.policy updates.full_every_days
"""
"""The keys that a shop meets first."""
SETTINGS_HEAD = """# Settings of a server

`recsys serve` reads these environment variables; its options, where it has one for a setting, win.
What is shown where is a file of its own: [surfaces, rules and experiments](../control.md).

"""


@cache
def docstrings_of(kind: type) -> dict[str, str]:
    """Read the docstring below each field of a dataclass, its bases' included."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(one):
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        assert isinstance(definition, ast.ClassDef)
        for field, following in zip(definition.body, definition.body[1:], strict=False):
            is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            if isinstance(field, ast.AnnAssign) and is_text:
                found[ast.unparse(field.target)] = inspect.cleandoc(following.value.value)
    return found


def type_of(annotation: Any) -> str:
    """Write a type as a reader of TOML knows it."""
    if annotation is type(None):
        return "none"
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " or ".join(repr(part).replace("'", '"') for part in parts)
    if origin is tuple:
        return f"list of {type_of(parts[0])}"
    if is_mapping(annotation) and origin is not None and "Union" not in str(origin):
        return f"table of {type_of(parts[-1])}" if parts else "table"
    if parts and origin is not None and not isinstance(annotation, type):
        named = [type_of(part) for part in parts if part is not type(None)]
        return " or ".join(dict.fromkeys(named)) if "Union" in str(origin) else named[0]
    names = {Path: "path", str: "string", bool: "boolean", int: "integer", float: "number"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def default_of(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        value = field.default
    elif field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        return "required"
    if value is None:
        return ""
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, str | Path):
        return code(f'"{value}"')
    if isinstance(value, tuple | list):
        return code(str(list(value)).replace("'", '"'))
    return code("{}" if value == {} else str(value))


def is_shared(field: dataclasses.Field[Any], shared: Collection[str]) -> bool:
    """Say whether a training's key is the shared one, with the shared default."""
    known = {one.name: one for one in dataclasses.fields(TrainingConfig)}
    return field.name in shared and default_of(field) == default_of(known[field.name])


def first_keys() -> str:
    """List the keys that a shop meets first."""
    rows = []
    for key in FIRST.split():
        kind, text = RunConfig, "Whole configuration below yours."
        for part in key.split("."):
            text = docstrings_of(kind).get(part, text)
            hint = typing.get_type_hints(kind).get(part, str)
            kind = next(dataclasses_in(hint), kind)
        rows.append((key, type_of(hint), "", prose(text)))
    return "## Keys to know first\n\n" + entries(rows)


def sections(kind: type, name: str) -> Iterator[str]:
    """List the keys of one dataclass, then those of the dataclasses in its fields."""
    hints = typing.get_type_hints(kind)
    rows, inner = [], []
    shared = {one.name for one in dataclasses.fields(TrainingConfig)} if name in TRAININGS else ()
    for field in dataclasses.fields(kind):
        if f"{name}.{field.name}" in REMOVED_KEYS or is_shared(field, shared):
            continue
        within = list(dataclasses_in(hints[field.name]))
        if within:
            middle = ".NAME" if is_mapping(hints[field.name]) else ""
            dotted = f"{name}.{field.name}".lstrip(".") + middle
            inner += [(one, dotted) for one in within]
            continue
        text = prose(docstrings_of(kind).get(field.name, ""))
        rows.append((field.name, type_of(hints[field.name]), default_of(field), text))
    if name:
        yield f"## [{name}]\n"
        yield prose(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0]) + "\n"
    else:
        yield "## Keys of the file itself\n"
        preset = " or ".join(f'"{one}"' for one in PRESETS)
        rows.insert(0, ("preset", preset, code('"auto"'), "Whole configuration below yours."))
    yield entries(rows)
    for one, dotted in inner:
        yield from sections(one, dotted)


def configuration_page() -> str:
    """Write every key of a run's TOML file."""
    shared = sections(typing.get_type_hints(SharedTraining)[SHARED], SHARED)
    return HEAD + "\n".join([first_keys(), *sections(RunConfig, ""), *shared])


def settings_page() -> str:
    """Write every environment variable of a server."""
    hints = typing.get_type_hints(Settings)
    rows = []
    for field in dataclasses.fields(Settings):
        text = re.sub(
            r"\(?docs/([\w/-]+\.md)\)?",
            r"([guide](../\1))",
            docstrings_of(Settings).get(field.name, ""),
        )
        shown = prose(text).replace("\\[guide\\]", "[guide]")
        name = PREFIX + field.name.upper()
        rows.append((name, type_of(hints[field.name]), default_of(field), shown))
    return SETTINGS_HEAD + entries(rows)
