"""Indexes of sequence models and content in the bundle of a large catalogue."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from recsys.data.top_k import ItemMask
from recsys.retrieval import index_recall
from serving.bundle import item_index
from serving.bundle.delta import NewItem, write_delta
from serving.bundle.load import Bundle, load_bundle
from serving.query import hydrate
from serving.recommend import Recommender
from serving.schemas import Request
from serving.surfaces import HOME
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

SIZE = SyntheticSize(num_items=300, history_models=True, semantic_ids=False)
PARTS = {"sequence", "content_similarity"}


@pytest.fixture
def bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_synthetic_bundle(tmp_path, "compared", SIZE)
    monkeypatch.setattr(item_index, "COMPARED_UP_TO", 100)
    write_synthetic_bundle(tmp_path, "indexed", SIZE)
    return tmp_path


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


def test_the_manifest_says_what_an_index_finds_and_at_what_effort(bundles: Path) -> None:
    compared, indexed = (
        load_bundle(bundles / f"bundle-{name}") for name in ("compared", "indexed")
    )
    assert not [name for name in compared.manifest.metrics if name.startswith("index of")]
    for part in PARTS:
        said = indexed.manifest.metrics[f"index of {part}"]
        assert said["recall@100"] >= 0.99
        assert said["lists"] == indexed.indexes[part].effort < 64


def test_items_in_clusters_need_few_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real catalogue has neighbourhoods; vectors drawn by themselves have none."""
    monkeypatch.setattr(item_index, "COMPARED_UP_TO", 100)
    monkeypatch.setattr(index_recall, "ALLOWED_LISTS", 1)
    size = SyntheticSize(
        num_items=8_000, content_dim=32, embedding_dim=32, history_models=True, semantic_ids=False
    )
    said = {}
    for name, items in (("clusters", 100), ("random", 0)):
        write_synthetic_bundle(tmp_path, name, replace(size, cluster_items=items))
        metrics = load_bundle(tmp_path / f"bundle-{name}").manifest.metrics
        said[name] = metrics["index of content_similarity"]
    assert said["clusters"]["recall@100"] >= 0.98
    assert said["random"]["recall@100"] < 0.98
    assert said["clusters"]["lists"] < said["random"]["lists"]


def test_appended_items_are_found(bundles: Path) -> None:
    before = load_bundle(bundles / "bundle-indexed")
    assert before.retriever is not None
    twin = before.items.content[[8]].numpy()
    vector = before.retriever.index.vectors(torch.tensor([8])).numpy()
    new = NewItem(item_id="fresh", display_text="Fresh", categories=["odd"])
    write_delta(bundles, "indexed", [new], content=twin, item_vectors=vector)
    after = load_bundle(bundles / "bundle-indexed+1")
    for part in PARTS:
        assert after.indexes[part].num_item_rows == 302
    assert 301 in rows_of(after, "content_similarity", 20, [3, 8])


def test_an_index_of_other_vectors_is_refused(bundles: Path) -> None:
    bundle = load_bundle(bundles / "bundle-indexed")
    narrow = {"sequence": lambda: torch.zeros(301, 3)}
    with pytest.raises(ValueError, match=r"sequence\.faiss"):
        item_index.load_item_indexes(bundles / "bundle-indexed", bundle.manifest, narrow)
