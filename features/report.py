"""Report of a build: counts of every input row by outcome, and the rows that cannot be used."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import polars as pl


@dataclass
class FeaturesReport:
    """Counts of event rows; ``rows_in`` is the sum of kept ``events`` and all that were not."""

    rows_in: int = 0
    quarantined: Counter[str] = field(default_factory=Counter)
    """Event rows by reason."""
    filtered: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    over_user_cap: int = 0
    dropped_by_k_core: int = 0
    events: int = 0
    users: int = 0
    items: int = 0
    event_types: dict[str, int] = field(default_factory=dict)
    """Kept events of each type."""
    labels: dict[str, int] = field(default_factory=dict)
    """Events that can be predicted, per split; in train all but a user's first."""
    split_kind: str = "leave_one_out"
    """How events were held out; of ``splits.kind = "auto"``, what it took."""
    split_reason: str = ""
    """Why ``auto`` did not take ``global_time``."""
    validation_from: str | None = None
    """Begin of validation in a ``global_time`` split; likewise test."""
    test_from: str | None = None
    first_time: str | None = None
    last_time: str | None = None
    quarantined_in_tables: Counter[str] = field(default_factory=Counter)
    """Rows of the items and users tables by reason."""
    items_without_catalogue: int = 0
    forgotten: Counter[str] = field(default_factory=Counter)
    """Rows of forgotten users by table; the events are among the filtered."""
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = {}
        for field_ in fields(self):
            value = getattr(self, field_.name)
            # dataclasses.asdict would count a Counter's pairs instead of copying them.
            values[field_.name] = dict(sorted(value.items())) if isinstance(value, dict) else value
        return values


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
