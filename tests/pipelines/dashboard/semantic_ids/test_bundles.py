"""Semantic IDs of bundles, and of a delta that adds items to one."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import Query
from pipelines.dashboard.semantic_ids import build
from pipelines.dashboard.workspaces.stores import Places, Stores
from serving.bundle.delta import NewItem, write_delta
from serving.bundle.load import load_bundle
from serving.bundle.semantic_ids import NewIds
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle


@pytest.fixture
def bundles(tmp_path: Path) -> Context:
    write_synthetic_bundle(tmp_path, "v1", SyntheticSize())
    own = load_bundle(tmp_path / "bundle-v1").semantic_ids
    assert own is not None
    taken = {tuple(codes) for codes in own.codes.tolist()}
    sizes = own.ids.level_sizes
    free = next(codes for codes in np.ndindex(*sizes) if tuple(map(int, codes)) not in taken)
    items = [
        NewItem(item_id="fresh-1", display_text="Fresh one"),
        NewItem(item_id="fresh-2", display_text="Fresh two"),
    ]
    codes = torch.full((2, len(sizes)), -1, dtype=torch.int32)
    codes[0] = torch.tensor(free)
    write_delta(
        tmp_path,
        "v1",
        items,
        content=np.zeros((2, 4), np.float32),
        item_vectors=np.zeros((2, load_bundle(tmp_path / "bundle-v1").retriever.index.dim), "f4"),
        semantic_ids=NewIds(codes, np.array([own.ids.num_item_rows, 0])),
    )
    return Context(stores=Stores(Places(roots=[], bundles=[tmp_path])))


def test_a_delta_shows_the_items_of_its_bundle_and_its_own(bundles: Context) -> None:
    keys = {run.name: run.key for run in bundles.stores.runs()}
    counts = {}
    for version, key in keys.items():
        tiles = build(bundles, Query.of(run=key)).blocks[0]
        counts[version] = tiles.tiles[0].value  # type: ignore[union-attr]
    assert counts == {"v1": "40 of 40", "v1+1": "41 of 42"}
    delta = Query.of(run=keys["v1+1"])
    assert build(bundles, delta).notices[0] == "Items without an ID in this version: 1."
