import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from recsys.data.batch import Jagged
from recsys.data.top_k import TopK
from recsys.fitting.blend import SourceLists
from recsys.retrieval.blend.config import BlendConfig
from tests.benchmarks.recipes.run import LEDGER, RunSettings
from tests.benchmarks.reproduction.cold_blend import equally
from tests.benchmarks.reproduction.cold_run import run_cold
from tests.benchmarks.reproduction.cold_start import (
    ColdStartConfig,
    appended_codes,
    cold_world,
    draw_cold,
    with_best_warm,
)

SETTINGS = RunSettings(order="given", seed=3, device="cpu")
TENTH = ColdStartConfig(cold_share=0.1, num_warm=2)


@pytest.fixture(scope="module")
def world(small_world):
    return cold_world(small_world, "given", 3, TENTH)


@pytest.fixture(scope="module")
def finished(small_world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cold")
    return folder, run_cold(small_world, folder, SETTINGS, TENTH)


def test_cold_items_are_drawn_once_without_overlap():
    events = np.arange(1, 41).repeat(2)
    drawn = draw_cold(events, 41, 0.1, 0)
    assert len(drawn["validation"]) == len(drawn["test"]) == 4
    assert not set(drawn["validation"]) & set(drawn["test"])
    again = draw_cold(events, 41, 0.1, 0)
    assert all((drawn[split] == again[split]).all() for split in drawn)


def test_a_catalogue_too_small_for_cold_items_is_refused():
    with pytest.raises(ValueError, match="2 items with events"):
        draw_cold(np.array([1, 2, 2]), 3, 0.45, 0)


def test_training_never_sees_a_cold_item_and_every_cold_event_is_a_target(small_world, world):
    warm_rows = world.warm.num_item_rows
    assert world.warm.order("given").item_rows.max() < warm_rows
    cold = torch.stack(list(world.cold.values()))
    assert not cold[:, :warm_rows].any()
    assert cold[:, warm_rows:].sum(0).eq(1).all()

    # Rows moved, but content is the item's own and tells which it was.
    same = world.grown.catalogue.content[:, None] == small_world.catalogue.content[None]
    old = same.all(2).long().argmax(1)
    is_cold = np.isin(np.arange(len(old)), old[world.cold["test"]])
    is_warm = np.isin(np.arange(len(old)), old[:warm_rows])
    sequences, expected = small_world.order("given"), 0
    for begin, end in zip(sequences.offsets[:-1], sequences.offsets[1:], strict=True):
        events = sequences.item_rows[begin:end]
        expected += int((is_cold[events] & (np.cumsum(is_warm[events]) > 0)).sum())
    assert len(world.users["test"]) == expected > 0


def test_a_query_is_the_warm_events_before_its_cold_one(world):
    asked = world.queried["test"].sequences
    ends = asked.offsets[1:] - 1
    assert world.cold["test"][asked.item_rows[ends]].all()
    history = np.delete(asked.item_rows, ends)
    assert history.max() < world.warm.num_item_rows
    times = asked.times
    for begin, end in zip(asked.offsets[:-1], asked.offsets[1:], strict=True):
        assert (np.diff(times[begin:end]) > 0).all()


def test_appended_ids_leave_those_of_warm_items_alone(world):
    num_warm = world.warm.num_item_rows
    alone = appended_codes(world.warm.catalogue.content, num_warm, world.grown.codes, 3)
    torch.testing.assert_close(alone.codes, world.grown.codes.codes[:num_warm])
    assert (world.grown.codes.codes[num_warm:] >= 0).all()


def test_the_best_warm_items_of_a_list_are_its_first_that_are_not_cold():
    cold = torch.tensor([False, True, False, False, True])
    lists = torch.tensor([[1, 2, 4, 3, -1], [4, 1, -1, -1, -1]])
    best = with_best_warm(cold, lists, 1)
    assert best.values.tolist() == [2]
    assert best.offsets.tolist() == [0, 1, 1]


def test_content_finds_cold_items_and_an_oracle_helps(finished):
    rows = finished[1]["rows"]
    for name in ("content_similarity", "sequence", "generative"):
        values = rows[name]["test"]
        alone, oracle = values["cold only/recall@5"], values["oracle-cold/recall@5"]
        assert alone >= oracle >= values["blind/recall@5"]
    # 8 items of 8 clusters: one or two of them are of the user's own.
    assert rows["content_similarity"]["test"]["cold only/recall@5"] > 0.9
    assert rows["blend"]["test"]["oracle-cold/recall@10"] > 0.9


def test_what_knows_ids_alone_finds_no_cold_item(finished):
    values = finished[1]["rows"]["item_to_item"]["test"]
    assert values["blind/recall@50"] == 0
    assert values["blind warm/recall@10"] > 0.5


def test_odds_of_new_items_move_what_is_served_and_nothing_else(small_world, tmp_path):
    """Met no event, a cold item has content alone to speak for it; odds lift it above the rest."""
    found = {}
    for odds in (1.0, 1e9):
        recipe = replace(
            small_world.recipe,
            rows=("blend_fast",),
            sources=("item_to_item", "content_similarity"),
            blend=BlendConfig(new_item_odds=odds),
        )
        world = replace(small_world, recipe=recipe)
        result = run_cold(world, tmp_path / str(odds), SETTINGS, TENTH)
        found[odds] = result["rows"]["blend_fast"]["test"]
    for name in (
        "oracle-cold/recall@10",
        "oracle-cold warm/mrr@10",
        "blind/mrr@10",
        "blind warm/mrr@10",
    ):
        assert found[1.0][name] == found[1e9][name]
    # Ahead of all others, cold items are ranked as if they were alone, and warm ones pay.
    assert found[1e9]["with counts/mrr@10"] > 2 * found[1.0]["with counts/mrr@10"]
    assert found[1e9]["with counts/mrr@10"] > 0.6 * found[1e9]["cold only/mrr@10"]
    assert found[1e9]["with counts warm/mrr@10"] < 0.5 * found[1.0]["with counts warm/mrr@10"]


def test_weights_are_learned_on_as_many_cold_queries_as_warm_ones():
    lists = {"content_similarity": TopK(torch.rand(6, 2), torch.arange(1, 13).view(6, 2))}
    places = torch.arange(6)
    many = SourceLists(lists, Jagged.one_each(places), places, places % 2, torch.ones(13))
    few, same = equally([many.of(places[:2], ("content_similarity",)), many])
    assert few.targets.values.tolist() == [0, 1]
    assert same.targets.values.tolist() == [0, 5]
    assert same.lists["content_similarity"].item_rows.tolist() == [[1, 2], [11, 12]]


def test_a_cold_run_is_noted_and_not_run_twice(small_world, finished):
    folder, result = finished
    assert run_cold(small_world, folder, SETTINGS, TENTH) == result
    (look,) = (folder / LEDGER).read_text().splitlines()
    assert json.loads(look)["seed"] == 3
