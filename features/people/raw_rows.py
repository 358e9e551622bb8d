"""Rows of certain users in raw files: how many there are, and the file without them.

Whatever is not of them stays as it is: lines of a text file to the byte, columns of a Parquet file
by value.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

import polars as pl

from features.events import as_text
from features.scan import batches, naming, renamed, scan_file
from features.schema import JSON_LINES, USER_ID, SourceConfig

PARQUET = ".parquet"
LONGEST_FIELD = 1 << 27


def count_rows(path: Path, source: SourceConfig, user_ids: Collection[str]) -> int:
    """Count the rows of users in a file."""
    frame = renamed(scan_file(path, source), path, source, (USER_ID,))
    of_them = _is_user(frame, USER_ID, user_ids).sum().alias("found")
    columns = frame.select(pl.col(USER_ID))
    return sum(int(part.select(of_them).item()) for _, part in batches(columns, path))


def write_without(
    path: Path, source: SourceConfig, user_ids: Collection[str], target: Path
) -> None:
    """Write a file without the rows of users; arguments as of ``count_rows``."""
    theirs = source.columns.get(USER_ID) or USER_ID
    frame = scan_file(path, source)
    ending = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if ending == PARQUET:
        with naming(path):
            frame.filter(~_is_user(frame, theirs, user_ids).fill_null(value=False)).sink_parquet(
                target
            )
        return
    place = frame.collect_schema().names().index(theirs)
    wanted = frozenset(user_ids)
    tabs = ending == ".tsv" and source.separator == ","
    separator = "\t" if tabs else source.separator
    opened = gzip.open if path.suffix == ".gz" else open
    with (
        naming(path),
        opened(path, "rt", encoding="utf-8", newline="") as file,
        opened(target, "wt", encoding="utf-8", newline="") as out,
    ):
        if ending in JSON_LINES:
            out.writelines(line for line in file if _read_user(line, theirs) not in wanted)
        else:
            out.writelines(_kept_lines(file, separator, place, wanted))


def _is_user(frame: pl.LazyFrame, column: str, user_ids: Collection[str]) -> pl.Expr:
    return as_text(column, frame.collect_schema()[column]).is_in(list(user_ids))


def _read_user(line: str, column: str) -> str | None:
    value = json.loads(line).get(column) if line.strip() else None
    return None if value is None else str(value)


def _kept_lines(
    file: IO[str], separator: str, place: int, user_ids: Collection[str]
) -> Iterator[str]:
    """Yield the lines of all records but those of users; a record may span lines."""
    lines: list[str] = []

    def read() -> Iterator[str]:
        for line in file:
            lines.append(line)
            yield line

    csv.field_size_limit(LONGEST_FIELD)
    for number, record in enumerate(csv.reader(read(), delimiter=separator)):
        if number == 0 or not (place < len(record) and record[place] in user_ids):
            yield from lines
        lines.clear()
