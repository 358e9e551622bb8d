"""Events that a server collected follow those of the files, by rules of their own."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from features.build import FeaturesConfig, FeaturesReport, build_features
from features.ingest import UNKNOWN_ITEM
from features.schema import FilterConfig, SourceConfig
from tests.features.test_build import histories

NOW = datetime(2024, 6, 1, tzinfo=UTC)
START = 1_700_000_000
RATINGS = [("ann", "x", 0, 5.0), ("ann", "y", 1, 1.0), ("bo", "x", 2, 4.0)]
COLLECTED = [
    # user, item, seconds, type, value
    ("ann", "z", 10, "view", 0.5),
    ("new", "y", 11, "click", None),
    ("new", "x", 12, "purchase", 1.99),
    ("new", "z", 13, "impression", None),
    ("new", "made up", 14, "view", None),
]


def build(
    folder: Path,
    *,
    collected: list[tuple[str, str, int, str, float | None]] = COLLECTED,
    filters: FilterConfig | None = None,
    catalogue: bool = True,
    **columns: str,
) -> tuple[Path, FeaturesReport]:
    """Ratings in a CSV of foreign names, events in Parquet, and x, y, z in the catalogue."""
    lines = [f"{user};{item};{START + at};{value}" for user, item, at, value in RATINGS]
    (folder / "ratings.csv").write_text("\n".join(["customer;film;at;stars", *lines]))
    schema = ["user_id", "item_id", "event_time", "event_type", "value"]
    frame = pl.DataFrame(collected, schema=schema, orient="row")
    at = ((pl.col("event_time") + START) * 1_000).cast(pl.Datetime("ms", "UTC"))
    frame.with_columns(at.alias("event_time")).write_parquet(folder / "online.parquet")
    (folder / "items.csv").write_text("item_id,title\nx,X\ny,Y\nz,Z\n")
    names = {"user_id": "customer", "item_id": "film", "event_time": "at", "value": "stars"}
    config = FeaturesConfig(
        events=SourceConfig(
            paths=(folder / "ratings.csv",), columns=names | columns, separator=";"
        ),
        online_events=SourceConfig(paths=(folder / "online.parquet",), columns={"value": ""}),
        items=SourceConfig(paths=(folder / "items.csv",)) if catalogue else None,
        filters=filters or FilterConfig(),
        now=NOW,
    )
    out = folder / "out"
    return out, build_features(config, out)


def test_they_follow_the_files_and_bring_new_users(tmp_path: Path) -> None:
    out, report = build(tmp_path)
    assert histories(out) == {"ann": ["x", "y", "z"], "bo": ["x"], "new": ["y", "x"]}
    assert report.quarantined == {UNKNOWN_ITEM: 1}
    assert report.filtered == {"event_type not selected": 1}
    assert report.rows_in == 8 == report.events + 2
    kept = pl.read_parquet(out / "quarantine")
    assert kept["file"].to_list() == [str(tmp_path / "online.parquet")]
    assert kept["row"].to_list() == [4]


def test_a_price_or_a_view_is_no_rating(tmp_path: Path) -> None:
    """Ratings below 4 go, the view of value 0.5 stays, and no value of a purchase is kept."""
    out, report = build(tmp_path, filters=FilterConfig(min_value=4.0))
    assert histories(out) == {"ann": ["x", "z"], "bo": ["x"], "new": ["y", "x"]}
    assert report.filtered["value below min_value"] == 1
    values = pl.read_parquet(out / "events")
    assert values.filter(pl.col("value").is_not_null())["value"].to_list() == [5.0, 4.0]
