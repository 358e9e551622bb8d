import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from serving.bundle.delta import NewItem, write_delta
from serving.bundle.load import load_bundle
from serving.bundle.manifest import MANIFEST, publish
from serving.bundle.write import write_bundle
from serving.recommend import Recommender
from serving.schemas import Request
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

NEW = [
    NewItem(item_id="fresh-1", display_text="Fresh one", categories=["even", "brand new"]),
    NewItem(item_id="fresh-2", display_text="Fresh two", categories=["brand new"]),
]


def vectors_near(bundles_dir, item_row, count):
    """Vectors that every query ranks beside one item."""
    index = load_bundle(bundles_dir / "current").retriever.index
    return index.vectors(torch.tensor([item_row] * count)).numpy()


def add(bundles_dir, parent, items, item_row=1):
    return write_delta(
        bundles_dir,
        parent,
        items,
        content=np.zeros((len(items), 4), np.float32),
        item_vectors=vectors_near(bundles_dir, item_row, len(items)),
    )


def test_new_items_are_served_and_old_rows_do_not_change(bundles_dir):
    before = Recommender.load(bundles_dir / "current")
    assert add(bundles_dir, "v1", NEW).name == "bundle-v1+1"
    publish(bundles_dir, "v1+1")
    after = Recommender.load(bundles_dir / "current")

    assert after.bundle.version == "v1+1"
    assert list(after.bundle.catalogue.item_ids)[:41] == list(before.bundle.catalogue.item_ids)
    assert list(after.bundle.catalogue.item_ids)[41:] == ["fresh-1", "fresh-2"]
    similar = after.answer(Request(surface="similar", item_id="item-1", k=40)).items
    assert {"fresh-1", "fresh-2"} < {item.item_id for item in similar}
    # The fresh items lie on item 1, so they are its nearest by vector.
    nearest = after.bundle.retriever.index.search(
        after.bundle.retriever.index.vectors(torch.tensor([1])), 3
    )
    assert set(nearest.item_rows[0].tolist()) == {1, 41, 42}
    # New items in a session count as known, and unseen ones do not disturb the old lists.
    reply = after.answer(Request(session=["fresh-1", "item-3"]))
    assert reply.degraded == []
    assert "fresh-1" not in {item.item_id for item in reply.items}
    old = before.answer(Request(user_id="user-1", k=5, exclude=["fresh-1", "fresh-2"])).items
    new = after.answer(Request(user_id="user-1", k=5, exclude=["fresh-1", "fresh-2"])).items
    assert old == new


def test_without_a_two_tower_new_items_are_found_by_content(parts, tmp_path):
    write_bundle(tmp_path, replace(parts, two_tower=None), version="v1")
    content = load_bundle(tmp_path / "bundle-v1").items.content[[2, 2]].numpy()
    write_delta(tmp_path, "v1", NEW, content=content, item_vectors=None)
    bundle = load_bundle(tmp_path / "bundle-v1+1")
    assert bundle.retriever is None
    assert bundle.num_item_rows == 43
    torch.testing.assert_close(bundle.items.content[41:], torch.from_numpy(content))
    with pytest.raises(ValueError, match=r"content .* \(2, 4\), got \(2, 3\)"):
        write_delta(tmp_path, "v1+1", NEW, content=content[:, :3], item_vectors=None)


def test_without_two_tower_and_content_new_items_are_refused(parts, tmp_path):
    bare = replace(parts, two_tower=None, content=None, semantic_ids=None)
    write_bundle(tmp_path, bare, version="v1")
    with pytest.raises(ValueError, match="neither a two-tower nor content embeddings"):
        write_delta(tmp_path, "v1", NEW, content=np.zeros((2, 0)), item_vectors=None)
    assert [path.name for path in tmp_path.iterdir()] == ["bundle-v1"]


def test_new_category_filters_new_items(bundles_dir):
    add(bundles_dir, "v1", NEW)
    recommender = Recommender(load_bundle(bundles_dir / "bundle-v1+1"))
    request = Request.model_validate({"user_id": "user-1", "filter": {"categories": ["brand new"]}})
    found = {item.item_id for item in recommender.answer(request).items}
    assert found == {"fresh-1", "fresh-2"}


def test_vectors_of_new_items_come_from_content(bundles_dir):
    bundle = load_bundle(bundles_dir / "current")
    content = np.random.default_rng(0).normal(size=(1, 4)).astype(np.float32)
    items = JaggedBatch(
        {"item": Jagged.from_lists([[0]]), "item.categories": Jagged.from_lists([[1]])}
    )
    with torch.no_grad():
        vectors = bundle.retriever.model.item_vectors(items, torch.from_numpy(content)).numpy()
    item = NewItem(item_id="fresh", display_text="", categories=["even"])
    write_delta(bundles_dir, "v1", [item], content=content, item_vectors=vectors)
    grown = load_bundle(bundles_dir / "bundle-v1+1")
    np.testing.assert_allclose(grown.retriever.model.all_item_vectors()[41:], vectors, atol=1e-6)


def test_deltas_follow_each_other(bundles_dir):
    add(bundles_dir, "v1", NEW)
    publish(bundles_dir, "v1+1")
    more = [NewItem(item_id="fresh-3", display_text="Fresh three", categories=["brand new"])]
    assert add(bundles_dir, "v1+1", more).name == "bundle-v1+2"
    bundle = load_bundle(bundles_dir / "bundle-v1+2")
    assert bundle.num_item_rows == 44
    assert bundle.catalogue.num_category_rows == 5
    new = bundle.catalogue.categories.with_any(["brand new"])
    assert np.flatnonzero(new).tolist() == [41, 42, 43]
    assert (
        bundle.item_weights["item_to_item"].num_item_rows == bundle.popularity.num_item_rows == 44
    )
    assert bundle.retriever.index.num_item_rows == 44


def test_delta_of_another_parent_is_refused_naming_both_digests(bundles_dir):
    add(bundles_dir, "v1", NEW)
    made_for = load_bundle(bundles_dir / "bundle-v1").digest
    shutil.rmtree(bundles_dir / "bundle-v1")
    write_synthetic_bundle(bundles_dir, "v1", SyntheticSize(seed=1))
    found = load_bundle(bundles_dir / "bundle-v1").digest
    with pytest.raises(ValueError, match=f"{made_for}.*{found}"):
        load_bundle(bundles_dir / "bundle-v1+1")


def test_delta_is_refused_when_its_parent_is_damaged_or_gone(bundles_dir):
    add(bundles_dir, "v1", NEW)
    path = bundles_dir / "bundle-v1" / "index" / "items.faiss"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"items\.faiss has .* truncated"):
        load_bundle(bundles_dir / "bundle-v1+1")
    shutil.rmtree(bundles_dir / "bundle-v1")
    with pytest.raises(ValueError, match="bundle-v1 is not a bundle"):
        load_bundle(bundles_dir / "bundle-v1+1")


def test_known_ids_and_wrong_shapes_are_refused_and_leave_nothing(bundles_dir):
    known = [NewItem(item_id="item-5", display_text="again")]
    with pytest.raises(ValueError, match="'item-5' a second time at row 41"):
        add(bundles_dir, "v1", known)
    with pytest.raises(ValueError, match="at least one new item"):
        write_delta(bundles_dir, "v1", [], content=np.zeros((0, 4)), item_vectors=np.zeros((0, 8)))
    for message, content, vectors in (
        (r"item_vectors .* \(2, 8\), got \(3, 8\)", (2, 4), (3, 8)),
        (r"item_vectors .* \(2, 8\), got \(2, 9\)", (2, 4), (2, 9)),
        (r"content .* \(2, 4\), got \(2, 5\)", (2, 5), (2, 8)),
    ):
        with pytest.raises(ValueError, match=message):
            write_delta(
                bundles_dir, "v1", NEW, content=np.zeros(content), item_vectors=np.ones(vectors)
            )
    assert sorted(path.name for path in bundles_dir.iterdir()) == ["bundle-v1", "current"]


def test_cycle_of_parents_ends(bundles_dir, reseal):
    add(bundles_dir, "v1", NEW)
    directory = bundles_dir / "bundle-v1+1"
    document = json.loads((directory / MANIFEST).read_text())
    reseal(directory, parent={**document["parent"], "version": "v1+1"})
    with pytest.raises(ValueError, match="was made for v1"):
        load_bundle(directory)
