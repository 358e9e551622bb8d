"""Ids are opaque texts, which come out of every file as they went in."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from features.build import FeaturesConfig, build_features
from features.people import count_rows
from features.schema import FilterConfig, SourceConfig
from tests.features.test_build import NOW, START, build
from tests.recsys.testing.refusals import assert_refused

NUMBERS = [-(2**63), 2**63 - 1, 2**53, 2**53 + 1, -1, 0, 7, 4711]
IDS = [
    *map(str, NUMBERS),
    *(str(2**64 - 1), "007", " 7", "7 ", "+7", "7.0", "7e0", "-0", "0x7", "-", "--all"),
    *("Ann", "ann", "NAN", "Nan", "null", "None", "true", "NA", "inf"),
    *("a,b", 'a"b', "a;b|c\td", "a/b", "..", "\u00e4", "a\u0308", "\u65e5\u672c", "a\u00a0b"),
    "\U0001f600" * 512,
]


def write(path: Path, ids: list[object]) -> None:
    """Write two events of each id, as user and as item."""
    rows = [
        {"user_id": one, "item_id": one, "event_time": START + place}
        for place, one in enumerate([*ids, *ids])
    ]
    if path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    elif path.suffix == ".parquet":
        pl.DataFrame(rows).write_parquet(path)
    else:
        gzipped = "gzip" if path.suffix == ".gz" else "uncompressed"
        pl.DataFrame(rows).write_csv(path, compression=gzipped)


def vocabulary(out: Path, name: str) -> list[str]:
    return pl.read_parquet(out / f"vocabularies/{name}.parquet")["id"].to_list()


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet", "jsonl"])
@pytest.mark.parametrize("ids", [IDS, NUMBERS], ids=["texts", "integers"])
def test_ids_of_any_kind_are_kept_in_every_format(tmp_path: Path, ids: list, ending: str) -> None:
    path, tables = tmp_path / f"events.{ending}", tmp_path / "tables.csv"
    write(path, ids)
    pl.DataFrame({"user_id": map(str, ids), "country": "AT"}).write_csv(tables)
    config = FeaturesConfig(
        events=SourceConfig(paths=(path,)),
        items=SourceConfig(paths=(tables,), columns={"item_id": "user_id"}),
        users=SourceConfig(paths=(tables,)),
        filters=FilterConfig(max_bad_share=0),
        now=NOW,
    )
    report = build_features(config, tmp_path / "out")
    assert (report.events, report.quarantined) == (2 * len(ids), {})
    assert (report.items_without_catalogue, report.quarantined_in_tables) == (0, {})
    for name in ("users", "items"):
        assert vocabulary(tmp_path / "out", name) == sorted(map(str, ids))
    # A number and its text are one id: the tables, which are CSV, know every one.
    users = pl.read_parquet(tmp_path / "out/users.parquet")
    assert users["country"].to_list() == ["AT"] * len(ids)
    gone = [str(one) for one in ids][::2]
    assert count_rows(path, config.events, gone) == 2 * len(gone)
    assert count_rows(path, config.events, ["nobody"]) == 0


def test_what_would_lose_or_round_an_id_is_refused(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user_id": [1.0, 2.0], "item_id": ["a", "b"], "event_time": [START] * 2})
    assert_refused(
        {r"column user_id is Float64.*floats lose long ids": lambda: build(tmp_path, frame)}
    )
