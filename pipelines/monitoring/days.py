"""Days of a workspace: events and served lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import NamedTuple

import polars as pl

from features.scan import naming
from features.schema import CLEAN
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import MANIFEST
from pipelines.engine.workspace import UPDATE
from pipelines.inputs.exported import RECEIVED_TIME, REQUESTS, list_parts, scan_parts
from pipelines.partitions.manifest import PartitionsManifest, partition_folder
from pipelines.presets.resolve import ONLINE_EVENTS

FEATURES = "build_features"


@dataclass(frozen=True, kw_only=True)
class EventDays:
    """Days with events, each read when it is needed."""

    digests: Mapping[date, str]
    """In order; a corrected day has another digest."""
    read: Callable[[date], pl.DataFrame]
    """user_id, item_id, event_time, event_type and what else is known."""


def read_table(path: Path) -> pl.DataFrame:
    """Read a file."""
    with naming(path):
        return pl.read_parquet(path, hive_partitioning=False)


def event_days(workspace: Path) -> EventDays:
    """Find the days of ingested partitions."""
    manifest = PartitionsManifest.read(workspace)
    partitions = {} if manifest is None else manifest.partitions
    if not partitions:
        raise ValueError(
            f"{workspace} has no days to watch: set data.partitions to a folder with a file of "
            "events for each day, and run recsys ingest"
        )

    def read(day: date) -> pl.DataFrame:
        folder = partition_folder(workspace, str(day), partitions[str(day)].revision)
        parts = [read_table(path) for path in sorted(folder.glob(CLEAN))]
        if not parts:
            return pl.DataFrame(schema={"user_id": pl.String(), "item_id": pl.String()})
        return pl.concat(parts, how="diagonal_relaxed")

    digests = {date.fromisoformat(key): one.digest for key, one in sorted(partitions.items())}
    return EventDays(digests=digests, read=read)


def known_tables(workspace: Path) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
    """Read what the newest run or update knows of items and users; None without any."""
    folders = [workspace / FEATURES, workspace / UPDATE / FEATURES]
    made = [folder for folder in folders if (folder / MANIFEST).exists()]
    if not made:
        return None, None
    newest = max(made, key=lambda folder: (folder / MANIFEST).stat().st_mtime)
    paths = [newest / f"{name}.parquet" for name in ("items", "users")]
    items, users = (read_table(path) if path.exists() else None for path in paths)
    return items, users


CLICKS = ("click", "like", "cart", "purchase")


class ServedDay(NamedTuple):
    """One day (UTC)."""

    num_lists: int
    num_clicked: int
    """Lists with at least one click, whenever that came."""
    num_fallback: int | None
    """None where the export does not say."""
    num_degraded: int | None


def export_folder(config: RunConfig) -> Path | None:
    """Find the folder of exported lists and events; None where nothing is exported."""
    given = config.monitoring.served
    places = [given, config.workspace / ONLINE_EVENTS]
    if config.data.online_events is not None and ":" not in config.data.online_events:
        places.append(Path(config.data.online_events))
    for place in places:
        if place is not None and (place / REQUESTS).is_dir():
            return place
    if given is not None:
        raise ValueError(
            f"monitoring.served: {given} holds no served lists; name a folder that recsys events "
            "export wrote"
        )
    return None


def served_days(folder: Path | None) -> Mapping[date, ServedDay]:
    """Read an export of ``recsys data export``; nothing where there is none."""
    if folder is None or not (folder / REQUESTS).is_dir():
        return {}
    lists = _read(list_parts(folder / REQUESTS))
    if lists is None:
        return {}
    return days_of_lists(lists, _read(list_parts(folder)))


def days_of_lists(served: pl.DataFrame, events: pl.DataFrame | None) -> dict[date, ServedDay]:
    """Count lists by day."""
    clicked = pl.Series("request_id", [], pl.String)
    if events is not None and events.height:
        clicked = events.filter(pl.col("event_type").is_in(CLICKS))["request_id"].drop_nulls()
    known = [name for name in ("fallback", "degraded") if name in served.columns]
    lists = served.unique("request_id").select(
        pl.col(RECEIVED_TIME).dt.date().alias("day"),
        pl.col("request_id").is_in(clicked.unique().implode()).alias("clicked"),
        *(pl.col(name).is_not_null().alias(name) for name in known),
    )
    counted = lists.group_by("day").agg(pl.len().alias("lists"), pl.col("clicked", *known).sum())
    return {
        row["day"]: ServedDay(
            row["lists"], row["clicked"], row.get("fallback"), row.get("degraded")
        )
        for row in counted.sort("day").to_dicts()
    }


def _read(paths: list[Path]) -> pl.DataFrame | None:
    if not paths:
        return None
    wanted = ("request_id", RECEIVED_TIME, "event_type", "fallback", "degraded")
    rows = scan_parts(paths)
    known = rows.collect_schema().names()
    return rows.select([name for name in wanted if name in known]).collect()
