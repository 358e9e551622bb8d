"""Rows that cannot be used: kept with file, row number, reason and content, and counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl


@dataclass
class Quarantine:
    """Collects bad rows of all tables into ``directory``/part-*.parquet.

    The columns are ``file``, ``row`` (from 0, header not counted), ``reason`` and ``raw`` (the
    row as JSON).
    """

    directory: Path
    counts: Counter[str] = field(default_factory=Counter)
    """Rows by reason."""
    first: dict[str, str] = field(default_factory=dict)
    """First place of each reason."""
    num_parts: int = 0

    def add(self, path: Path, rows: pl.Series, reasons: pl.Series, raw: pl.DataFrame) -> None:
        """Keep bad rows, all of one file, in ascending order."""
        if not raw.height:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        part = raw.select(
            pl.lit(str(path)).alias("file"),
            rows.cast(pl.Int64).alias("row"),
            reasons.alias("reason"),
            pl.struct(pl.all()).struct.json_encode().alias("raw"),
        )
        part.write_parquet(self.directory / f"part-{self.num_parts:05d}.parquet")
        self.num_parts += 1
        found = part.group_by("reason", maintain_order=True).agg(pl.len(), pl.col("row").first())
        for reason, count, row in found.rows():
            self.counts[reason] += count
            self.first.setdefault(reason, f"{path}, row {row}")

    def take(self, other: Quarantine) -> None:
        """Move another one's rows after these."""
        for number in range(other.num_parts):
            self.directory.mkdir(parents=True, exist_ok=True)
            part = other.directory / f"part-{number:05d}.parquet"
            part.replace(self.directory / f"part-{self.num_parts:05d}.parquet")
            self.num_parts += 1
        self.counts += other.counts
        for reason, place in other.first.items():
            self.first.setdefault(reason, place)

    def check_share(self, table: str, num_bad: int, num_rows: int, max_share: float) -> None:
        """Stop where too much of a table is bad."""
        if num_bad <= max_share * num_rows:
            return
        reasons = "\n".join(
            f"  - {count} x {reason} (first: {self.first[reason]})"
            for reason, count in sorted(self.counts.items(), key=lambda pair: (-pair[1], pair[0]))
        )
        raise ValueError(
            f"{num_bad} of {num_rows} {table} rows ({num_bad / num_rows:.1%}) cannot be used, "
            f"max_bad_share allows {max_share:.1%}:\n{reasons}\n"
            "Mend the files, map the right columns, or raise max_bad_share"
        )
