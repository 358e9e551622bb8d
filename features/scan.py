"""The one door for raw files: Parquet, CSV and JSON lines become lazy frames with our names.

Whatever a file has wrong as a whole (absent, empty, corrupt, without a needed column) is a
ValueError that names the file and what to do. What single rows have wrong is found in events.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from features.schema import SourceConfig

ROW = "row"
"""Name of the column that counts a file's data rows from 0."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn whatever Polars raises while it reads ``path`` into a ValueError that names it."""
    try:
        yield
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}; write the file again") from error
    except BaseException as error:
        # Polars reports a corrupt Parquet page by a PanicException, which is no Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(
            f"{path} is corrupt (the reader stopped with: {error}); write the file again"
        ) from error


def scan_file(path: Path, source: SourceConfig) -> pl.LazyFrame:
    """Open one file lazily, its columns as they are, with a row counter.

    CSV columns come as text, so that one bad number costs a row and not the file.

    Raises:
        ValueError: If there is no such file, it is empty, or its ending is unknown.
    """
    if not path.exists():
        raise ValueError(f"no file {path}; check the path, it is relative to the TOML file")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty (0 bytes); it needs a header and at least one row")
    endings = "".join(path.suffixes[-2:] if path.suffix == ".gz" else path.suffixes[-1:])
    with naming(path):
        if path.suffix == ".parquet":
            frame = pl.scan_parquet(path, row_index_name=ROW, low_memory=True)
        elif endings in (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"):
            frame = pl.scan_ndjson(path, row_index_name=ROW, infer_schema_length=None)
        elif endings in (".csv", ".tsv", ".txt", ".inter", ".item", ".user", ".csv.gz", ".tsv.gz"):
            separator = "\t" if ".tsv" in endings and source.separator == "," else source.separator
            frame = pl.scan_csv(
                path,
                separator=separator,
                infer_schema=False,
                row_index_name=ROW,
                quote_char='"',
                encoding="utf8-lossy",
            )
        else:
            raise ValueError(
                f"{path} ends in {path.suffix!r}; known are .parquet, .csv, .tsv and .jsonl"
            )
        frame.collect_schema()
    return frame


def with_our_names(
    frame: pl.LazyFrame,
    path: Path,
    source: SourceConfig,
    *,
    known: Sequence[str],
    needed: Sequence[str],
) -> pl.LazyFrame:
    """Rename the mapped columns and keep ``known`` and the row counter.

    Raises:
        ValueError: If a mapped or a needed column is not in the file; offers the nearest.
    """
    present = frame.collect_schema().names()
    for ours, theirs in source.columns.items():
        if theirs not in present:
            raise ValueError(_no_column(path, theirs, present, f"data.columns maps {ours} to it"))
    names = {ours: source.columns.get(ours, ours) for ours in known}
    for ours in needed:
        if names[ours] not in present:
            raise ValueError(_no_column(path, ours, present, f"name the file's column for {ours}"))
    kept = {ours: theirs for ours, theirs in names.items() if theirs in present}
    return frame.select(ROW, *(pl.col(theirs).alias(ours) for ours, theirs in kept.items()))


def _no_column(path: Path, name: str, present: Sequence[str], remedy: str) -> str:
    columns = [column for column in present if column != ROW]
    near = difflib.get_close_matches(name, columns, n=1, cutoff=0.5)
    offer = f", nearest is {near[0]!r}" if near else ""
    return f"{path} has no column {name!r}{offer}; {remedy}. It has: {', '.join(columns)}"
