import shutil

import numpy as np
import pytest
import torch

from serving.bundle.delta import NewItem, write_delta
from serving.bundle.load import load_bundle
from serving.bundle.manifest import publish
from serving.bundle.write import write_bundle
from serving.recommend import Recommender
from serving.schemas import Request
from tests.serving.bundle.deltas import append_like
from tests.serving.synthetic_bundle import SyntheticSize, without, write_synthetic_bundle

NEW = [
    NewItem(item_id="fresh-1", display_text="Fresh one", categories=["even", "brand new"]),
    NewItem(item_id="fresh-2", display_text="Fresh two", categories=["brand new"]),
]


def add(bundles_dir, items=NEW):
    return append_like(bundles_dir, "v1", items, [1] * len(items))


def test_new_items_are_served_and_old_rows_do_not_change(bundles_dir):
    before = Recommender.load(bundles_dir / "current")
    assert add(bundles_dir).name == "bundle-v1+1"
    publish(bundles_dir, "v1+1")
    after = Recommender.load(bundles_dir / "current")

    assert after.bundle.version == "v1+1"
    assert list(after.bundle.catalogue.item_ids)[:41] == list(before.bundle.catalogue.item_ids)
    assert list(after.bundle.catalogue.item_ids)[41:] == ["fresh-1", "fresh-2"]
    similar = after.answer(Request(surface="related", item_id="item-1", k=40)).items
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
    write_bundle(tmp_path, without(parts, "two_tower"), version="v1")
    content = load_bundle(tmp_path / "bundle-v1").items.content[[2, 2]].numpy()
    write_delta(tmp_path, "v1", NEW, content=content, item_vectors=None)
    bundle = load_bundle(tmp_path / "bundle-v1+1")
    assert bundle.retriever is None
    assert bundle.num_item_rows == 43
    torch.testing.assert_close(bundle.items.content[41:], torch.from_numpy(content))
    with pytest.raises(ValueError, match=r"content .* \(2, 4\), got \(2, 3\)"):
        write_delta(tmp_path, "v1+1", NEW, content=content[:, :3], item_vectors=None)


def test_delta_of_another_parent_is_refused_naming_both_digests(bundles_dir):
    add(bundles_dir)
    made_for = load_bundle(bundles_dir / "bundle-v1").digest
    shutil.rmtree(bundles_dir / "bundle-v1")
    write_synthetic_bundle(bundles_dir, "v1", SyntheticSize(seed=1))
    found = load_bundle(bundles_dir / "bundle-v1").digest
    with pytest.raises(ValueError, match=f"{made_for}.*{found}"):
        load_bundle(bundles_dir / "bundle-v1+1")


def test_delta_is_refused_when_its_parent_is_damaged_or_gone(bundles_dir):
    add(bundles_dir)
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
        add(bundles_dir, known)
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
