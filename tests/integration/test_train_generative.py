"""The generative model as a stage: its beam measured, its IDs held to those of the run."""

import json
from pathlib import Path

import polars as pl
import pytest

from pipelines.candidates.blends import FILE
from pipelines.semantic_ids.store import read_item_codes
from pipelines.stages.report import report_path
from tests.integration.copies import Recsys, copied, options, run, run_well, stages_before


def test_the_beam_finds_the_successor_and_no_id_is_invalid(
    shop: Path, recsys: Recsys, tmp_path: Path
) -> None:
    workspace = copied(shop, tmp_path, stages_before("train_generative"))
    longer = (
        "generative_training.max_epochs=12.0",
        "generative_training.epochs_per_evaluation=4.0",
    )
    run_well(recsys, workspace, *options("--set", longer), "--until", "evaluate")
    metrics = json.loads((workspace / "evaluate/metrics.json").read_text())["given"]
    for split in ("validation", "test"):
        assert metrics[split]["generative"]["recall@5"] >= 0.8
    ending = json.loads((workspace / "train_generative/given/training.json").read_text())
    assert ending["best_metric"] == pytest.approx(metrics["validation"]["generative"]["ndcg@10"])


def test_the_report_draws_its_curve(shop: Path) -> None:
    numbers = json.loads((report_path(shop).parent / "report.json").read_text())
    assert "generative" in {curve["model"] for curve in numbers["curves"]}


def test_lists_hold_items_with_an_id_that_the_user_has_not_taken(shop: Path) -> None:
    codes = read_item_codes(shop / "build_semantic_ids")
    table = pl.read_parquet(shop / "evaluate/per_user_given_test.parquet")
    rows = table["top_k_generative"].explode()
    assert bool((codes.codes[rows.to_torch()] >= 0).all())
    assert table["top_k_generative"].list.n_unique().equals(table["top_k_generative"].list.len())


def test_the_bundle_carries_what_was_fitted_again_and_both_profiles(shop: Path) -> None:
    manifest = json.loads((shop / "bundles/current/manifest.json").read_text())
    assert {"generative", "blend_fast", "blend_full"} <= set(manifest["models"])
    name = "generative.safetensors"
    released = (shop / "bundles/current/generative" / name).read_bytes()
    assert released == (shop / "refit/generative" / name).read_bytes()
    told = json.loads((shop / "fit_blend/given" / FILE).read_text())["profiles"]
    assert "generative" not in told["fast"]["sources"]
    assert "generative" in told["full"]["sources"]


def test_other_ids_than_the_models_are_refused_with_both_named(
    shop: Path, recsys: Recsys, tmp_path: Path
) -> None:
    workspace = copied(shop, tmp_path, stages_before("fit_blend"))
    path = workspace / "train_generative/given/generative/config.json"
    document = json.loads(path.read_text())
    version, other = document["inputs"]["semantic_ids"], "f" * 64
    document["inputs"]["semantic_ids"] = other
    path.write_text(json.dumps(document))
    result = run(recsys, workspace, "--stage", "fit_blend")
    assert result.exit_code != 0
    told = "".join(result.output.split())
    assert version in told
    assert other in told
    assert not (workspace / "fit_blend").exists()


def test_without_semantic_ids_it_switches_off_and_says_so(
    shop: Path, recsys: Recsys, tmp_path: Path
) -> None:
    workspace = copied(shop, tmp_path, stages_before("fit_baselines"))
    made = options("--stage", ("build_semantic_ids", "train_generative"))
    said = run_well(recsys, workspace, "--set", "semantic_ids.method=none", *made)
    assert "off, because no item has a semantic ID" in said
    assert not (workspace / "train_generative/given").exists()
