"""Infer which raw file holds events, items or users, and what its columns are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from features.scan import naming, scan_file
from features.schema import SEPARATED, SourceConfig
from pipelines.datasets.column_guesses import (
    EVENT_NAMES,
    ITEM_NAMES,
    TimeGuess,
    guess_time,
    kind_of_file,
    name_score,
)

SAMPLE_ROWS = 20_000
SEPARATORS = ",;\t|"
OPTIONAL = ("event_type", "value", "domain", "session_id", "request_id", "slot", "propensity")
NUMBERS = ("value", "slot", "propensity", "sequence_index", "price")


@dataclass(frozen=True, kw_only=True)
class RawTable:
    """One file, and its first rows as they are."""

    path: Path
    separator: str
    sample: pl.DataFrame


@dataclass(kw_only=True)
class Guess:
    """The table that a file was recognised as."""

    table: RawTable
    columns: dict[str, str]
    """Our column -> the file's."""
    others: dict[str, list[str]] = field(default_factory=dict)
    """Further columns that could be ours, best first."""
    unsure: list[str] = field(default_factory=list)
    time: TimeGuess | None = None

    def free(self, columns: Iterable[str]) -> list[str]:
        """Keep the columns that are not used yet."""
        return [column for column in columns if column not in self.columns.values()]

    def choose(self, ours: str, found: list[str]) -> bool:
        """Use the first of the columns found; return whether there is any."""
        if found:
            self.columns[ours], self.others[ours] = found[0], found[1:]
        return bool(found)


def sniffed_separator(path: Path) -> str:
    """Infer the separator of a text file from its first line."""
    if path.suffix not in SEPARATED:
        return ","
    head = path.read_bytes()[:65_536]
    if b"\x00" in head:
        raise ValueError(f"{path} holds binary data, not text; write it as CSV or Parquet")
    line = head.decode("utf-8", errors="replace").partition("\n")[0]
    return max(SEPARATORS, key=line.count) if any(map(line.count, SEPARATORS)) else ","


def read_sample(path: Path) -> RawTable:
    """Read the first rows of a file."""
    separator = sniffed_separator(path) if path.is_file() else ","
    frame = scan_file(path, SourceConfig(paths=(path,), separator=separator))
    with naming(path):
        sample = frame.head(SAMPLE_ROWS).collect()
    if path.suffix in SEPARATED and all(looks_like_value(name) for name in sample.columns[:2]):
        first = ", ".join(sample.columns[:4])
        raise ValueError(
            f"{path} has no header: its first line is data ({first}). Put the names of the columns "
            'before it, for example: sed -i "1i user_id,item_id,event_time" ' + path.name
        )
    if sample.is_empty():
        raise ValueError(f"{path} has a header and no rows; there must be at least one")
    nested = [name for name, dtype in sample.schema.items() if isinstance(dtype, pl.Struct)]
    flat = sample.drop(nested)
    if not flat.columns:
        raise ValueError(
            f"{path}: every column is nested ({', '.join(nested)}); write their fields as columns "
            "of their own"
        )
    return RawTable(path=path, separator=separator, sample=flat)


def looks_like_value(name: str) -> bool:
    """Return True if a header's cell is a number, as in a file without a header."""
    return name.replace(".", "").replace("-", "").replace("_duplicated_0", "").isdigit()


def ranked(names: dict[str, tuple[str, ...]], ours: str, table: pl.DataFrame) -> list[str]:
    """List the columns that could be ours by their names, best first."""
    scores = {column: name_score(column, names[ours]) for column in table.columns}
    return sorted((c for c in scores if scores[c] > 0), key=lambda c: -scores[c])


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
    if known.is_empty() or isinstance(known.dtype, pl.List):
        return ours == "categories" and not known.is_empty()
    if ours in ("slot", "propensity"):
        numbers = known.cast(pl.Float64, strict=False)
        low, high = numbers.min(), numbers.max()
        if numbers.null_count() or not isinstance(low, float) or not isinstance(high, float):
            return False
        if ours == "propensity":
            return low > 0 and high <= 1
        return low >= 0 and bool((numbers == numbers.round()).all())
    if ours in NUMBERS:
        return is_number(known)
    if ours == "event_type":
        return known.dtype == pl.String and known.n_unique() <= 50
    return known.dtype == pl.String or known.dtype.is_integer()


def guess_events(table: RawTable) -> Guess:
    """Guess the columns of a table of events; those that are needed may be missing."""
    sample = table.sample
    guess = Guess(table=table, columns={})
    for ours in ("user_id", "item_id"):
        found = guess.free(ranked(EVENT_NAMES, ours, sample))
        guess.choose(ours, [column for column in found if can_be(ours, sample[column])])
    guess_order(guess)
    for ours in OPTIONAL:
        found = [
            column
            for column in guess.free(ranked(EVENT_NAMES, ours, sample))
            if name_score(column, EVENT_NAMES[ours]) >= 1 and can_be(ours, sample[column])
        ]
        if not guess.choose(ours, found) and ours in guess.free(sample.columns):
            guess.columns[ours] = ""
            guess.unsure.append(f"column {ours} does not hold what {ours} means, so it is not read")
    return guess


def guess_order(guess: Guess) -> None:
    """Find what orders the events: a time, or else a sequence."""
    sample = guess.table.sample
    free = guess.free(sample.columns)
    named = [column for column in ranked(EVENT_NAMES, "event_time", sample) if column in free]
    texts = [c for c in free if c not in named and not sample[c].dtype.is_numeric()]
    times = {c: found for c in [*named, *texts] if (found := guess_time(sample[c])) is not None}
    if times:
        chosen, *others = times
        guess.columns["event_time"], guess.others["event_time"] = chosen, others
        guess.time = times[chosen]
    order = [c for c in ranked(EVENT_NAMES, "sequence_index", sample) if c in free]
    order += [c for c in named if c not in times]
    for column in order:
        known = sample[column].cast(pl.Int64, strict=False)
        if column not in guess.columns.values() and not known.null_count():
            guess.columns["sequence_index"] = column
            break


def fill_ids(guess: Guess) -> None:
    """Without telling names, use the columns of repeated texts or integers as ids."""
    sample = guess.table.sample
    for ours in ("user_id", "item_id"):
        if ours in guess.columns:
            continue
        free = [
            column
            for column in guess.free(sample.columns)
            if can_be(ours, sample[column]) and 1 < sample[column].n_unique() < sample.height
        ]
        if not guess.choose(ours, free):
            raise ValueError(
                f"{guess.table.path}: no column looks like {ours} (ids that repeat); its columns "
                f"are {', '.join(sample.columns)}. Rename one to {ours}"
            )
        guess.unsure.append(
            f"no column is named like {ours}; {free[0]!r} was chosen because its values repeat"
        )


def guess_side(table: RawTable, key: str, ids: pl.Series) -> tuple[Guess, float]:
    """Guess the catalogue or the users by how many of the events' ids a column has."""
    wanted = ids.drop_nulls().cast(pl.String).unique()
    shares = {
        column: float(wanted.is_in(table.sample[column].cast(pl.String).implode()).sum())
        / max(len(wanted), 1)
        for column in table.sample.columns
        if table.sample[column].dtype == pl.String or table.sample[column].dtype.is_integer()
    }
    if not shares:
        return Guess(table=table, columns={}), 0.0
    names = EVENT_NAMES[key]

    def fit(column: str) -> tuple[float, float]:
        unique = table.sample[column].n_unique() / table.sample.height
        return shares[column] * unique, name_score(column, names)

    best = max(shares, key=fit)
    guess = Guess(table=table, columns={key: best})
    if key == "item_id":
        for ours in ITEM_NAMES:
            found = [
                column
                for column in guess.free(ranked(ITEM_NAMES, ours, table.sample))
                if can_be(ours, table.sample[column]) or ours == "available_from"
            ]
            if not guess.choose(ours, found) and ours in table.sample.columns and ours != "domain":
                guess.columns[ours] = ""
    return guess, fit(best)[0]


def events_first(tables: list[RawTable]) -> tuple[Guess, list[RawTable]]:
    """Pick the table of events."""

    def score(table: RawTable) -> float:
        guess = guess_events(table)
        has = guess.columns
        points = ("user_id" in has) + ("item_id" in has) + ("event_time" in has) * 0.5
        if "user_id" in has and table.sample[has["user_id"]].is_unique().all():
            points -= 0.75
        kind = kind_of_file(table.path.name.split(".")[0])
        return points + {"events": 0.7, None: 0.0}.get(kind, -0.7)

    chosen = max(tables, key=score)
    guess = guess_events(chosen)
    fill_ids(guess)
    if "event_time" not in guess.columns and "sequence_index" not in guess.columns:
        raise ValueError(
            f"{chosen.path}: no column looks like a time or an order of a user's events; "
            f"its columns are {', '.join(chosen.sample.columns)}. Known are numbers since 1970, "
            "ISO times and dates such as 31.12.2024 or 12/31/2024"
        )
    return guess, [table for table in tables if table is not chosen]
