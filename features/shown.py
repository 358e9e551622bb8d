"""Write impressions as Parquet: the shown lists that a ranker learns from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from features.days import as_table
from features.ingest import Dictionaries
from features.records import Records


def write_shown(parts: Iterator[Records], texts: Dictionaries, directory: Path) -> int:
    """Write records of dense rows as part-*.parquet, in order; return how many there are."""
    directory.mkdir(parents=True)
    count = 0
    for number, part in enumerate(parts):
        as_table(part, texts).write_parquet(
            directory / f"part-{number:05d}.parquet", compression="lz4"
        )
        count += len(part)
    return count
