import numpy as np
import pytest
import torch

from tests.benchmarks.recipes.run import RunSettings
from tests.benchmarks.reproduction.cold_run import run_cold
from tests.benchmarks.reproduction.cold_start import ColdStartConfig, cold_world, draw_cold

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


@pytest.mark.slow
def test_content_finds_cold_items_and_an_oracle_helps(finished):
    rows = finished[1]["rows"]
    for name in ("content_similarity", "sequence", "generative"):
        values = rows[name]["test"]
        alone, oracle = values["cold only/recall@5"], values["oracle-cold/recall@5"]
        assert alone >= oracle >= values["blind/recall@5"]
    # 8 items of 8 clusters: one or two of them are of the user's own.
    assert rows["content_similarity"]["test"]["cold only/recall@5"] > 0.9
    assert rows["blend"]["test"]["oracle-cold/recall@10"] > 0.9
