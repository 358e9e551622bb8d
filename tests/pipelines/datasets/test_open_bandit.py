import gzip
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from pipelines.datasets.fetch import fetch
from pipelines.datasets.open_bandit import CAMPAIGNS, POLICIES, open_bandit
from pipelines.datasets.registry import DATASETS

HEADER = (
    ",timestamp,item_id,position,click,propensity_score,"
    "user_feature_0,user_feature_1,user_feature_2,user_feature_3,user-item_affinity_0"
)
ROWS = """
0,2019-11-24 00:01:03.979311+00:00,1,2,0,0.25,a,b,c,d,0.0
1,2019-11-24 00:01:45.406608+00:00,0,1,1,0.5,a,b,c,e,1.0
"""
ITEMS = """,item_id,item_feature_0,item_feature_1,item_feature_2,item_feature_3
0,0,-0.5,x,y,z
1,1,0.75,x,y,w
"""


def write_sample(folder: Path) -> None:
    for policy in POLICIES:
        for campaign in CAMPAIGNS:
            with gzip.open(folder / f"{policy}_{campaign}.csv.gz", "wt") as file:
                file.write(HEADER + ROWS)
            (folder / f"{policy}_{campaign}_item_context.csv").write_text(ITEMS)


def test_official_columns_become_impressions_and_clicks(tmp_path: Path) -> None:
    write_sample(tmp_path)
    tables = open_bandit(tmp_path)
    assert dict(tables.events["event_type"].value_counts().rows()) == {"impression": 12, "click": 6}
    first = tables.events.row(0, named=True)
    assert first == {
        "user_id": "a-b-c-d",
        "item_id": "all-1",
        "event_time": datetime(2019, 11, 24, 0, 1, 3, 979311, tzinfo=UTC),
        "domain": "all",
        "request_id": "random-all-0",
        "slot": 1,
        "propensity": 0.25,
        "event_type": "impression",
    }
    click = tables.events.filter(pl.col("event_type") == "click").row(5, named=True)
    assert (click["request_id"], click["slot"]) == ("bts-women-1", 0)
    assert tables.items.height == 6
    assert tables.items["categories"][1].to_list() == [
        "item_feature_1 x", "item_feature_2 y", "item_feature_3 w"
    ]  # fmt: skip
    assert tables.users is not None
    assert tables.users["user_id"].to_list() == ["a-b-c-d", "a-b-c-e"]


@pytest.mark.mirror
@pytest.mark.usefixtures("real_mirror")
def test_the_sample_has_its_published_counts() -> None:
    path = fetch(DATASETS["open-bandit"]).table("events")
    assert path is not None
    events = pl.read_parquet(path)
    assert dict(events["event_type"].value_counts().rows()) == {"impression": 60_000, "click": 287}
    assert events["slot"].unique().sort().to_list() == [0, 1, 2]
    assert events.select(pl.col("propensity").is_between(0, 1, closed="right").all()).item()
