"""Infer which raw file holds events, items or users, and what its columns are."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from features.reading.column_guesses import (
    EVENT_NAMES,
    ITEM_NAMES,
    TimeGuess,
    find_types,
    guess_time,
    kind_of_file,
    name_score,
    not_iso,
)
from features.reading.databases import DatabaseTable, is_address, moved
from features.reading.scan import naming, scan_file
from features.schema import SEPARATED, SourceConfig

SAMPLE_ROWS = 20_000
SEPARATORS = ",;\t|"
OPTIONAL = ("event_type", "value", "domain", "session_id", "request_id", "slot", "propensity")
NUMBERS = ("value", "slot", "propensity", "sequence_index", "price")
MIN_SHARED_IDS = 0.1
"""Share of the events' ids that a catalogue or table of users must know."""


@dataclass(kw_only=True)
class RawTable:
    """One file, its first rows as they are, and what its columns were recognised as."""

    path: Path
    """Path of the file; for a database, the name of the table."""
    address: str = ""
    """Address of a table in a database; empty for a file."""
    separator: str
    sample: pl.DataFrame
    columns: dict[str, str] = field(default_factory=dict)
    """Our column -> the file's; empty for one that has our name and is not read."""
    time: TimeGuess | None = None
    notes: list[str] = field(default_factory=list)
    """Guesses that are not sure."""

    @property
    def kind(self) -> str | None:
        """Table that the file's name tells."""
        return kind_of_file(self.path.name.split(".")[0])

    def free(self) -> list[str]:
        """List the columns that are not used yet."""
        return [name for name in self.sample.columns if name not in self.columns.values()]

    def named(self, known: str) -> dict[str, float]:
        """Score the free columns with a fitting name, best first."""
        scores = {column: name_score(column, known) for column in self.free()}
        return {c: scores[c] for c in sorted(scores, key=lambda c: -scores[c]) if scores[c] > 0}

    def choose(self, ours: str, known: str, least: float = 0.0) -> bool:
        """Use the free column whose name and values fit best; return whether there is any."""
        for column, score in self.named(known).items():
            if score >= least and can_be(ours, self.sample[column]):
                self.columns[ours] = column
                return True
        return False


def read_sample(place: str) -> RawTable:
    """Read the first rows of a file or of a table in a database."""
    if is_address(place):
        table = DatabaseTable.parse(place)
        sample = table.read(f"limit {SAMPLE_ROWS}")
        if sample.is_empty():
            raise ValueError(f"{place} has no rows; there must be at least one")
        address = moved(place, lambda path: str(Path(path).resolve()))
        return RawTable(path=Path(table.name), address=address, separator=",", sample=sample)
    path = Path(place)
    separator = sniffed_separator(path) if path.is_file() else ","
    frame = scan_file(path, SourceConfig(paths=(path,), separator=separator))
    with naming(path):
        sample = frame.head(SAMPLE_ROWS).collect()
    if path.suffix in SEPARATED and any(map(looks_like_value, sample.columns[:3])):
        first = ", ".join(sample.columns[:4])
        raise ValueError(
            f"{path} has no header: its first line is data ({first}). Put the names of the columns "
            'before it, for example: sed -i "1i user_id,item_id,event_time" ' + path.name
        )
    if sample.is_empty():
        raise ValueError(f"{path} has a header and no rows; there must be at least one")
    nested = [name for name, dtype in sample.schema.items() if isinstance(dtype, pl.Struct)]
    if len(nested) == sample.width:
        raise ValueError(
            f"{path}: every column is nested ({', '.join(nested)}); write their fields as columns "
            "of their own"
        )
    return RawTable(path=path, separator=separator, sample=sample.drop(nested))


def sniffed_separator(path: Path) -> str:
    """Infer the separator of a text file from its first line."""
    if path.suffix not in SEPARATED:
        return ","
    head = path.read_bytes()[:65_536]
    if b"\x00" in head:
        raise ValueError(f"{path} holds binary data, not text; write it as CSV or Parquet")
    line = head.decode("utf-8", errors="replace").partition("\n")[0]
    return max(SEPARATORS, key=line.count) if any(map(line.count, SEPARATORS)) else ","


def looks_like_value(name: str) -> bool:
    """Return True if a header's cell is a number, as in a file without a header."""
    return name.replace(".", "").replace("-", "").replace("_duplicated_0", "").isdigit()


def is_number(column: pl.Series) -> bool:
    """Return True if nearly all of a column can be read as numbers, a decimal comma allowed."""
    known = column.drop_nulls()
    if known.dtype == pl.String:
        known = known.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
    elif not known.dtype.is_numeric():
        return False
    return known.cast(pl.Float64, strict=False).null_count() <= len(known) * 0.01


def can_be(ours: str, column: pl.Series) -> bool:
    """Return True if a column's values fit its use."""
    known = column.drop_nulls()
    if ours == "available_from":
        return True
    if known.is_empty() or isinstance(known.dtype, pl.List):
        return ours == "categories" and not known.is_empty()
    if ours in ("slot", "propensity"):
        numbers = known.cast(pl.Float64, strict=False)
        if ours == "propensity":
            fitting = (numbers > 0) & (numbers <= 1)
        else:
            fitting = (numbers >= 0) & (numbers == numbers.round())
        return not numbers.null_count() and bool(fitting.all())
    if ours in NUMBERS:
        return is_number(known)
    if ours == "event_type":
        return known.dtype == pl.String and known.n_unique() <= 50
    return known.dtype == pl.String or known.dtype.is_integer()


def guess_events(table: RawTable) -> None:
    """Guess the columns of a table of events; those that are needed may be missing."""
    for ours in ("user_id", "item_id"):
        table.choose(ours, EVENT_NAMES[ours])
    guess_order(table)
    for ours in OPTIONAL:
        if not table.choose(ours, EVENT_NAMES[ours], least=1.0) and ours in table.free():
            table.columns[ours] = ""
            table.notes.append(f"column {ours} does not hold what {ours} means, so it is not read")


def guess_order(table: RawTable) -> None:
    """Find what orders the events: a time, or else a sequence."""
    sample, named = table.sample, list(table.named(EVENT_NAMES["event_time"]))
    order = [*table.named(EVENT_NAMES["sequence_index"]), *named]
    texts = [c for c in table.free() if c not in named and not sample[c].dtype.is_numeric()]
    times = {c: found for c in [*named, *texts] if (found := guess_time(sample[c])) is not None}
    if times:
        table.columns["event_time"], table.time = next(iter(times.items()))
        if others := list(times)[1:]:
            table.notes.append(f"the time could be {' or '.join(others)} as well")
    for column in order:
        known = sample[column].cast(pl.Int64, strict=False)
        if column not in times and not known.null_count():
            table.columns["sequence_index"] = column
            break


def fill_ids(table: RawTable) -> None:
    """Without telling names, use the columns of repeated texts or integers as ids."""
    sample = table.sample
    for ours in ("user_id", "item_id"):
        if ours in table.columns:
            continue
        free = [
            column
            for column in table.free()
            if can_be(ours, sample[column]) and 1 < sample[column].n_unique() < sample.height
        ]
        if not free:
            raise ValueError(
                f"{table.path}: no column looks like {ours} (ids that repeat); its columns "
                f"are {', '.join(sample.columns)}. Rename one to {ours}, or in "
                f"Python: columns={{{ours!r}: NAME}}"
            )
        table.columns[ours] = free[0]
        table.notes.append(
            f"no column is named like {ours}; {free[0]!r} was chosen because its values repeat"
        )


def events_first(tables: list[RawTable]) -> list[RawTable]:
    """Pick the table of events, and put it before the others."""

    def score(table: RawTable) -> float:
        has = table.columns
        points = ("user_id" in has) + ("item_id" in has) + ("event_time" in has) * 0.5
        if "user_id" in has and table.sample[has["user_id"]].is_unique().all():
            points -= 0.75
        return points + {"events": 0.7, None: 0.0}.get(table.kind, -0.7)

    for table in tables:
        guess_events(table)
    chosen = max(tables, key=score)
    fill_ids(chosen)
    chosen.notes += find_types(chosen.sample, chosen.columns, chosen.free())
    sample = chosen.sample
    if "event_time" not in chosen.columns and "sequence_index" not in chosen.columns:
        remedy = "Rename one to event_time, or in Python: columns={'event_time': NAME}"
        for name in chosen.named(EVENT_NAMES["event_time"]):
            remedy = f"Convert column {name!r}, which has {not_iso(sample[name])}"
        raise ValueError(
            f"{chosen.path}: no column looks like a time or an order of a user's events; "
            f"its columns are {', '.join(sample.columns)}. Known are numbers since 1970, "
            f"ISO times and dates such as 31.12.2024 or 12/31/2024. {remedy}"
        )
    return [chosen, *(table for table in tables if table is not chosen)]


def find_id(table: RawTable, ours: str, ids: pl.Series) -> tuple[str, float]:
    """Find the column that has most of the events' ids, each once; return it and its share."""
    wanted, sample = ids.drop_nulls().cast(pl.String).unique(), table.sample
    found = ("", 0.0, 0.0)
    for column in sample.iter_columns():
        if column.dtype == pl.String or column.dtype.is_integer():
            share = float(wanted.is_in(column.cast(pl.String).implode()).sum()) / max(
                len(wanted), 1
            )
            unique = column.n_unique() / sample.height
            fit = (column.name, share * unique, name_score(column.name, EVENT_NAMES[ours]))
            found = max(found, fit, key=lambda one: one[1:])
    return found[:2]


def place_table(table: RawTable, found: dict[str, RawTable]) -> str | None:
    """Take a further file as items or users, whichever has more of the events' ids.

    Returns:
        Why the file is left out, or None.
    """
    events = found["events"]
    sides = {}
    for side, ours in (("items", "item_id"), ("users", "user_id")):
        column, share = find_id(table, ours, events.sample[events.columns[ours]])
        # Numbers from 1 are users and items alike, so names count as well.
        named = name_score(column, EVENT_NAMES[ours])
        sides[side] = (share + named / 2 + (side == table.kind) / 2, share, ours, column)
    side = max(sides, key=lambda one: sides[one][0])
    _, share, ours, column = sides[side]
    if share < MIN_SHARED_IDS:
        return "no column of it holds the events' users or items"
    if side in found:
        return f"there is a table of {side} already"
    found[side], table.columns = table, {ours: column}
    for name, known in ITEM_NAMES.items() if side == "items" else ():
        if not table.choose(name, known) and name in table.free() and name != "domain":
            table.columns[name] = ""
    return None


def recognise(places: list[str]) -> dict[str, RawTable]:
    """Recognise which file is which table; notes are those of ``events``."""
    if len({one if is_address(one) else Path(one).resolve() for one in places}) < len(places):
        raise ValueError("the same file is named twice; name each once")
    events, *rest = events_first([read_sample(place) for place in places])
    found = {"events": events}
    for table in rest:
        if why := place_table(table, found):
            events.notes.append(f"{table.path.name} is left out: {why}")
    if events.time is not None and not events.time.has_zone:
        events.notes.append("the times name no zone: UTC is assumed; see time_zone")
    return {name: found[name] for name in ("events", "items", "users") if name in found}
