"""The days of a workspace: ingested partitions, and before them the days of build_features."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import polars as pl

from features.partition import CLEAN
from features.scan import naming
from pipelines.engine.artifacts import MANIFEST, digest_of_json
from pipelines.partitions.manifest import PartitionsManifest, folder_of
from pipelines.publishing.released import UPDATE

FEATURES = "build_features"


@dataclass(frozen=True, kw_only=True)
class EventDays:
    """Days with events, each read when it is needed."""

    digests: Mapping[date, str]
    """In order; a corrected day has another digest."""
    read: Callable[[date], pl.DataFrame]
    """user_id, item_id, event_time, event_type and what else is known."""


def table_of(path: Path) -> pl.DataFrame:
    """Read a file.

    Raises:
        ValueError: It is damaged; names it.
    """
    with naming(path):
        return pl.read_parquet(path, hive_partitioning=False)


def days(workspace: Path) -> Iterator[tuple[date, pl.DataFrame]]:
    """Give each day's events, in order."""
    found = event_days(workspace)
    for day in found.digests:
        yield day, found.read(day)


def event_days(workspace: Path) -> EventDays:
    """Find the days of a workspace; a partition takes the place of the same day of a run.

    Raises:
        ValueError: There are none, or the events have no times.
    """
    of_run = days_of_features(workspace / FEATURES)
    partitions = days_of_partitions(workspace)
    digests = {**of_run.digests, **partitions.digests}
    if not digests:
        raise ValueError(
            f"{workspace} has no days to watch: run recsys ingest or recsys run first, with an "
            "event_time column"
        )

    def read(day: date) -> pl.DataFrame:
        return (partitions if day in partitions.digests else of_run).read(day)

    return EventDays(digests=dict(sorted(digests.items())), read=read)


def days_of_partitions(workspace: Path) -> EventDays:
    """Find the days of ingested partitions; hours of a day are read together."""
    manifest = PartitionsManifest.read(workspace)
    keys: dict[date, list[str]] = {}
    for key in sorted(manifest.partitions) if manifest else []:
        keys.setdefault(date.fromisoformat(key[:10]), []).append(key)

    def read(day: date) -> pl.DataFrame:
        assert manifest is not None
        folders = [
            folder_of(workspace, key, manifest.partitions[key].revision) for key in keys[day]
        ]
        paths = [path for folder in folders for path in sorted(folder.glob(CLEAN))]
        if not paths:
            return pl.DataFrame(schema={"user_id": pl.String(), "item_id": pl.String()})
        parts = [table_of(path) for path in paths]
        return pl.concat(parts, how="diagonal_relaxed")

    digests = {
        day: digest_of_json([manifest.partitions[key].digest for key in of_day])
        for day, of_day in keys.items()
        if manifest is not None
    }
    return EventDays(digests=digests, read=read)


def days_of_features(features: Path) -> EventDays:
    """Find the days that stage build_features wrote; none where it did not run."""
    parts: dict[date, list[str]] = {}
    digests: dict[date, str] = {}
    if (features / MANIFEST).exists():
        files = json.loads((features / MANIFEST).read_text(encoding="utf-8"))["files"]
        for name in sorted(files):
            folder, _, rest = name.partition("/")
            if folder == "events" and rest.startswith("day=") and "unknown" not in rest:
                day = date.fromisoformat(rest[len("day=") :].partition("/")[0])
                parts.setdefault(day, []).append(name)
        digests = {
            day: digest_of_json([files[name] for name in names]) for day, names in parts.items()
        }

    def read(day: date) -> pl.DataFrame:
        rows = pl.concat(
            [table_of(features / name) for name in parts[day]],
            how="diagonal_relaxed",
        )
        users = table_of(features / "users.parquet").select("user_row", "user_id")
        items = table_of(features / "items.parquet").select("item_row", "item_id")
        rows = rows.join(users, on="user_row", how="left").join(items, on="item_row", how="left")
        return rows.drop_nulls(["user_id", "item_id"])

    return EventDays(digests=digests, read=read)


def known_tables(workspace: Path) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
    """Read what the newest run or update knows of items and users; None without any."""
    folders = [workspace / FEATURES, workspace / UPDATE / FEATURES]
    made = [folder for folder in folders if (folder / MANIFEST).exists()]
    if not made:
        return None, None
    newest = max(made, key=lambda folder: (folder / MANIFEST).stat().st_mtime)
    paths = [newest / f"{name}.parquet" for name in ("items", "users")]
    items, users = (table_of(path) if path.exists() else None for path in paths)
    return items, users
