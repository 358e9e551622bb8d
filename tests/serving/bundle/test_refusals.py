"""Bundles whose files have their digests and do not fit all the same: each is refused by name."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from recsys.data.string_table import write_string_table
from serving.bundle import manifest as manifests
from serving.bundle.delta import NewItem, write_delta
from serving.bundle.load import load_bundle
from serving.bundle.semantic_ids import NewIds
from serving.bundle.write import write_bundle
from tests.serving.synthetic_bundle import with_model, without

NEW = NewItem(item_id="fresh", display_text="Fresh")


def without_scores(directory):
    path = directory / "popularity" / "popularity.safetensors"
    save_file({name: one * torch.nan for name, one in load_file(path).items()}, path)


def ids_from_row_0(directory):
    write_string_table(directory / "users", "user_ids", [f"user-{row}" for row in range(13)])


def backwards(directory):
    path = directory / "histories" / "times.npy"
    np.save(path, np.load(path)[::-1])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (without_scores, "popularity.* holds NaN; fit the baselines"),
        (ids_from_row_0, "user_ids must begin with the empty text of row 0"),
        (backwards, "times that fall within a user's events"),
    ],
)
def test_contents_that_make_no_sense_are_refused(bundles_dir, reseal, damage, said):
    directory = bundles_dir / "bundle-v1"
    damage(directory)
    reseal(directory)
    with pytest.raises(ValueError, match=said):
        load_bundle(directory)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("models", ["popularity", "crystal"], "does not know the model 'crystal'"),
        ("context_features", {"user_num_events": 3}, "'user_num_events' with 3 categories"),
        ("context_features", {"moon": 3}, "context feature 'moon' with 3 .* here it has None"),
    ],
)
def test_what_this_version_cannot_serve_is_refused(bundles_dir, reseal, field, value, said):
    reseal(bundles_dir / "bundle-v1", **{field: value})
    with pytest.raises(ValueError, match=said):
        load_bundle(bundles_dir / "current")


def test_ids_of_other_tables_than_the_manifest_names_are_refused(bundles_dir, reseal):
    directory = bundles_dir / "bundle-v1"
    named = json.loads((directory / "manifest.json").read_text())["vocabularies"]
    reseal(directory, vocabularies=dict.fromkeys(named, "0" * 64))
    with pytest.raises(ValueError, match="id tables other than its vocabulary digests say"):
        load_bundle(directory)


def test_a_link_and_a_huge_manifest_are_refused(bundles_dir, monkeypatch):
    directory = bundles_dir / "bundle-v1"
    (directory / "index" / "link").symlink_to("items.faiss")
    with pytest.raises(ValueError, match=r"link is not a regular file"):
        load_bundle(directory)
    monkeypatch.setattr(manifests, "MAX_MANIFEST_BYTES", 10)
    with pytest.raises(ValueError, match=r"manifest\.json has \d+ bytes, at most 10"):
        load_bundle(directory)


def test_items_that_nothing_would_find_are_not_appended(parts, tmp_path):
    alone = replace(without(parts, "two_tower"), semantic_ids=None)
    write_bundle(tmp_path, alone, version="v1")
    content = np.zeros((1, 4), np.float32)
    ids = {"content": content, "item_vectors": None, "semantic_ids": NewIds.none(1, 3)}
    with pytest.raises(ValueError, match="v1 has no semantic IDs that could be extended"):
        write_delta(tmp_path, "v1", [NEW], **ids)
    with pytest.raises(ValueError, match="a delta needs at least one new item"):
        write_delta(tmp_path, "v1", [], content=content[:0], item_vectors=None)
    write_bundle(tmp_path, replace(alone, content=None), version="v2")
    with pytest.raises(ValueError, match="neither a two-tower nor content embeddings"):
        write_delta(tmp_path, "v2", [NEW], content=content[:, :0], item_vectors=None)
    assert not list(tmp_path.glob("bundle-*+*"))


def test_a_model_that_was_not_saved_and_users_without_times(parts, tmp_path):
    with pytest.raises(ValueError, match="nowhere is not the directory of a saved model"):
        write_bundle(tmp_path, with_model(parts, "popularity", tmp_path / "nowhere"), version="v1")
    users = replace(parts.users, times=None)
    users = load_bundle(write_bundle(tmp_path, replace(parts, users=users), version="v1")).users
    assert users.measure_demand(41) is None
