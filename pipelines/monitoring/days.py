"""Days of a workspace: events and served lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import NamedTuple

import polars as pl

from features.reading.scan import naming
from features.schema import CLEAN
from pipelines.config.run import RunConfig
from pipelines.engine.workspace import DailyState
from pipelines.inputs.exported import RECEIVED_TIME, REQUESTS, list_parts, scan_parts
from pipelines.partitions.manifest import Partition, PartitionsManifest

CLICKS = ("click", "like", "cart", "purchase")
KEYS = {"item": "item_id", "event_type": "event_type"}
"""Column that each table of counts is of."""
NONE = pl.DataFrame(schema={"key": pl.String(), "count": pl.Float64()})


class EventCounts(NamedTuple):
    """Counts of one day."""

    events: int = 0
    users: int = 0
    tables: Mapping[str, pl.DataFrame] = dict.fromkeys(KEYS, NONE)
    """Key and count, by table."""


def count_events(events: pl.DataFrame) -> EventCounts:
    """Count a day's events, by item and by type."""
    missing = [pl.lit(None, pl.String).alias(name) for name in KEYS.values()]
    rows = events.with_columns(one for one in missing if one.meta.output_name() not in events)
    tables = {
        name: rows.group_by(pl.col(column).cast(pl.String).fill_null("unknown").alias("key")).agg(
            pl.len().cast(pl.Float64).alias("count")
        )
        for name, column in KEYS.items()
    }
    return EventCounts(events.height, events["user_id"].n_unique(), tables)


@dataclass(frozen=True, kw_only=True)
class EventDays:
    """Days with events, each read when it is needed."""

    workspace: Path
    partitions: Mapping[date, Partition]
    """In order."""

    @property
    def digests(self) -> dict[date, str]:
        """Digest of each day; a corrected day has another one."""
        return {day: one.digest for day, one in self.partitions.items()}

    @classmethod
    def find(cls, workspace: Path) -> EventDays:
        """Find the days of ingested partitions."""
        manifest = PartitionsManifest.read(workspace)
        partitions = {} if manifest is None else manifest.partitions
        if not partitions:
            raise ValueError(
                f"{workspace} has no days to watch: set data.partitions to a folder with a file "
                "of events for each day, and run recsys ingest"
            )
        days = {date.fromisoformat(key): one for key, one in sorted(partitions.items())}
        return cls(workspace=workspace, partitions=days)

    def read(self, day: date) -> pl.DataFrame:
        """Read who did what on a day."""
        folder = DailyState(self.workspace).partition(str(day), self.partitions[day].revision)
        found = [pl.DataFrame(schema={"user_id": pl.String(), "item_id": pl.String()})]
        for path in sorted(folder.glob(CLEAN)):
            with naming(path):
                rows = pl.scan_parquet(path, hive_partitioning=False)
                names = pl.col("^(user_id|item_id|event_type)$")
                found.append(rows.select(names.cast(pl.String)).collect())
        return pl.concat(found, how="diagonal")


class ServedDay(NamedTuple):
    """Lists of one day (UTC)."""

    num_lists: int
    num_clicked: int
    """Lists with at least one click, whenever that came."""
    num_fallback: int | None
    """None if the export does not say."""


def export_folder(config: RunConfig) -> Path | None:
    """Find the folder of exported lists and events; None if nothing is exported."""
    given = config.monitoring.served
    places = [given, DailyState(config.workspace).online_events]
    if config.data.online_events is not None and ":" not in config.data.online_events:
        places.append(Path(config.data.online_events))
    for place in places:
        if place is not None and (place / REQUESTS).is_dir():
            return place
    if given is not None:
        raise ValueError(
            f"monitoring.served: {given} holds no served lists; name a folder that recsys data "
            "export wrote"
        )
    return None


def served_days(folder: Path | None) -> Mapping[date, ServedDay]:
    """Read an export of ``recsys data export``; nothing without one."""
    if folder is None or not (folder / REQUESTS).is_dir():
        return {}
    lists = _read(list_parts(folder / REQUESTS))
    return {} if lists is None else days_of_lists(lists, _read(list_parts(folder)))


def days_of_lists(served: pl.DataFrame, events: pl.DataFrame | None) -> dict[date, ServedDay]:
    """Count lists by day."""
    clicked = pl.Series("request_id", [], pl.String)
    if events is not None and events.height:
        clicked = events.filter(pl.col("event_type").is_in(CLICKS))["request_id"].drop_nulls()
    known = [name for name in ("fallback",) if name in served.columns]
    lists = served.unique("request_id").select(
        pl.col(RECEIVED_TIME).dt.date().alias("day"),
        pl.col("request_id").is_in(clicked.unique().implode()).alias("clicked"),
        *(pl.col(name).is_not_null() for name in known),
    )
    counted = lists.group_by("day").agg(pl.len().alias("lists"), pl.col("clicked", *known).sum())
    return {
        row["day"]: ServedDay(row["lists"], row["clicked"], row.get("fallback"))
        for row in counted.sort("day").to_dicts()
    }


def _read(paths: list[Path]) -> pl.DataFrame | None:
    if not paths:
        return None
    wanted = ("request_id", RECEIVED_TIME, "event_type", "fallback")
    rows = scan_parts(paths)
    known = rows.collect_schema().names()
    return rows.select([name for name in wanted if name in known]).collect()
