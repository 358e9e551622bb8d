"""``recsys data init``: infer a commented run configuration from raw files."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from features.tables import can_be_encoded, can_be_feature
from pipelines.datasets.column_guesses import EVENT_NAMES, kind_of_file, name_score
from pipelines.datasets.table_guesses import (
    Guess,
    RawTable,
    events_first,
    guess_side,
    is_number,
    read_sample,
)
from recsys.data.durable import write_durably

CSV = (".csv", ".txt", ".inter")
MIN_SHARED_IDS = 0.1
"""Share of the events' ids that a catalogue or table of users must know."""
SHOWN_TYPES = frozenset({"impression", "exposure", "display", "show", "shown"})
"""Names, without a last s, of impression events."""
MAX_TYPES = 30
IN_TEXT = ("item_id", "title", "description", "categories")
"""Columns of items that models read anyway."""


@dataclass(kw_only=True)
class FilePlan:
    """The table that each file was recognised as."""

    events: Guess
    items: Guess | None = None
    users: Guess | None = None
    notes: list[str] = field(default_factory=list)
    """Guesses that are not sure."""

    def guesses(self) -> dict[str, Guess]:
        found = {"events": self.events, "items": self.items, "users": self.users}
        return {name: guess for name, guess in found.items() if guess is not None}


def infer_plan(paths: list[Path]) -> FilePlan:
    """Recognise which file is which table."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise ValueError("the same file is named twice; name each once")
    events, rest = events_first([read_sample(path) for path in paths])
    plan = FilePlan(events=events, notes=list(events.unsure))
    for table in rest:
        _place(table, plan)
    separators = {g.table.separator for g in plan.guesses().values() if g.table.path.suffix in CSV}
    if len(separators) > 1:
        raise ValueError(
            f"the files separate their values differently ({', '.join(map(repr, separators))}); "
            "use one separator"
        )
    if events.time is not None and not events.time.has_zone:
        plan.notes.append("the times name no zone: UTC is assumed; see time_zone")
    return plan


def _place(table: RawTable, plan: FilePlan) -> None:
    """Take a further file as items or users, whichever has more of the events' ids."""
    sides = {}
    for name, key in (("items", "item_id"), ("users", "user_id")):
        ids = plan.events.table.sample[plan.events.columns[key]]
        sides[name] = guess_side(table, key, ids)
    kind = kind_of_file(table.path.name.split(".")[0])

    def fit(side: str) -> float:
        # Numbers from 1 are users and items alike, so names count as well.
        guess, share = sides[side]
        key = f"{side.removesuffix('s')}_id"
        named = name_score(guess.columns.get(key, ""), EVENT_NAMES[key])
        return share + named / 2 + (side == kind) / 2

    name = max(sides, key=fit)
    guess, share = sides[name]
    if share < MIN_SHARED_IDS:
        plan.notes.append(
            f"{table.path.name} is left out: no column of it holds the events' users or items"
        )
    elif getattr(plan, name) is not None:
        plan.notes.append(f"{table.path.name} is left out: there is a table of {name} already")
    else:
        setattr(plan, name, guess)


def decimal_comma(plan: FilePlan) -> bool:
    """Return True if a text column of numbers has decimal commas."""
    for guess in plan.guesses().values():
        for ours in ("value", "price"):
            column = guess.table.sample[name] if (name := guess.columns.get(ours)) else None
            if column is None or column.dtype != pl.String:
                continue
            known = column.drop_nulls()
            if known.cast(pl.Float64, strict=False).null_count() and is_number(known):
                return True
    return False


def list_separator(plan: FilePlan) -> str | None:
    """Find the separator of an item's categories, if it is not the default."""
    name = plan.items.columns.get("categories") if plan.items else None
    if plan.items is None or not name or plan.items.table.sample[name].dtype != pl.String:
        return None
    texts = plan.items.table.sample[name].drop_nulls()
    counts = {one: int(texts.str.count_matches(one, literal=True).sum()) for one in "|;,>"}
    best = max(counts, key=lambda one: counts[one])
    return best if counts[best] and best != "|" else None


def toml_value(value: str | list[str]) -> str:
    """Write texts on one line, as JSON and TOML both have them."""
    return json.dumps(value, ensure_ascii=False)


def time_lines(events: Guess) -> list[str]:
    """Write how the times are to be read, and how else they could be."""
    if (time := events.time) is None:
        return []
    lines = []
    column = events.columns["event_time"]
    lines.append(f"# times: {column}, because {time.why}")
    if time.time_unit != "s":
        lines.append(f"time_unit = {toml_value(time.time_unit)}")
    if time.time_format is not None:
        lines.append(f"time_format = {toml_value(time.time_format)}")
    lines += [
        f"# time_format = {toml_value(other)}   # reads every row as well"
        for other in time.other_formats
    ]
    if not time.has_zone:
        lines.append('# time_zone = "Europe/Berlin"   # the times name no zone: UTC is assumed')
    return lines


def type_lines(events: Guess) -> list[str]:
    """Write which event types are impressions, and how to keep only some types."""
    if (column := events.columns.get("event_type")) is None:
        return []
    kinds = sorted(events.table.sample[column].cast(pl.String).drop_nulls().unique())
    if not 1 < len(kinds) <= MAX_TYPES:
        return []
    shown = [kind for kind in kinds if kind.lower().rstrip("s") in SHOWN_TYPES]
    taken = [kind for kind in kinds if kind not in shown]
    lines = ["", "[filters]"]
    if shown:
        lines.append(f"shown_types = {toml_value(shown)}   # impressions: no part of histories")
    lines.append(f"# event_types = {toml_value(taken)}   # histories of these only; all by default")
    return lines


def column_lines(guess: Guess) -> list[str]:
    """Write which column is which, and which others it could be."""
    lines = []
    for ours, theirs in guess.columns.items():
        lines.append(f"{ours} = {toml_value(theirs)}")
        lines += [
            f"# {ours} = {toml_value(other)}   # could be this one as well"
            for other in guess.others.get(ours, [])
        ]
    return lines


def content_lines(plan: FilePlan) -> list[str]:
    """Write which columns of the items models could read with the text."""
    if plan.items is None:
        return []
    ours = {theirs: name for name, theirs in plan.items.columns.items()}
    found = []
    for column in plan.items.table.sample.iter_columns():
        name = ours.get(column.name, column.name)
        if name == "price" or (name not in IN_TEXT and can_be_encoded(column)):
            found.append(name)
    if not found:
        return []
    return ["", "[content]", f"# columns = {toml_value(found)}   # read with items' texts"]


def user_lines(plan: FilePlan) -> list[str]:
    """Write which columns of the users the two-tower could read."""
    if plan.users is None:
        return []
    columns = [one for one in plan.users.table.sample.iter_columns() if can_be_feature(one)]
    ours = {theirs: name for name, theirs in plan.users.columns.items()}
    found = [name for one in columns if (name := ours.get(one.name, one.name)) != "user_id"]
    if not found:
        return []
    return ["", "[features]", f"# user_features = {toml_value(found)}   # read by the two-tower"]


def written(plan: FilePlan, target: Path) -> str:
    """Write the TOML: each guess, its reason, and the alternatives."""
    lines = [
        "# Written by recsys data init; every line may be changed.",
        'preset = "auto"   # the data, the machine and a budget decide what is trained',
    ]
    lines += [f'workspace = "runs/{target.stem}"', "", "[data]"]
    for name, guess in plan.guesses().items():
        place = os.path.relpath(guess.table.path.resolve(), target.resolve().parent)
        lines.append(f"{name} = {toml_value(place)}")
    separator = plan.events.table.separator
    if separator != "," and plan.events.table.path.suffix in CSV:
        lines.append(f"separator = {toml_value(separator)}")
    lines += time_lines(plan.events)
    if decimal_comma(plan):
        lines.append("decimal_comma = true")
    if (between := list_separator(plan)) is not None:
        lines.append(f"list_separator = {toml_value(between)}")
    tables = {"events": "columns", "items": "item_columns", "users": "user_columns"}
    for name, guess in plan.guesses().items():
        lines += ["", f"[data.{tables[name]}]   # ours = the file's", *column_lines(guess)]
    lines += content_lines(plan) + user_lines(plan)
    lines += type_lines(plan.events)
    if plan.notes:
        lines += ["", *(f"# not sure: {note}" for note in plan.notes)]
    return "\n".join(lines) + "\n"


def write_config(paths: list[Path], target: Path, *, force: bool) -> FilePlan:
    """Look at the files and write the TOML."""
    if target.exists() and not force:
        raise ValueError(f"{target} is there already; write elsewhere with --out, or add --force")
    plan = infer_plan(paths)
    text = written(plan, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_durably(target, text)
    return plan
