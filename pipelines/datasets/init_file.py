"""``recsys data init``: infer a commented run configuration from raw files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import polars as pl

from features.schema import NEGATIVE_TYPES
from pipelines.datasets.raw_tables import RawTable, is_number, recognise
from recsys.data.durable import write_durably

CSV = (".csv", ".txt", ".inter")
SHOWN_TYPES = frozenset({"impression", "exposure", "display", "show", "shown"})
"""Names, without a last s, of impression events."""
MAX_TYPES = 30


def uses_decimal_comma(table: RawTable) -> bool:
    """Return True if a text column of numbers has decimal commas."""
    for ours in ("value", "price"):
        if name := table.columns.get(ours):
            known = table.sample[name].drop_nulls()
            if known.dtype == pl.String and is_number(known):
                return bool(known.cast(pl.Float64, strict=False).null_count())
    return False


def list_separator(items: RawTable) -> str | None:
    """Find the separator of an item's categories, if it is not the default."""
    name = items.columns.get("categories")
    if not name or items.sample[name].dtype != pl.String:
        return None
    texts = items.sample[name].drop_nulls()
    counts = {one: int(texts.str.count_matches(one, literal=True).sum()) for one in "|;,>"}
    best = max(counts, key=lambda one: counts[one])
    return best if counts[best] and best != "|" else None


def toml_value(value: str | list[str]) -> str:
    """Write texts on one line, as JSON and TOML both have them."""
    return json.dumps(value, ensure_ascii=False)


def time_lines(events: RawTable) -> list[str]:
    """Write how the times are to be read, and how else they could be."""
    if (time := events.time) is None:
        return []
    lines = [f"# times: {events.columns['event_time']}, because {time.why}"]
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


def type_lines(events: RawTable) -> list[str]:
    """Write which event types are impressions, and how to keep only some types."""
    if not (column := events.columns.get("event_type")):
        return []
    values = events.sample[column].cast(pl.String).drop_nulls()
    kinds = sorted(values.unique())
    if not 1 < len(kinds) <= MAX_TYPES:
        return []
    shown = [kind for kind in kinds if kind.lower().rstrip("s") in SHOWN_TYPES]
    taken = [kind for kind in kinds if kind not in shown]
    lines = ["", "[filters]"]
    if shown:
        lines.append(
            f"shown_types = {toml_value(shown)}   # impressions: only a ranker learns from them"
        )
    lines.append(f"# event_types = {toml_value(taken)}   # histories of these only; all by default")
    if said_no := [kind for kind in taken if kind.lower() in NEGATIVE_TYPES]:
        lines.append(f"negative_types = {toml_value(said_no)}   # read, neither labels nor counted")
    wanted = [kind for kind in taken if kind not in said_no]
    if len(wanted) > 1:
        counts = {kind: int((values == kind).sum()) for kind in wanted}
        named = ", ".join(f"{kind} {number:,}" for kind, number in counts.items())
        rarest = toml_value([min(counts, key=lambda kind: counts[kind])])
        lines += ["", "[evaluation]", f"# of the first {len(values):,} rows: {named}"]
        lines.append(f"# target_types = {rarest}   # lists are for these; for all by default")
    return lines


def written(tables: dict[str, RawTable], target: Path) -> str:
    """Write the TOML: each guess, its reason, and the doubts."""
    events, items = tables["events"], tables.get("items")
    lines = [
        "# Written by recsys data init; every line may be changed.",
        'preset = "auto"   # the data, the machine and a budget decide what is trained',
    ]
    lines += [f'workspace = "runs/{target.stem}"', "", "[data]"]
    for name, table in tables.items():
        place = os.path.relpath(table.path.resolve(), target.resolve().parent)
        lines.append(f"{name} = {toml_value(table.address or place)}")
    separators = {one.separator for one in tables.values() if one.path.suffix in CSV}
    if len(separators) > 1:
        raise ValueError(
            f"the files separate their values differently ({', '.join(map(repr, separators))}); "
            "use one separator"
        )
    if events.separator != "," and events.path.suffix in CSV:
        lines.append(f"separator = {toml_value(events.separator)}")
    lines += time_lines(events)
    if any(map(uses_decimal_comma, tables.values())):
        lines.append("decimal_comma = true")
    if items is not None and (between := list_separator(items)) is not None:
        lines.append(f"list_separator = {toml_value(between)}")
    for name, table in tables.items():
        section = "columns" if name == "events" else f"{name.removesuffix('s')}_columns"
        lines += ["", f"[data.{section}]   # ours = the file's"]
        lines += [f"{ours} = {toml_value(theirs)}" for ours, theirs in table.columns.items()]
    lines += type_lines(events)
    if events.notes:
        lines += ["", *(f"# not sure: {note}" for note in events.notes)]
    return "\n".join(lines) + "\n"


def write_config(places: list[str], target: Path, *, force: bool) -> dict[str, RawTable]:
    """Look at the files and databases, write the TOML, and return the tables by name."""
    if target.exists() and not force:
        raise ValueError(f"{target} is there already; write elsewhere with --out, or add --force")
    tables = recognise(places)
    text = written(tables, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_durably(target, text)
    return tables
