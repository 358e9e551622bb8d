"""Days of a workspace: events, served lists, and the day up to which models were trained."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import polars as pl

from features.scan import naming
from features.schema import CLEAN
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import MANIFEST, digest_of_json
from pipelines.engine.workspace import RELEASED, UPDATE, bundles_dir
from pipelines.inputs.exported import RECEIVED_TIME, REQUESTS, list_parts, scan_parts
from pipelines.partitions.manifest import PartitionsManifest, partition_folder
from pipelines.presets.resolve import ONLINE_EVENTS
from pipelines.publishing.released import Released, released_folder
from serving.bundle.manifest import CURRENT

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
    """Find the days of a workspace; a partition takes the place of the same day of a run."""
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
            partition_folder(workspace, key, manifest.partitions[key].revision) for key in keys[day]
        ]
        paths = [path for folder in folders for path in sorted(folder.glob(CLEAN))]
        if not paths:
            return pl.DataFrame(schema={"user_id": pl.String(), "item_id": pl.String()})
        parts = [read_table(path) for path in paths]
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
            [read_table(features / name) for name in parts[day]],
            how="diagonal_relaxed",
        )
        users = read_table(features / "users.parquet").select("user_row", "user_id")
        items = read_table(features / "items.parquet").select("item_row", "item_id")
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


BUNDLE = "bundle-"


def full_run_until(config: RunConfig) -> date | None:
    """Return the day of the newest event that the last full run knows, or None.

    Increments since then do not count: they follow drift, and a full run may still do better.
    """
    current = (bundles_dir(config) / CURRENT).resolve()
    served = kept_in(released_folder(config.workspace, current.name.removeprefix(BUNDLE)))
    if served is None:
        return None
    for folder in (config.workspace / RELEASED).glob("*/"):
        found = kept_in(folder)
        if found and found.kind == "full" and found.time == served.full_time and found.until:
            return datetime.fromtimestamp(found.until, UTC).date()
    # Its folder was removed: it cannot have known the day on which it ended.
    return datetime.fromisoformat(served.full_time).date() - timedelta(days=1)


def kept_in(folder: Path) -> Released | None:
    """Read what a bundle was made from; None where it is not kept, or by another version."""
    try:
        return Released.read(folder)
    except (ValueError, TypeError):
        return None
