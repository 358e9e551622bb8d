"""Exact search of a GPU finds what a CPU does, with its kernel and without."""

import numpy as np
import pytest
import torch

from recsys.data.top_k import ItemMask
from recsys.kernels.choice import without
from recsys.retrieval.exact import exact_top_k
from recsys.retrieval.index import index_of

pytestmark = pytest.mark.gpu
NUM_ROWS = 3_000


@pytest.mark.parametrize("share", [None, 0.5, 0.01])
def test_a_gpu_finds_what_the_cpu_does(share: float | None) -> None:
    rng = np.random.default_rng(2)
    # Whole numbers: products are exact in every type, with many ties.
    items, queries = (
        torch.from_numpy(rng.integers(-3, 4, (rows, 16))).float() for rows in (NUM_ROWS, 12)
    )
    mask = None if share is None else ItemMask(rng.random(NUM_ROWS) < share)
    index = index_of(items.cuda())
    assert index.device.type == "cuda"
    truth = exact_top_k(queries, items, 20, mask)
    with without("topk_search"):
        plain = index.search(queries, 20, mask)
    for found in (index.search(queries, 20, mask), plain):
        assert torch.equal(found.item_rows, truth.item_rows)
        assert torch.equal(found.scores, truth.scores)
