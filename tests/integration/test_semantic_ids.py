"""Semantic IDs from a run's raw files to its replies."""

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from pipelines.semantic_ids.store import SemanticIdStore
from pipelines.stages.list import STAGES
from serving.bundle.load import load_bundle
from tests.integration.copies import Recsys, copied, run, run_well

LENIENT = ("--set", "release.max_drop_from_champion=1")
LENIENT += ("--set", "release.min_gain_over_popularity=-1")
FITTED_AGAIN = ("--force", "build_semantic_ids", "--set", "seed=5")


@pytest.fixture
def own(shop: Path, tmp_path: Path) -> Path:
    """A copy of the finished workspace, with its raw files beside it."""
    return copied(shop, tmp_path)


def report_of(own: Path) -> dict[str, Any]:
    path = own / "build_semantic_ids/semantic_ids_report.json"
    return dict(json.loads(path.read_text()))


def store_of(own: Path) -> SemanticIdStore:
    return SemanticIdStore(own / "bundles/semantic_ids")


def served(own: Path) -> dict[str, str]:
    """The ID of each item that the published bundle has."""
    bundle = load_bundle(own / "bundles/current")
    assert bundle.semantic_ids is not None
    rows = range(1, bundle.num_item_rows)
    return {bundle.catalogue.item_ids[row]: bundle.semantic_ids.text(row) for row in rows}


def test_new_items_and_texts_in_the_raw_files_leave_every_published_id_alone(
    own: Path, recsys: Recsys
) -> None:
    before, version = served(own), store_of(own).current()
    items = pl.read_csv(own.parent / "items.csv")
    told, *_, model = items["item_id"]
    # The first item is now described as the last one is.
    texts = items.filter(item_id=model).drop("item_id", "price")
    changed = items.filter(item_id=told).select("item_id", "price").join(texts, how="cross")
    items = pl.concat([changed.select(items.columns), items.filter(pl.col("item_id") != told)])
    new = items.head(1).with_columns(item_id=pl.lit("a-new-one"), title=pl.lit("Wooden stars"))
    # Sorted first, so that every item row is another one.
    pl.concat([new, items.reverse()]).write_csv(own.parent / "items.csv")
    more = ["--set", "features.catalogue_only_items=true"]
    for name in ("two_tower", "sequence", "generative"):
        more += ["--set", f"{name}_training.max_epochs=1"]
    run_well(recsys, own, *more, *LENIENT)
    report, after = report_of(own), served(own)
    assert (report["how"], report["num_new"], report["parent"]) == ("appended", 1, version)
    assert {item: after[item] for item in before} == before
    assert after["a-new-one"] not in set(before.values())

    bundle = load_bundle(own / "bundles/current")
    ids, rows = bundle.semantic_ids, [bundle.catalogue.row_of(name) for name in (told, model)]
    assert ids is not None
    assert bundle.generative is not None
    # Content is compared by what the text says now; generation has the published IDs.
    of_text = ids.content_codes[rows]
    assert torch.equal(of_text[0], of_text[1])
    assert not torch.equal(of_text[0], ids.codes[rows[0]])
    trie, published = bundle.generative.trie, ids.codes[1:]
    assert trie.num_items == len(published)
    leaves = trie.start(len(published))
    for level in range(trie.num_levels):
        leaves = trie.step(leaves, published[:, level], level)
    assert torch.equal(trie.item_rows(leaves), torch.arange(1, len(published) + 1))
    # It keeps its events, and lists are found by it.
    events = pl.read_csv(own.parent / "events.csv").filter(item_id=told)
    assert int(bundle.item_counts[rows[0]]) == events.height
    shown = recsys("recommend", own, "--item", told, "--k", 3, "--json")
    assert shown.exit_code == 0, shown.output
    assert model in shown.output


def test_run_after_append_items_leaves_the_appended_item_in_place(
    own: Path, recsys: Recsys
) -> None:
    new = own.parent / "new.csv"
    new.write_text("item_id,title\na-new-one,Wooden stars\n")
    result = recsys("release", "append", own / "bundles/current", new)
    assert result.exit_code == 0, result.output
    version, found = store_of(own).current(), served(own)
    assert version != report_of(own)["version"]
    assert f"0 stages run, {len(STAGES)} skipped" in run_well(recsys, own)
    assert served(own) == found
    assert found["a-new-one"]


def test_without_method_or_content_everything_works_without_ids(own: Path, recsys: Recsys) -> None:
    run_well(recsys, own, "--set", "semantic_ids.method=none")
    assert report_of(own)["method"] == "none"
    assert load_bundle(own / "bundles/current").semantic_ids is None
    run_well(recsys, own, "--until", "build_semantic_ids", "--set", "content.encoder=none")
    assert report_of(own) == {"method": "none", "reason": "no item has content"}


def test_release_that_was_killed_after_it_published_ids_goes_on(own: Path, recsys: Recsys) -> None:
    version, found = store_of(own).current(), served(own)
    shutil.rmtree(own / "release")
    assert "1 stages run" in run_well(recsys, own)
    assert store_of(own).current() == version
    assert served(own) == found


def test_artefact_of_another_version_is_refused_with_both_named(own: Path, recsys: Recsys) -> None:
    made, kept = own / "build_semantic_ids", own / "kept"
    right = report_of(own)["version"]
    shutil.copytree(made, kept)
    run_well(recsys, own, "--until", made.name, *FITTED_AGAIN)
    other = report_of(own)["version"]
    for name in ("semantic_ids.json", "semantic_ids.safetensors"):
        shutil.copyfile(made / name, kept / name)
    shutil.rmtree(made)
    kept.rename(made)
    shutil.rmtree(own / "release")
    result = run(recsys, own)
    assert result.exit_code == 2, result.output
    assert right in result.output
    assert other in result.output


def test_a_forced_stage_fits_the_ids_again_and_matches_their_codes(
    own: Path, recsys: Recsys
) -> None:
    first, before = report_of(own)["version"], served(own)
    run_well(recsys, own, *FITTED_AGAIN, *LENIENT)
    report = report_of(own)
    assert (report["how"], report["parent"]) == ("aligned", first)
    assert report["kept"]["num_items"] == len(before)
    bundle = load_bundle(own / "bundles/current")
    assert bundle.semantic_ids is not None
    assert bundle.semantic_ids.version == report["version"]
    assert bundle.semantic_ids.ids.parent == first
