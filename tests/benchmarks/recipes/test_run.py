import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import tests.benchmarks.reproduction.ranking_run as run_module
from recsys.data.dataset import HeldOut
from recsys.evaluation.ranking import RankingConfig, evaluate_ranking
from recsys.fitting.sequence import fit_sequence
from recsys.models.sequence.members import alone
from recsys.models.sequence.model import SequenceModel
from tests.benchmarks.recipes.fit import Experiment, FittedSource
from tests.benchmarks.recipes.prepared import Prepared
from tests.benchmarks.recipes.run import LEDGER, RunSettings, load_ranked
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


def test_metrics_agree_with_the_evaluation_of_the_package(small_world, finished):
    sequences = small_world.order("given")
    experiment = Experiment(
        prepared=small_world, inputs=small_world.inputs("given"), seed=0, device=torch.device("cpu")
    )
    held_out = HeldOut.of(sequences, "test")
    model = FITTERS["item_to_item"](experiment).source._score
    slow = evaluate_ranking(
        model,
        [sequences.queries(held_out.positions, max_history=200)],
        held_out.targets,
        RankingConfig(ks=(5, 10, 20)),
        exclude=held_out.seen,
    )
    mine = finished[1]["rows"]["item_to_item"]["test"]
    for name in ("recall@5", "recall@10", "ndcg@10", "mrr@10"):
        assert mine[name] == pytest.approx(slow.metrics[name], abs=1e-12)
    ranked = load_ranked(finished[0] / "given-0" / "item_to_item.npz")["test"]
    torch.testing.assert_close(ranked.ranks, slow.ranks.values)
    torch.testing.assert_close(ranked.lists.item_rows, slow.top_k.item_rows)


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


def test_members_trained_elsewhere_are_not_trained_again(small_world, tmp_path, monkeypatch):
    recipe = small_world.recipe
    apart = replace(
        recipe.sequence, num_members=2, trained_apart=True, embedding_dim=32, fast_members=1
    )
    recipe = replace(
        recipe,
        rows=("sequence", "ensemble", "blend_fast", "blend", "sequence_refit"),
        sources=("popularity", "sequence", "ensemble"),
        sequence=apart,
        sequence_training=replace(recipe.sequence_training, patience=40),
    )
    prepared = replace(small_world, recipe=recipe)
    experiment = Experiment(
        prepared=prepared,
        inputs=prepared.inputs("given"),
        seed=0,
        device=torch.device("cpu"),
        checkpoints=tmp_path / "given-0" / "checkpoints",
    )
    training = recipe.sequence_training
    _, result, _ = fit_sequence(
        experiment.inputs,
        alone(apart, 1),
        training,
        experiment.run("sequence").for_member(1),
        experiment.queries("validation").sample(training.validation_users, 0),
    )
    steps = []
    counting = SequenceModel.loss
    monkeypatch.setattr(
        SequenceModel, "loss", lambda *given, **more: steps.append(1) or counting(*given, **more)
    )
    found = run_once(prepared, tmp_path, SETTINGS)["rows"]
    of_refit = found["sequence_refit"]["training"]["num_steps"]
    # The first member alone here, and when it is fitted again.
    assert len(steps) == result.num_steps + of_refit
    assert found["sequence"]["test"]["recall@5"] > 0.8
    assert found["ensemble"]["test"] != found["sequence"]["test"]
    assert "ensemble" not in found["blend_fast"]["weights"]
    assert "ensemble" in found["blend"]["weights"]


def test_results_of_other_data_or_settings_are_refused_with_both_named(small_world, finished):
    folder, _ = finished
    other = replace(small_world, data_digest="f" * 16)
    with pytest.raises(ValueError, match=r"0123456789abcdef.*ffffffffffffffff"):
        run_once(other, folder, SETTINGS)
    changed = replace(small_world, recipe=replace(small_world.recipe, metric="recall@10"))
    with pytest.raises(ValueError, match="recipe"):
        run_once(changed, folder, SETTINGS)


def test_prepared_arrays_come_back_as_they_were(small_world, tmp_path):
    digest = small_world.save(tmp_path)
    again = Prepared.load(tmp_path)
    assert again.recipe == small_world.recipe
    assert again.sizes == small_world.sizes
    for order, sequences in small_world.orders.items():
        for name in ("item_rows", "offsets", "train_end", "validation_end", "times"):
            np.testing.assert_array_equal(
                getattr(again.order(order), name), getattr(sequences, name)
            )
        np.testing.assert_array_equal(
            again.order(order).context["weekday"], sequences.context["weekday"]
        )
    torch.testing.assert_close(again.codes.codes, small_world.codes.codes)
    torch.testing.assert_close(
        again.catalogue.content, small_world.catalogue.content, atol=1e-3, rtol=0
    )
    assert again.save(tmp_path / "copy") == digest


def test_damaged_arrays_are_refused_with_both_digests(small_world, tmp_path):
    digest = small_world.save(tmp_path)
    with np.load(tmp_path / "content.npz") as file:
        content = file["content"]
    content[3, 0] += 1
    np.savez(tmp_path / "content.npz", content=content)
    with pytest.raises(ValueError, match=rf"have digest [0-9a-f]{{16}}.*{digest}"):
        Prepared.load(tmp_path)


def test_an_unknown_order_is_refused_by_name(small_world):
    with pytest.raises(ValueError, match="given, shuffled"):
        small_world.order("reversed")
