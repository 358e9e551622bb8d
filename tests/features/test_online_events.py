"""Events that a server collected follow those of the files, by rules of their own."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

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


def test_their_types_are_chosen_apart_from_those_of_the_files(tmp_path: Path) -> None:
    chosen = FilterConfig(event_types=("event",), online_types=("purchase",))
    out, report = build(tmp_path, filters=chosen)
    assert histories(out) == {"ann": ["x", "y"], "bo": ["x"], "new": ["x"]}
    assert report.filtered["event_type not selected"] == 3


def test_impressions_go_where_shown_types_say(tmp_path: Path) -> None:
    looked = [*COLLECTED, ("new", "x", 15, "impression", None)]
    out, report = build(
        tmp_path, collected=looked, filters=FilterConfig(shown_types=("impression",))
    )
    assert report.filtered["shown, no part of histories"] == 2
    shown = pl.read_parquet(out / "shown")
    items = dict(pl.read_parquet(out / "vocabularies" / "items.parquet").rows())
    assert [items[row] for row in shown["item_row"]] == ["z", "x"]


def test_made_up_items_stop_no_run(tmp_path: Path) -> None:
    garbage = [("new", f"made up {n}", 20 + n, "view", None) for n in range(500)]
    out, report = build(tmp_path, collected=[*COLLECTED, *garbage])
    assert report.quarantined[UNKNOWN_ITEM] == 501
    assert len(pl.read_parquet(out / "vocabularies" / "items.parquet")) == 3


def test_without_a_catalogue_events_say_what_is_an_item(tmp_path: Path) -> None:
    out, _ = build(tmp_path, catalogue=False)
    assert histories(out)["new"] == ["y", "x", "made up"]


def test_an_event_that_a_file_has_too_counts_once(tmp_path: Path) -> None:
    same = [("ann", "x", 0, "event", None), ("ann", "x", 0, "view", None)]
    filters = FilterConfig(online_types=("event", "view"))
    out, report = build(tmp_path, collected=[*same, *COLLECTED[1:2]], filters=filters)
    assert report.duplicates == 1
    assert histories(out)["ann"] == ["x", "x", "y"]


def test_events_without_times_take_none(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"ratings.csv has no event_time.* leave out online_events"
    ):
        build(tmp_path, event_time="", sequence_index="at")


def test_times_of_histories_are_those_of_the_events(tmp_path: Path) -> None:
    out, _ = build(tmp_path)
    times = np.load(out / "sequences" / "given" / "times.npy")
    assert sorted(times.tolist()) == [START + at for at in (0, 1, 2, 10, 11, 12)]
