"""Indexes of sequence models and content in the bundle of a large catalogue."""

from pathlib import Path

import numpy as np
import pytest
import torch

from recsys.data.top_k import ItemMask
from serving.bundle import item_index
from serving.bundle.delta import NewItem
from serving.bundle.load import Bundle, load_bundle
from serving.query import hydrate
from serving.recommend import Recommender
from serving.schemas import Request
from serving.surfaces import HOME
from tests.serving.bundle.deltas import append_like
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

SIZE = SyntheticSize(num_items=300, history_models=True, semantic_ids=False)
PARTS = {"sequence", "content_similarity"}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles")
    write_synthetic_bundle(folder, "compared", SIZE)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(item_index, "COMPARED_UP_TO", 100)
        write_synthetic_bundle(folder, "indexed", SIZE)
    return folder


def rows_of(bundle: Bundle, source: str, k: int, left_out: list[int]) -> list[int]:
    query = hydrate(Request(session=["item-3", "item-8"]), bundle, HOME)
    mask = ItemMask.all_but(bundle.num_item_rows, np.array(left_out))
    with torch.inference_mode():
        found = Recommender(bundle).retrieval.sources[source].one(query, mask, k)
    assert found is not None
    return found.item_rows.tolist()


@pytest.mark.parametrize("source", ["sequence", "content_similarity"])
def test_an_index_finds_nearly_what_comparing_all_items_does(bundles: Path, source: str) -> None:
    compared, indexed = (
        load_bundle(bundles / f"bundle-{name}") for name in ("compared", "indexed")
    )
    assert compared.indexes == {}
    assert indexed.indexes.keys() == PARTS
    truth, found = (rows_of(one, source, 100, [5, 7]) for one in (compared, indexed))
    assert len(set(truth) & set(found)) >= 95
    assert not {0, 5, 7} & set(found)


def test_appended_items_are_found(bundles: Path) -> None:
    new = NewItem(item_id="fresh", display_text="Fresh", categories=["odd"])
    append_like(bundles, "indexed", [new], [8])
    after = load_bundle(bundles / "bundle-indexed+1")
    for part in PARTS:
        assert after.indexes[part].num_item_rows == 302
    assert 301 in rows_of(after, "content_similarity", 20, [3, 8])


def test_an_index_of_other_vectors_is_refused(bundles: Path) -> None:
    bundle = load_bundle(bundles / "bundle-indexed")
    narrow = {"sequence": lambda: torch.zeros(301, 3)}
    with pytest.raises(ValueError, match=r"sequence\.faiss"):
        item_index.load_item_indexes(bundles / "bundle-indexed", bundle.manifest, narrow)
