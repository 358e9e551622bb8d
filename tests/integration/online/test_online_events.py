"""What visitors of a server did is in the next release, by one line of configuration."""

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl

from serving.online.events import Event
from serving.online.sqlite_store import SqliteStore
from serving.recommend import Recommender
from tests.integration.copies import Recsys
from tests.recsys.testing.synthetic import World

FAST = """
preset = "shop"
auto.enabled = false

[data]
events = "events.csv"
items = "items.csv"
{line}

[content]
encoder = "none"

[semantic_ids]
method = "none"

[two_tower_training]
enabled = false

[evaluation]
ks = [5, 10]

[search]
enabled = false

[release]
min_gain_over_popularity = -1
max_drop_from_champion = 1

[tracking]
enabled = false
"""
NEW = "visitor 7"


def history(workspace: Path, user_id: str) -> list[str]:
    """Item ids of a user in the published bundle."""
    bundle = Recommender.load(workspace / "bundles/current").bundle
    row = bundle.users.row_of(user_id)
    items = [] if row is None else bundle.users.history(row).tolist()
    return [bundle.catalogue.item_ids[item] for item in items]


def events_of(user_id: str, items: list[str], kind: str, at_ms: int) -> list[Event]:
    return [
        Event(
            event_id=f"{user_id}-{kind}-{at_ms + place}",
            user_id=user_id,
            item_id=item,
            event_type=kind,
            time_ms=at_ms + 1_000 * place,
            received_ms=at_ms + 1_000 * place,
        )
        for place, item in enumerate(items)
    ]


def test_clicks_are_in_the_histories_of_the_next_release(
    world: World, write_world: Callable[..., Path], recsys: Recsys, tmp_path: Path
) -> None:
    config = write_world(tmp_path, world, FAST.format(line=""))
    workspace = tmp_path / "run"
    result = recsys("run", config, "--set", f"workspace={workspace}", "-q")
    assert result.exit_code == 0, result.output
    known = world.user_ids.tolist()[0]
    before = history(workspace, known)
    assert history(workspace, NEW) == []

    store = SqliteStore(tmp_path / "run" / "online")
    now_ms, items = 1_760_000_000_000, list(world.catalogue.item_ids)
    store.add_events(
        [
            *events_of(NEW, items[:3], "click", now_ms),
            *events_of(known, items[3:5], "view", now_ms),
            *events_of(known, items[5:9], "impression", now_ms),
            *events_of(known, ["never heard of"], "purchase", now_ms),
        ]
    )
    line = 'online_events = "sqlite:run/online"'
    config.write_text(FAST.format(line=line))
    result = recsys("run", config, "--set", f"workspace={workspace}", "-q")
    assert result.exit_code == 0, result.output
    assert history(workspace, NEW) == items[:3]
    assert history(workspace, known) == [*before, *items[3:5]]
    report = json.loads((workspace / "build_features" / "report.json").read_text())
    assert list(report["quarantined"].values()) == [1]
    assert report["filtered"]["event_type not selected"] == 4

    # Who is forgotten is not in the release after that.
    store.forget(NEW, now_ms + 1_000_000)
    result = recsys("run", config, "--set", f"workspace={workspace}", "-q")
    assert result.exit_code == 0, result.output
    assert history(workspace, NEW) == []
    assert history(workspace, known) == [*before, *items[3:5]]
    files = (workspace / "online_events").glob("date=*/*")
    rows = pl.concat(pl.read_parquet(path, hive_partitioning=False) for path in files)
    assert NEW not in rows["user_id"]


def test_a_folder_or_store_that_is_not_there_is_named(
    world: World, write_world: Callable[..., Path], recsys: Recsys, tmp_path: Path
) -> None:
    for line, expected in (
        ('online_events = "nowhere"', "there is no folder"),
        ('online_events = "sqlite:nowhere"', "there is no online store in"),
    ):
        config = write_world(tmp_path, world, FAST.format(line=line))
        result = recsys("run", config, "--set", f"workspace={tmp_path / 'run'}", "-q")
        assert result.exit_code == 2
        assert expected in result.output.replace("\n", " ")
