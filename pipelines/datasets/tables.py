"""The tables every data set is turned into, named as features/ expects them by default."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl


@dataclass(frozen=True, kw_only=True)
class Tables:
    """A data set as it goes into build_features.

    ``events`` has user_id, item_id, event_type and event_time or sequence_index; ``items`` has
    item_id, title and what else is known; ``users`` is there where anything is known of them.
    """

    events: pl.DataFrame
    items: pl.DataFrame
    users: pl.DataFrame | None = None

    def write(self, directory: Path) -> dict[str, int]:
        """Write one Parquet file a table; return the rows of each."""
        tables = {"events": self.events, "items": self.items, "users": self.users}
        rows = {}
        for name, table in tables.items():
            if table is not None:
                table.write_parquet(directory / f"{name}.parquet")
                rows[name] = table.height
        return rows


def unix_seconds(column: str) -> pl.Expr:
    """Read integer seconds since 1970 as UTC event times."""
    return (
        (pl.col(column).cast(pl.Int64) * 1_000_000)
        .cast(pl.Datetime("us"))
        .dt.replace_time_zone("UTC")
        .alias("event_time")
    )
