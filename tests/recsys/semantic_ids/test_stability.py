"""The same item always decodes to the same text and neighbours: saved, appended to, elsewhere.

Run as a script, this file prints what a directory of IDs says: that is how another process is
asked.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from recsys.semantic_ids.codes import SemanticIds
from recsys.semantic_ids.collisions import assign_semantic_ids
from recsys.semantic_ids.delta import diff
from recsys.semantic_ids.kmeans import KMeansConfig
from recsys.semantic_ids.lifecycle import append
from recsys.semantic_ids.rq_kmeans import ResidualKMeans, ResidualKMeansConfig
from recsys.semantic_ids.version_store import VersionStore
from tests.recsys.semantic_ids.apply_delta import apply
from tests.recsys.testing.tensors import rounding

pytestmark = pytest.mark.numerics

# Centres are means of up to 300 items of 6 columns.
CLOSE = rounding(300 + 6)
NUM_FIRST = 250
"""Items of the first version; the others come later."""


def catalogue() -> Tensor:
    """Content of 300 items in 30 clusters, row 0 zero, [301, 6]."""
    generator = torch.Generator().manual_seed(3)
    centres = torch.randn(30, 6, generator=generator)
    items = centres[torch.randint(30, (300,), generator=generator)]
    items = items + 0.1 * torch.randn(300, 6, generator=generator)
    return torch.cat([torch.zeros(1, 6), items])


def said_of(ids: SemanticIds, quantizer: ResidualKMeans) -> dict[str, Any]:
    """Say of each item of the first version its text, what it decodes to and who is beside it.

    Neighbours are the items of the first version with the same first l codes, for each l.
    """
    rows = torch.arange(1, NUM_FIRST + 1)
    codes = ids.codes[rows].long()
    back = ids.find_item_rows(codes)
    assert torch.equal(back, rows), "an ID leads to another item"
    neighbours = [
        [
            (rows[(codes[:, :depth] == own[:depth]).all(1)]).tolist()
            for depth in range(1, ids.num_levels)
        ]
        for own in codes
    ]
    content = codes[:, : len(quantizer.level_sizes)]
    return {
        "texts": [ids.text(row) for row in rows.tolist()],
        "neighbours": neighbours,
        "vectors": quantizer.decode(content).tolist(),
    }


def agree(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Compare texts and neighbours exactly, vectors to what threads may round otherwise."""
    same = all(one[part] == other[part] for part in ("texts", "neighbours"))
    return same and np.allclose(one["vectors"], other["vectors"], rtol=0, atol=CLOSE)


def fitted() -> ResidualKMeans:
    vectors = catalogue()[1 : NUM_FIRST + 1]
    sizes = (8, 8, 8)
    kmeans = KMeansConfig(num_steps=6)
    return ResidualKMeans.fit(vectors, ResidualKMeansConfig(level_sizes=sizes, kmeans=kmeans))


def test_an_item_keeps_its_text_and_neighbours_wherever_it_is_read(
    tmp_path: Path,
) -> None:
    vectors, quantizer = catalogue(), fitted()
    ids = assign_semantic_ids(quantizer, vectors[: NUM_FIRST + 1])
    first = said_of(ids, quantizer)
    assert len(set(first["texts"])) == NUM_FIRST

    store = VersionStore(tmp_path)
    store.publish(ids, quantizer)
    loaded, reread = store.load(), ResidualKMeans.load(store.quantizer_path())
    assert agree(said_of(loaded, reread), first)

    grown = append(loaded, reread, vectors[NUM_FIRST + 1 : NUM_FIRST + 31])
    assert agree(said_of(grown, reread), first)
    again = append(grown, reread, vectors[NUM_FIRST + 31 :])
    assert agree(said_of(again, reread), first)
    assert agree(said_of(apply(ids, diff(ids, again)), quantizer), first)

    store.publish(grown, reread)
    store.publish(again, reread)
    assert agree(said_of(store.load(), ResidualKMeans.load(store.quantizer_path())), first)
    store.rollback()
    store.rollback()
    assert store.load().version == ids.version
    assert agree(said_of(store.load(), ResidualKMeans.load(store.quantizer_path())), first)


def test_equal_new_items_get_equal_ids() -> None:
    """What is appended depends on the version and the items alone."""
    vectors, quantizer = catalogue(), fitted()
    ids = assign_semantic_ids(quantizer, vectors[: NUM_FIRST + 1])
    new = vectors[NUM_FIRST + 1 :]
    assert append(ids, quantizer, new).version == append(ids, quantizer, new.clone()).version
    copied = SemanticIds(
        codes=ids.codes.clone(),
        level_sizes=ids.level_sizes,
        quantizer_digest=ids.quantizer_digest,
        parent=ids.parent,
    )
    assert append(copied, quantizer, new).version == append(ids, quantizer, new).version


if __name__ == "__main__":
    asked = VersionStore(Path(sys.argv[1]))
    read = asked.load(sys.argv[2])
    told = said_of(read, ResidualKMeans.load(asked.quantizer_path(sys.argv[2])))
    told["appended"] = [read.text(row) for row in range(NUM_FIRST + 1, read.num_item_rows)]
    sys.stdout.write(json.dumps(told))
