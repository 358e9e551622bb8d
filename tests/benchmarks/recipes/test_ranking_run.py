import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from recsys.data.top_k import TopK
from recsys.fitting.queries import rank_queries
from recsys.retrieval.blend.learned import LearnedBlend
from tests.benchmarks.recipes.fit import Experiment
from tests.benchmarks.recipes.recipe import REFITTED, Recipe
from tests.benchmarks.recipes.run import LEDGER, RunSettings, load_ranked
from tests.benchmarks.reproduction.fitters import FITTERS
from tests.benchmarks.reproduction.ranking_run import run_once

SETTINGS = RunSettings(order="given", seed=0, device="cpu")
SOURCES = ("item_to_item", "content_similarity", "sequence")
STRICT = (*SOURCES, "blend_fast")


@pytest.fixture(scope="module")
def world(small_world):
    recipe = replace(small_world.recipe, rows=(*STRICT, *REFITTED), sources=SOURCES)
    return replace(small_world, recipe=recipe)


@pytest.fixture(scope="module")
def finished(world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("refitted")
    return folder, run_once(world, folder, SETTINGS)


def test_refitted_rows_are_off_unless_named_and_need_what_they_are_made_of():
    assert not set(Recipe().rows) & set(REFITTED)
    assert Recipe().refitted() == []
    alone = Recipe(
        rows=("sequence_refit",), sources=("content_similarity", "sequence", "generative")
    )
    assert (alone.models(), alone.refitted()) == (["sequence"], ["sequence"])
    blend = replace(alone, rows=("blend_refit",))
    assert blend.models() == blend.refitted() == ["content_similarity", "sequence"]


def test_refitted_models_have_seen_the_validation_event_and_test_alone_is_measured(world, finished):
    folder, result = finished
    assert set(result["rows"]) == {*STRICT, *REFITTED}
    for row in REFITTED:
        assert "validation" not in result["rows"][row]
        assert result["rows"][row]["test"]["recall@10"] > 0.8

    sequences = world.order("given")
    moved = replace(sequences, train_end=sequences.validation_end)
    inputs = replace(world.inputs("given"), sequences=moved)
    own = Experiment(prepared=world, inputs=inputs, seed=0, device=torch.device("cpu"))
    model = FITTERS["item_to_item"](own)
    expected = rank_queries(model.source, own.queries("test"))
    path = folder / "given-0" / "item_to_item_refit.npz"
    found = load_ranked(path)["test"]
    torch.testing.assert_close(found.lists.item_rows, expected.lists.item_rows)
    before = load_ranked(path.with_name("item_to_item.npz"))["test"]
    assert not torch.equal(found.lists.scores, before.lists.scores)


def test_a_refit_takes_the_passes_that_validation_chose(world, finished):
    rows = finished[1]["rows"]
    chosen, again = rows["sequence"]["training"], rows["sequence_refit"]["training"]
    # One window a user before and after.
    assert again["num_steps"] == chosen["best_step"]
    assert again["best_metric"] is None


def test_refitted_lists_are_merged_by_the_weights_of_before(world, finished):
    folder = finished[0] / "given-0"
    blend = LearnedBlend.load(folder / "blend_fast")
    lists = {
        name: load_ranked(folder / f"{name}_refit.npz")["test"].lists for name in blend.sources
    }
    merged = blend.blend(lists, 10)
    kept = load_ranked(folder / "blend_refit.npz")["test"].lists
    assert torch.equal(TopK(*merged[:2]).item_rows, kept.item_rows[:, :10])


def test_strict_rows_are_what_they_are_without_refitted_ones(world, finished, tmp_path):
    alone = replace(world, recipe=replace(world.recipe, rows=STRICT))
    rows = run_once(alone, tmp_path, SETTINGS)["rows"]
    for name in STRICT:
        for split in ("validation", "test"):
            assert rows[name][split] == finished[1]["rows"][name][split]
    validation = replace(SETTINGS, splits=("validation",))
    assert set(run_once(world, tmp_path / "validation", validation)["rows"]) == set(STRICT)


def test_processes_that_share_a_run_give_what_one_gives(world, finished, tmp_path):
    for only in (
        ("item_to_item", "sequence"),
        ("sequence_refit",),
        ("content_similarity", "blend_fast"),
    ):
        run_once(world, tmp_path, replace(SETTINGS, only=only))
        assert not (tmp_path / "given-0" / "result.json").exists()
    result = run_once(world, tmp_path, SETTINGS)
    assert list(result["rows"]) == list(finished[1]["rows"])
    for name, row in result["rows"].items():
        assert row["test"] == finished[1]["rows"][name]["test"]
    looks = {
        json.dumps(json.loads(line), sort_keys=True)
        for line in (tmp_path / LEDGER).read_text().splitlines()
    }
    assert len(looks) == 1
    assert np.isfinite(result["seconds"])
