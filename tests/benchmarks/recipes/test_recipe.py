import json
from dataclasses import asdict, replace

import pytest

from tests.benchmarks.recipes.recipe import Recipe, config_of, with_changes
from tests.benchmarks.reproduction.train import main


def test_a_recipe_comes_back_from_json_with_its_digest(small_recipe):
    again = config_of(Recipe, json.loads(json.dumps(asdict(small_recipe))))
    assert again == small_recipe
    assert again.digest() == small_recipe.digest()
    assert replace(small_recipe, metric="recall@10").digest() != small_recipe.digest()


def test_a_setting_of_another_version_is_refused_with_its_place(small_recipe):
    document = asdict(small_recipe)
    document["sequence"]["num_heads_of_old"] = 2
    with pytest.raises(ValueError, match=r"sequence\.num_heads_of_old is no setting"):
        config_of(Recipe, document)


def test_a_blend_needs_its_sources_fitted_also_where_they_are_not_shown():
    alone = Recipe(rows=("blend_fast",), sources=("content_similarity", "sequence", "generative"))
    assert alone.models() == ["content_similarity", "sequence"]
    assert replace(alone, rows=("item_to_item", "blend")).models() == [
        "item_to_item",
        "content_similarity",
        "sequence",
        "generative",
    ]
    with pytest.raises(ValueError, match="rows must be some of"):
        Recipe(rows=("magic",))


def test_changes_reach_into_a_recipe_and_unknown_ones_are_refused(small_recipe):
    changed = with_changes(
        small_recipe, ["sequence.dropout=0.25", 'sources=["content_similarity"]']
    )
    assert changed.sequence.dropout == 0.25
    assert changed.sources == ("content_similarity",)
    with pytest.raises(ValueError, match=r"the recipe has no sequence\.magic"):
        with_changes(small_recipe, ["sequence.magic=1"])


def test_seeds_run_in_processes_of_their_own(small_world, tmp_path):
    small_world.save(tmp_path / "arrays")
    out = tmp_path / "runs"
    code = main(
        [
            str(tmp_path / "arrays"),
            *("--out", str(out), "--seeds", "0", "1", "--orders", "given"),
            *("--rows", "popularity", "content_similarity", "--workers", "2", "--device", "cpu"),
        ]
    )
    assert code == 0
    results = [json.loads(path.read_text()) for path in sorted(out.glob("*/result.json"))]
    assert [result["seed"] for result in results] == [0, 1]
    assert list(results[0]["rows"]) == ["popularity", "content_similarity"]
