"""Events that a server collected follow the files'; clocks that go wrong leak nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from features.build import FeaturesConfig, FeaturesReport, build_features
from features.ingest import UNKNOWN_ITEM
from features.schema import FilterConfig, SourceConfig, SplitConfig
from tests.features.test_build import assert_nothing_later_is_trained_on, events_of, histories
from tests.features.test_build import build as build_artefact

NOW = datetime(2024, 6, 1, tzinfo=UTC)
START = 1_700_000_000
RATINGS = [("ann", "x", 0, 5.0), ("ann", "y", 1, 1.0), ("bo", "x", 2, 4.0)]
COLLECTED = [
    # user, item, seconds, type, value
    ("ann", "z", 10, "view", 0.5),
    ("new", "y", 11, "click", None),
    ("new", "x", 12, "purchase", 1.99),
    ("new", "z", 13, "impression", None),
    ("bo", "z", 13, "dislike", None),
    ("new", "made up", 14, "view", None),
]


def build(folder: Path, filters: FilterConfig | None = None) -> tuple[Path, FeaturesReport]:
    """Ratings in a CSV of foreign names, events in Parquet, and x, y, z in the catalogue."""
    lines = [f"{user};{item};{START + at};{value}" for user, item, at, value in RATINGS]
    (folder / "ratings.csv").write_text("\n".join(["customer;film;at;stars", *lines]))
    schema = ["user_id", "item_id", "event_time", "event_type", "value"]
    frame = pl.DataFrame(COLLECTED, schema=schema, orient="row")
    at = ((pl.col("event_time") + START) * 1_000).cast(pl.Datetime("ms", "UTC"))
    frame.with_columns(at.alias("event_time")).write_parquet(folder / "online.parquet")
    (folder / "items.csv").write_text("item_id,title\nx,X\ny,Y\nz,Z\n")
    names = {"user_id": "customer", "item_id": "film", "event_time": "at", "value": "stars"}
    config = FeaturesConfig(
        events=SourceConfig(paths=(folder / "ratings.csv",), columns=names, separator=";"),
        online_events=SourceConfig(paths=(folder / "online.parquet",), columns={"value": ""}),
        items=SourceConfig(paths=(folder / "items.csv",)),
        filters=filters or FilterConfig(),
        now=NOW,
    )
    out = folder / "out"
    return out, build_features(config, out)


def test_they_follow_the_files_and_bring_new_users(tmp_path: Path) -> None:
    out, report = build(tmp_path)
    assert histories(out) == {"ann": ["x", "y", "z"], "bo": ["x"], "new": ["y", "x"]}
    assert report.quarantined == {UNKNOWN_ITEM: 1}
    assert report.filtered == {"event_type not selected": 2}
    assert report.rows_in == 9 == report.events + 3
    kept = pl.read_parquet(out / "quarantine")
    assert kept["file"].to_list() == [str(tmp_path / "online.parquet")]
    assert kept["row"].to_list() == [5]


def test_a_price_or_a_view_is_no_rating(tmp_path: Path) -> None:
    """Ratings below 4 go, the view of value 0.5 stays, and no value of a purchase is kept."""
    out, report = build(tmp_path, filters=FilterConfig(min_value=4.0))
    assert histories(out) == {"ann": ["x", "z"], "bo": ["x"], "new": ["y", "x"]}
    assert report.filtered["value below min_value"] == 1
    values = pl.read_parquet(out / "events")
    assert values.filter(pl.col("value").is_not_null())["value"].to_list() == [5.0, 4.0]


DAY = 86_400
FIRST_DAY = int(datetime(2024, 5, 1, tzinfo=UTC).timestamp())
# Right, hours late or early, a day early (a wrong time zone), years late (1970), far ahead.
SKEWS = st.sampled_from([0, 0, 0, -3_600, 7_200, -DAY, -FIRST_DAY, 400 * DAY])
EVENT = st.tuples(
    st.sampled_from(["u1", "u2", "u3", "u4"]),
    st.sampled_from(["i1", "i2", "i3", "i4", "i5"]),
    st.integers(FIRST_DAY, FIRST_DAY + 20 * DAY),
    SKEWS,
)
# A right clock's events on each day, so many that whatever else comes can be split by time.
STEADY = [
    (f"u{1 + event % 4}", f"i{1 + event % 5}", FIRST_DAY + event * DAY // 8, 0)
    for event in range(160)
]
KINDS = st.sampled_from([SplitConfig(), SplitConfig(kind="global_time")])


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.lists(EVENT, min_size=1, max_size=20), splits=KINDS)
def test_no_user_is_trained_on_what_came_after_a_held_out_event(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str, int, int]],
    splits: SplitConfig,
) -> None:
    tmp_path = tmp_path_factory.mktemp("skew")
    stamped = [(user, item, time + skew) for user, item, time, skew in STEADY + rows]
    lenient = FilterConfig(max_bad_share=1.0)
    out, report = build_artefact(tmp_path, events_of(stamped), filters=lenient, splits=splits)
    future = sum(time > NOW.timestamp() for _, _, time in stamped)
    ancient = sum(time < DAY * 365 for _, _, time in stamped)
    assert sum(report.quarantined.values()) == future + ancient
    assert_nothing_later_is_trained_on(out)
    times, offsets, ends = (
        np.load(out / f"sequences/given/{name}.npy")
        for name in ("times", "offsets", "validation_end")
    )
    assert times.max() <= NOW.timestamp()
    if splits.kind == "global_time":
        first_test = datetime.fromisoformat(str(report.test_from)).timestamp()
        trained = [times[b:e] for b, e in zip(offsets[:-1], ends, strict=True)]
        assert all((own < first_test).all() for own in trained), "for all users at once"
