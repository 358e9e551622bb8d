"""Champion and challenger answer the same queries before one is published."""

import json
from pathlib import Path

import polars as pl
import pytest

from pipelines.config.operation import ReleaseConfig
from pipelines.inputs.tensors import read_inputs
from pipelines.publishing.same_queries import RunEvents, build_answers, same_queries
from serving.recommend import Recommender
from serving.schemas import Context, Request
from tests.integration.copies import Recsys
from tests.recsys.testing.synthetic import World

FEW = ("--set", "release.min_compared=20")
QUICK = ("--set", "generative_training.enabled=false")


def verdict_on_same_queries(workspace: Path) -> dict[str, object]:
    document = json.loads((workspace / "release/release.json").read_text())
    (found,) = [one for one in document["verdicts"] if one["name"].endswith("same queries")]
    return found


def add_newer_events(path: Path, world: World) -> None:
    """Let every user take one item more, a day after all others."""
    events = pl.read_csv(path)
    following = {user: min(items) for user, items in world.answers.items()}
    newest = pl.DataFrame(
        {"user_id": list(following), "item_id": list(following.values())}
    ).with_columns(
        event_time=pl.lit("2025-01-01T00:00:00Z"), event_type=pl.lit(events["event_type"][0])
    )
    pl.concat([events, newest.select(events.columns)]).write_csv(path)


def test_newer_events_are_what_the_champions_bundle_is_queried_for(
    released: tuple[Path, Path], world: World, recsys: Recsys
) -> None:
    config, workspace = released
    bundles = workspace / "bundles"
    before = Recommender.load((bundles / "current").resolve())
    add_newer_events(config.parent / "events.csv", world)
    keep = ("--set", "release.promote=false")
    result = recsys("run", config, "--set", f"workspace={workspace}", "-q", *FEW, *QUICK, *keep)
    assert result.exit_code == 0, result.output
    verdict = verdict_on_same_queries(workspace)
    assert f"{len(world.users)} users, the champion by its bundle on newer events" in str(
        verdict["reason"]
    )

    features = workspace / "build_features"
    inputs = read_inputs(features, workspace / "embed_items")
    run = RunEvents.load(features, inputs.sequences)
    table = pl.read_parquet(workspace / "evaluate" / "per_user_given_test.parquet")
    answers = build_answers(table, "blend", run)
    found = same_queries(
        answers, run, bundles, before.bundle.version, config=ReleaseConfig(), seed=0
    )
    assert found.by_bundle
    # Of ten events up to the release the run's training part has nine: one is validation's now.
    assert found.ahead == pytest.approx(0.1)
    assert not found.alike
    few = ReleaseConfig(max_queried=7)
    drawn = same_queries(answers, run, bundles, before.bundle.version, config=few, seed=0)
    assert len(drawn) == 7
    assert found.times is not None
    for place, (user_id, item_id) in enumerate(answers.select("user_id", "item_id").iter_rows()):
        # The champion knows all of the history, so this is what its server would have shown.
        context = Context(unix_time=int(found.times[place]))
        listed = before.answer(Request(user_id=user_id, k=50, context=context)).items
        ids = [item.item_id for item in listed]
        rank = ids.index(item_id) + 1 if item_id in ids else 0
        assert int(found.champion.values[place]) == rank
