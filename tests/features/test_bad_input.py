"""Whatever is wrong with the files: a sentence that names it, or the quarantine."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from features.build import (
    FeaturesConfig,
    FeaturesReport,
    FilterConfig,
    SourceConfig,
    SplitConfig,
    build_features,
)
from tests.features.corrupt import corrupted
from tests.features.test_build import NOW, START
from tests.recsys.testing.refusals import assert_refused, refusal

LENIENT = FilterConfig(max_bad_share=1.0)


def good_events(num: int = 12) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "user_id": [f"u{n % 3}" for n in range(num)],
            "item_id": [f"i{n % 4}" for n in range(num)],
            "event_time": [START + n for n in range(num)],
        }
    )


def build(
    path: Path, out: Path, filters: FilterConfig = LENIENT, **source: object
) -> FeaturesReport:
    events = SourceConfig(paths=(path,), **source)  # type: ignore[arg-type]
    return build_features(FeaturesConfig(events=events, filters=filters, now=NOW), out)


def quarantined(out: Path) -> list[tuple[int, str]]:
    return pl.read_parquet(out / "quarantine/*.parquet").select("row", "reason").rows()


def refused(path: Path, out: Path, *texts: str, **source: object) -> None:
    """Assert that the build stops with a ValueError that holds every text."""
    with pytest.raises(ValueError, match=r".") as caught:
        build(path, out, **source)
    for text in texts:
        assert text in str(caught.value)


def test_missing_column_offers_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    good_events().rename({"item_id": "Item_Id"}).write_csv(path)
    refused(path, tmp_path / "out", str(path), "no column 'item_id'", "nearest: 'Item_Id'")
    columns = {"item_id": "item"}
    refused(path, tmp_path / "out", "no column 'item'", "nearest: 'Item_Id'", columns=columns)
    good_events().drop("event_time").write_csv(path)
    refused(path, tmp_path / "out", str(path), "neither event_time nor sequence_index")


def test_wrong_types_of_whole_columns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    for column, values, text in (
        ("item_id", pl.Float64, "must be text or integers"),
        ("user_id", pl.List(pl.String), "must be text or integers"),
        ("event_time", pl.Boolean, "column event_time is Boolean"),
        ("value", pl.Boolean, "column value is Boolean; it must be a number"),
    ):
        blank = pl.lit(None, dtype=values).alias(column)
        good_events().with_columns(blank).write_parquet(path)
        refused(path, tmp_path / "out", str(path), f"column {column}", text)


# Polars 2.1 ends the whole process on rare bytes, and this reads in the test's own, so the examples
# are the same in each run. Others each time: tests/pipelines/partitions/test_reading.py.
def test_corrupt_parquet_is_a_sentence_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    good_events(200).write_parquet(path)
    content = path.read_bytes()
    # Polars 2.1 ends the whole process on rare bytes, and this reads in the test's own, so seeds
    # are the same in each run. Others each time: tests/pipelines/partitions/test_reading.py.
    for seed in range(40):
        path.write_bytes(corrupted(content, seed))
        made: list[FeaturesReport] = []
        said = refusal(lambda made=made, out=tmp_path / str(seed): made.append(build(path, out)))
        places = ("no event is left", "events are of one", str(path))
        assert made or any(text in said for text in places), said
        for report in made:
            lost = report.duplicates + sum(report.quarantined.values())
            assert report.rows_in == report.events + lost + report.over_user_cap


def test_poisoned_rows_are_kept_with_their_reasons(tmp_path: Path) -> None:
    future = int((NOW + timedelta(days=2)).timestamp())
    bad = [
        ("", "i1", START, 1.0, "user_id is missing"),
        (None, "i1", START, 1.0, "user_id is missing"),
        ("u\0", "i1", START, 1.0, "user_id holds a NUL character"),
        ("\u00e4" * 513, "i1", START, 1.0, "user_id is longer than 512 characters"),
        ("u1", "NaN", START, 1.0, "item_id is not a number (NaN)"),
        ("u1", "i1", None, 1.0, "event_time is missing"),
        ("u1", "i1", 0, 1.0, "event_time is too early"),
        ("u1", "i1", -(2**62), 1.0, "event_time is unreadable"),
        ("u1", "i1", future, 1.0, "event_time is in the future"),
        ("u1", "i1", START, float("nan"), "value is not finite"),
        ("u1", "i1", START, float("inf"), "value is not finite"),
    ]
    good = good_events().with_columns(value=pl.lit(None, pl.Float64))
    spoilt = pl.DataFrame([row[:4] for row in bad], good.columns, orient="row")
    path, out = tmp_path / "events.parquet", tmp_path / "out"
    pl.concat([good, spoilt, good.head(3)]).write_parquet(path)
    report = build(path, out)
    assert quarantined(out) == [(12 + place, row[4]) for place, row in enumerate(bad)]
    assert (report.rows_in, report.duplicates, report.events) == (26, 3, 12)
    assert json.loads((out / "report.json").read_text())["quarantined"] == report.quarantined
    first = pl.read_parquet(out / "quarantine/*.parquet").row(0, named=True)
    assert first["file"] == str(path)
    assert json.loads(first["raw"]) == dict(zip(good.columns, ("", "i1", START, 1.0), strict=True))


def test_bad_texts_in_csv_cost_their_rows_only(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    lines = [f"u{n % 2},i{n % 3},{START + n},3" for n in range(10)]
    lines[2:2] = ["u1,i1,yesterday,3", "u1,i1,1700000000,good", "u1,,1700000000,3"]
    path.write_text("user_id,item_id,event_time,value\n" + "\n".join(lines) + "\n")
    report = build(path, tmp_path / "out")
    assert quarantined(tmp_path / "out") == [
        (2, "event_time is unreadable"),
        (3, "value is not a number"),
        (4, "item_id is missing"),
    ]
    assert report.events == 10


def test_too_many_bad_rows_stop_the_run_with_counts(tmp_path: Path) -> None:
    bad = good_events(4).with_columns(event_time=pl.lit(0, pl.Int64))
    pl.concat([good_events(8), bad]).write_parquet(tmp_path / "events.parquet")
    filters = FilterConfig(max_bad_share=0.25)
    with pytest.raises(ValueError, match="4 of 12 event rows") as caught:
        build(tmp_path / "events.parquet", tmp_path / "out", filters)
    assert "4 x event_time is too early" in str(caught.value)
    assert "events.parquet, row 8" in str(caught.value)


def test_times_may_be_written_in_many_ways(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    cases = (
        ("1700000000", "s", "UTC"),
        ("1700000000.0", "s", "UTC"),
        ("1700000000000", "ms", "UTC"),
        ("2023-11-14T22:13:20Z", "s", "UTC"),
        ("2023-11-14 22:13:20", "s", "UTC"),
        ("2023-11-14T23:13:20+01:00", "s", "UTC"),
        ("2023-11-14T22:13:20.000Z", "s", "UTC"),
        ("2023-11-14 23:13:20", "s", "Europe/Berlin"),
    )
    for number, (text, unit, zone) in enumerate(cases):
        path.write_text(f"user_id,item_id,event_time\na,x,{text}\nb,y,{text}\n")
        report = build(path, tmp_path / str(number), time_unit=unit, time_zone=zone)
        assert report.first_time == report.last_time == "2023-11-14T22:13:20+00:00", text


def test_hour_that_the_clock_shows_twice_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text(
        "user_id,item_id,event_time\n"
        "a,x,2023-10-29 02:30:00\n"  # Berlin puts its clocks back from 3 to 2
        "a,x,2023-03-26 02:30:00\n"  # and forward from 2 to 3
        "a,x,2023-10-29 03:30:00\nb,y,2023-10-29 01:30:00\n"
    )
    report = build(path, tmp_path / "out", time_zone="Europe/Berlin")
    assert report.quarantined == {"event_time is unreadable": 2}
    assert report.first_time == "2023-10-28T23:30:00+00:00"
    assert report.last_time == "2023-10-29T02:30:00+00:00"


def test_configuration_out_of_range_is_refused() -> None:
    source = SourceConfig(paths=(Path("e"),))
    assert_refused(
        {
            "max_bad_share must be in": lambda: FilterConfig(max_bad_share=2),
            "min_user_events must be >= 0": lambda: FilterConfig(min_user_events=-1),
            "max_user_events must be >= 1": lambda: FilterConfig(max_user_events=0),
            r"\['view'\] are in event_types and in shown_types": lambda: FilterConfig(
                event_types=("view", "buy"), shown_types=("view",)
            ),
            r"\['dislike'\] are in online_types": lambda: FilterConfig(online_types=("dislike",)),
            "add up to less than 1": lambda: SplitConfig(test_share=1.0),
            "at least one file": lambda: SourceConfig(paths=()),
            "Mars/Olympus": lambda: replace(source, time_zone="Mars/Olympus"),
            "did you mean 'day_of_week'": lambda: FeaturesConfig(
                events=source, context_features=("day_of_wek",)
            ),
        }
    )


HEADER = "user_id,item_id,event_time\n"
FILES = {
    "empty.csv": ("", "is empty (0 bytes)"),
    "header.csv": (HEADER, "no data rows"),
    "events.xlsx": ("x", "'.xlsx'"),
    "long.csv": (f"{HEADER}u,i,1700000000\nu,i,j,17\n", "line 3 has 4 fields, the header 3"),
    "windows.csv": (f"{HEADER}K\udce4the,i,1700000000\n", "iconv -f CP1252"),  # 0xe4, no UTF-8
    "broken.jsonl": ('{"user_id": "u", "item_id": "i", "event_time": 17}\n{"user_id": \n', ""),
}


def test_a_file_that_holds_no_events_is_refused_by_name(tmp_path: Path) -> None:
    for name, (text, says) in FILES.items():
        (tmp_path / name).write_text(text, errors="surrogateescape")
        refused(tmp_path / name, tmp_path / "out", name, says)


def test_events_that_leave_nothing_to_learn_from_are_refused(tmp_path: Path) -> None:
    path, other, out = tmp_path / "events.parquet", tmp_path / "b.parquet", tmp_path / "out"
    good_events().write_parquet(path)
    good_events().rename({"event_time": "sequence_index"}).write_parquet(other)
    refused(tmp_path / "event.parquet", out, "no file", "did you mean", "events.parquet")

    def building(*paths: Path, **changes: Any) -> Callable[[], object]:
        events = SourceConfig(paths=paths or (path,))
        return lambda: build_features(FeaturesConfig(events=events, now=NOW, **changes), out)

    assert_refused(
        {
            "no event is left of 12": building(filters=FilterConfig(min_user_events=100)),
            "needs a column value": building(filters=FilterConfig(min_value=3)),
            "span 1 day": building(splits=SplitConfig(kind="global_time")),
            "b.parquet has no column event_time but .*events": building(path, other),
        }
    )
    good_events().with_columns(user_id=pl.lit("me")).write_parquet(path)
    refused(path, out, "all 12 events are of one user ('me')")
