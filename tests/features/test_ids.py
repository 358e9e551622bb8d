"""Ids are opaque texts, which come out of every file as they went in; users' ids have rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from features.build import FeaturesConfig, FeaturesReport, build_features
from features.people import count_rows
from features.schema import FilterConfig, SourceConfig, UserIdRows
from features.user_ids import UserActivity, assigned, read_owners, renewed
from recsys.fitting.grown import without_rows
from tests.features.test_build import NOW, START, build, events_of
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


DAY = 86_400


def activity(counts: list[int], days: list[int] | None = None) -> UserActivity:
    """Users of rows 1, 2, ...; row 0 is nobody's."""
    times = None if days is None else np.array([0, *days]) * DAY
    return UserActivity(np.array([0, *counts]), times)


def test_the_most_active_have_rows_and_others_are_unknown() -> None:
    found = assigned(UserIdRows(rows=2, min_events=3), activity([3, 9, 2, 5]))
    assert found.features["id"].tolist() == [0, 0, 1, 0, 2]
    assert found.owners.tolist() == [0, 2, 4]
    assert found.counts["without room"] == 1
    assert found.cardinality == {"id": 3}


def test_rows_stay_with_their_users_and_expired_ones_are_given_to_others() -> None:
    settings = UserIdRows(rows=2, min_events=2, ttl_days=10)
    first = assigned(settings, activity([5, 4, 1], [1, 1, 1]))
    assert first.owners.tolist() == [0, 1, 2]
    # User 1 came back on day 20, user 2 did not, user 3 has enough events.
    later = assigned(settings, activity([6, 4, 7], [20, 1, 20]), first.owners)
    assert later.owners.tolist() == [0, 1, 3]
    assert later.features["id"].tolist() == [0, 1, 0, 2]
    assert later.counts["evicted"] == 1
    assert renewed(later.owners, first.owners).tolist() == [2]


def built(folder: Path, days: int, **more: object) -> FeaturesReport:
    users = ["often", "seldom", "later"]
    first = {"often": 0, "seldom": 0, "later": 6}
    rows = [
        (user, f"i{number % 7}", START + DAY * day + number)
        for user in users
        for day in range(first[user], days if user != "seldom" else 2)
        for number in range(3)
    ]
    settings = UserIdRows(rows=2, min_events=2, ttl_days=4)
    _, report = build(folder, events_of(rows), name=f"out{days}", user_ids=settings, **more)
    return report


def test_builds_hand_rows_on_and_continued_weights_forget_the_evicted(tmp_path: Path) -> None:
    built(tmp_path, 3)
    before = read_owners(tmp_path / "out3")
    report = built(tmp_path, 12, previous=tmp_path / "out3")
    now = read_owners(tmp_path / "out12")
    assert report.user_ids["evicted"] == 1
    ids = ["", *pl.read_parquet(tmp_path / "out12/vocabularies/users.parquet")["id"].to_list()]
    assert sorted(ids[owner] for owner in now[1:]) == ["later", "often"]
    rows = renewed(now, before)
    name = "query_tower.features.collection.embedding_bags.user_id.weight"
    weights = without_rows({name: torch.ones(3, 4), "other": torch.ones(3, 4)}, "id", rows)
    kept = [row for row in range(3) if row not in rows]
    assert (weights[name][torch.from_numpy(rows)] == 0).all()
    assert (weights[name][kept] == 1).all()
    assert (weights["other"] == 1).all()


def test_what_would_lose_or_round_an_id_is_refused(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user_id": [1.0, 2.0], "item_id": ["a", "b"], "event_time": [START] * 2})
    before = assigned(UserIdRows(rows=2), activity([9]))
    assert_refused(
        {
            r"column user_id is Float64.*floats lose long ids": lambda: build(tmp_path, frame),
            "restore the setting, or train again": lambda: assigned(
                UserIdRows(rows=3), activity([9]), before.owners
            ),
            "ttl_days needs event_time": lambda: assigned(
                UserIdRows(rows=3, ttl_days=1), activity([9])
            ),
            r"features\.user_ids\.rows": lambda: UserIdRows(rows=-1),
            r"features\.user_ids\.min_events": lambda: UserIdRows(rows=1, min_events=0),
            r"features\.user_ids\.ttl_days": lambda: UserIdRows(rows=1, ttl_days=0),
        }
    )
