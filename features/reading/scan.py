"""Read raw files (Parquet, CSV, JSON lines) as batches of named columns; nothing else reads them.

What a file has wrong as a whole (absent, empty, corrupt, without a needed column) is a ValueError
that names the file and says what to do. What single rows have wrong is found in events.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from features.schema import JSON_LINES, SEPARATED, TEXT_COLUMNS, SourceConfig

BATCH_ROWS = 1_000_000
INFERRED_ROWS = 10_000
"""Lines of a JSON file that the types of its columns are inferred from."""


class NoColumnError(ValueError):
    """A file lacks a column that is mapped or needed."""


@contextmanager
def naming(path: Path, next_row: int | None = None) -> Iterator[None]:
    """Turn any error of Polars while it reads ``path`` into a ValueError that names it."""
    place = "" if next_row is None else f" at or after row {next_row}"
    try:
        yield
    except (pl.exceptions.PolarsError, OSError, UnicodeError) as error:
        advice = None
        if path.suffix in SEPARATED and "utf-8" in str(error):
            advice = (
                f"if it is in Windows' encoding, iconv -f CP1252 -t UTF-8 {path.name} > new.csv"
            )
        elif path.suffix in SEPARATED:
            advice = ragged_line(path)
        advice = advice or "check that it is whole, or write it again"
        raise ValueError(f"cannot read {path}{place}: {first_line(error)}; {advice}") from error
    except BaseException as error:
        # Polars reports a corrupt Parquet page by PanicException, which is not an Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(
            f"{path} is corrupt{place} (the reader stopped: {first_line(error)}); write it again"
        ) from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def ragged_line(path: Path) -> str | None:
    """Find the first line of a separated file that has more fields than its header."""
    with path.open(encoding="utf-8", errors="replace") as file:
        header = file.readline()
        separator = max(",\t;|", key=header.count)
        width = header.count(separator)
        for number, line in enumerate(file, start=2):
            if '"' not in line and line.count(separator) > width:
                return (
                    f"line {number} has {line.count(separator) + 1} fields, the header "
                    f"{width + 1}: quote values that hold the separator"
                )
    return None


def scan_file(path: Path, source: SourceConfig) -> pl.LazyFrame:
    """Open one file lazily with its columns as they are.

    CSV columns come as text, so that one bad number costs a row and not the file.
    """
    if not path.is_file():
        near = []
        if path.parent.is_dir():
            near = difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir()], 1)
        hint = f"did you mean {path.parent / near[0]}?" if near else "check the path"
        raise ValueError(f"no file {path}; {hint}")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty (0 bytes); it needs a header and at least one row")
    ending = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    with naming(path):
        if ending == ".parquet":
            frame = pl.scan_parquet(path, glob=False)
        elif ending in JSON_LINES:
            frame = pl.scan_ndjson(path, infer_schema_length=INFERRED_ROWS)
            found = frame.collect_schema()
            named = {source.columns.get(ours) or ours for ours in TEXT_COLUMNS}
            texts = {n: pl.String() for n, t in found.items() if n in named and t.is_integer()}
            if texts:
                # A later row may have an id that is no integer, or a larger one.
                frame = pl.scan_ndjson(
                    path, infer_schema_length=INFERRED_ROWS, schema_overrides=texts
                )
        elif ending in SEPARATED:
            tabs = ending == ".tsv" and source.separator == ","
            separator = "\t" if tabs else source.separator
            frame = pl.scan_csv(path, separator=separator, infer_schema=False, glob=False)
        else:
            endings = ", ".join((".parquet", *SEPARATED, *JSON_LINES))
            raise ValueError(f"{path} ends in {path.suffix!r}; known endings are {endings}")
        columns = frame.collect_schema().names()
    if not columns:
        raise ValueError(f"{path} has no columns; it needs a header and at least one row")
    return frame


def no_column(path: Path, name: str, present: Sequence[str], ours: str) -> NoColumnError:
    """Describe a column that is not there, with the nearest that is."""
    lower = {column.lower(): column for column in present}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    offer = f" (nearest: {lower[near[0]]!r})" if near else ""
    return NoColumnError(
        f"{path} has no column {name!r}{offer}; its columns are {', '.join(present)}. "
        f"Name the right one for {ours!r} under the source's columns"
    )


def renamed(
    frame: pl.LazyFrame, path: Path, source: SourceConfig, needed: Sequence[str]
) -> pl.LazyFrame:
    """Rename the columns to ours."""
    present = frame.collect_schema().names()
    for ours, theirs in source.columns.items():
        if theirs not in present and (theirs or ours in needed):
            raise no_column(path, theirs, present, ours)
    for ours in needed:
        if ours not in source.columns and ours not in present:
            raise no_column(path, ours, present, ours)
    by_theirs = {theirs: ours for ours, theirs in source.columns.items()}
    # A column that already has our name gives way to the one that is mapped to it.
    kept = [name for name in present if name in by_theirs or name not in source.columns]
    return frame.select(pl.col(name).alias(by_theirs.get(name, name)) for name in kept)


def batches(
    frame: pl.LazyFrame, path: Path, batch_rows: int = BATCH_ROWS
) -> Iterator[tuple[int, pl.DataFrame]]:
    """Read a scanned file front to back."""
    row = 0
    with naming(path, row):
        stream = iter(frame.collect_batches(chunk_size=batch_rows, maintain_order=True))
    while True:
        with naming(path, row):
            batch = next(stream, None)
        if batch is None:
            return
        if batch.height:
            yield row, batch
        row += batch.height


def read_whole(path: Path, source: SourceConfig, needed: Sequence[str]) -> pl.DataFrame:
    """Read a small table (a catalogue) with our column names."""
    frame = renamed(scan_file(path, source), path, source, needed)
    with naming(path):
        return frame.collect()
