import json
from dataclasses import replace

import pytest

import tests.benchmarks.reproduction.ranking_run as run_module
from recsys.replay.experiment import FittedSource
from tests.benchmarks.recipes.run import LEDGER, RunSettings
from tests.benchmarks.reproduction.fitters import FITTERS
from tests.benchmarks.reproduction.ranking_run import run_once

SETTINGS = RunSettings(order="given", seed=0, device="cpu")


@pytest.fixture(scope="module")
def finished(small_world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return folder, run_once(small_world, folder, SETTINGS)


def test_models_find_the_next_item_of_a_walk_and_popularity_does_not(finished):
    rows = finished[1]["rows"]
    assert rows["sequence"]["test"]["recall@5"] > 0.8
    assert rows["generative"]["test"]["recall@5"] > 0.8
    for blend in ("blend_fast", "blend"):
        assert rows[blend]["test"]["ndcg@10"] >= 0.95 * rows["sequence"]["test"]["ndcg@10"]
    assert finished[1]["invalid_ids"] == 0
    assert rows["popularity"]["test"]["recall@10"] < 0.4


def test_a_look_at_test_is_noted_and_one_at_validation_is_not(small_world, finished, tmp_path):
    (look,) = (finished[0] / LEDGER).read_text().splitlines()
    assert json.loads(look)["config"] == small_world.recipe.digest()
    only = replace(SETTINGS, splits=("validation",))
    few = replace(small_world, recipe=replace(small_world.recipe, rows=("popularity",)))
    result = run_once(few, tmp_path, only)
    assert "test" not in result["rows"]["popularity"]
    assert not (tmp_path / LEDGER).exists()


def test_a_killed_run_goes_on_where_it_was(small_world, tmp_path, monkeypatch):
    fitted = []

    def failing(name, dies):
        real = FITTERS[name]

        def fit(experiment) -> FittedSource:
            if dies:
                raise KeyboardInterrupt
            fitted.append(name)
            return real(experiment)

        return fit

    rows = ("popularity", "item_to_item", "content_similarity")
    few = replace(small_world, recipe=replace(small_world.recipe, rows=rows))
    killed = {name: failing(name, name == "content_similarity") for name in rows}
    monkeypatch.setattr(run_module, "FITTERS", killed)
    with pytest.raises(KeyboardInterrupt):
        run_once(few, tmp_path, SETTINGS)
    assert not (tmp_path / "given-0" / "result.json").exists()

    monkeypatch.setattr(run_module, "FITTERS", {name: failing(name, False) for name in rows})
    again = run_once(few, tmp_path, SETTINGS)
    assert fitted == ["popularity", "item_to_item", "content_similarity"]
    assert set(again["rows"]) == set(rows)

    monkeypatch.setattr(run_module, "FITTERS", {})
    assert run_once(few, tmp_path, SETTINGS) == again
