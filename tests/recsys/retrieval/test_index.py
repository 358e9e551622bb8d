"""Every kind of index answers alike: known lists, masks, padding, and what it refuses."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.top_k import ItemMask, TopK
from recsys.kernels.choice import without
from recsys.retrieval.exact import exact_top_k
from recsys.retrieval.faiss_index import build_index
from recsys.retrieval.faiss_library import FaissIndexConfig
from recsys.retrieval.index import ExactIndex, copy_halves, gpu_layout, index_of
from recsys.retrieval.vector_index import VectorIndex
from tests.recsys.testing.tensors import (
    as_lists,
    assert_same_lists,
    near_ties,
    rounding,
    top_k_of_scores,
)

pytestmark = pytest.mark.numerics

NUM_ROWS, DIM = 3_000, 16
KINDS = ("exact", "flat", "ivf_sq8", "hnsw")


def whole_numbers(seed: int, *shape: int) -> torch.Tensor:
    """Vectors whose products are exact in every type, with many ties."""
    return torch.from_numpy(np.random.default_rng(seed).integers(-3, 4, shape)).float()


ITEMS, QUERIES = whole_numbers(0, NUM_ROWS, DIM), whole_numbers(1, 12, DIM)


def made(kind: str, items: torch.Tensor = ITEMS) -> VectorIndex:
    """Probing every list, or keeping half the items, an approximate index finds all."""
    if kind == "exact":
        return ExactIndex(items)
    return build_index(items, FaissIndexConfig(kind=kind, effort=1_500))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [None, 0.5, 0.1, 0.01, 0.0])
def test_every_kind_gives_the_best_scores_under_a_mask(kind: str, share: float | None) -> None:
    index = made(kind)
    mask = None
    if share is not None:
        mask = ItemMask(np.random.default_rng(2).random(NUM_ROWS) < share)
    truth = top_k_of_scores(QUERIES @ ITEMS.T, 20, mask)
    found = index.search(QUERIES, 20, mask)
    assert torch.equal(found.scores, truth.scores)
    chosen = ItemMask.all(NUM_ROWS) if mask is None else mask
    rows = found.item_rows.numpy()
    assert (chosen.allows(rows.clip(0).ravel()) | (rows.ravel() < 1)).all()
    for query, scores in zip(QUERIES, truth.scores, strict=True):
        one = index.search_one(query, 20, chosen)
        assert one.scores.tolist() == scores[scores > -torch.inf].tolist()
        assert chosen.allows(one.item_rows).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [7, 64])
@pytest.mark.parametrize("k", [5, 599])
def test_one_query_finds_what_a_batch_does_among_items_that_rounding_orders(
    kind: str, dim: int, k: int
) -> None:
    """A batch and one query are products of two kinds, which add up in two orders."""
    items, query = near_ties(600, dim)
    index, everything = made(kind, items), ItemMask.all(600)
    found = as_lists(index.search_one(query, k, everything), k)
    for batch in (query[None], query.expand(40, -1)):
        lists = index.search(batch, k, everything)
        for row in range(0, len(batch), 13):
            beside = TopK(*(part[row : row + 1] for part in lists))
            assert_same_lists(found, beside, 1e-3 if kind == "ivf_sq8" else rounding(dim))


@pytest.mark.parametrize("kind", KINDS)
def test_bad_queries_are_refused(kind: str) -> None:
    index = made(kind)
    nowhere = torch.full((DIM,), torch.nan)
    with pytest.raises(ValueError, match="query 0 holds NaN or infinity"):
        index.search(nowhere[None], 3)
    with pytest.raises(ValueError, match="query 0 holds NaN or infinity"):
        index.search_one(nowhere, 3, ItemMask.all(NUM_ROWS))
    with pytest.raises(ValueError, match=rf"queries must be \[B, {DIM}\]"):
        index.search(torch.zeros(1, 4), 3)
    with pytest.raises(ValueError, match="mask covers 9 item rows"):
        index.search(QUERIES, 3, ItemMask.all(9))
    assert (index.dim, index.num_item_rows, index.device.type) == (DIM, NUM_ROWS, "cpu")


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_items_that_are_not_finite_are_refused(bad: float) -> None:
    items = ITEMS[:50].clone()
    items[7, 3] = bad
    with pytest.raises(ValueError, match="item row 7 holds NaN"):
        ExactIndex(items)
    with pytest.raises(ValueError, match=r"vectors must be \[N, D\]"):
        ExactIndex(items[0])


def test_the_kind_follows_the_number_of_items() -> None:
    config = FaissIndexConfig(flat_max_rows=1_000)
    assert [config.kind_for(count) for count in (1_000, 1_001)] == ["flat", "ivf_sq8"]
    assert isinstance(index_of(ITEMS[:1_000]), ExactIndex)


def test_a_gpu_holds_the_most_that_fits() -> None:
    assert gpu_layout(10_000_000, 64, 4 << 30) == (torch.float32, True)
    assert gpu_layout(10_000_000, 64, 3 << 30) == (torch.float32, False)
    assert gpu_layout(10_000_000, 64, 2 << 30) == (torch.float16, False)
    assert gpu_layout(10_000_000, 64, 1 << 30) == (None, False)


def test_half_copies_hold_vectors_of_like_lengths_at_any_scale() -> None:
    vectors = torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
    vectors[0] = 0
    for scale in (1e-6, 1.0, 1e6):
        copied = copy_halves(vectors * scale)
        assert copied is not None
        back = copied.float() * (vectors.abs().max() / copied.float().abs().max())
        torch.testing.assert_close(back, vectors, rtol=2e-3, atol=2e-3)
    vectors[7] *= 1e-4
    assert copy_halves(vectors) is None
    assert copy_halves(torch.zeros(5, 3)) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("share", [None, 0.5, 0.01])
def test_a_gpu_finds_what_the_cpu_does(share: float | None) -> None:
    mask = None
    if share is not None:
        mask = ItemMask(np.random.default_rng(2).random(NUM_ROWS) < share)
    index = index_of(ITEMS, device="cuda")
    assert index.device.type == "cuda"
    truth = exact_top_k(QUERIES, ITEMS, 20, mask)
    with without("topk_search"):
        plain = index.search(QUERIES, 20, mask)
    for found in (index.search(QUERIES, 20, mask), plain):
        assert torch.equal(found.item_rows, truth.item_rows)
        assert torch.equal(found.scores, truth.scores)


def integer_vectors(seed: int, *shape: int) -> torch.Tensor:
    """Small integers, so that every product is exact and ties abound."""
    return torch.from_numpy(np.random.default_rng(seed).integers(-2, 3, shape)).float()


@settings(deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_items=st.integers(1, 60),
    k=st.integers(1, 70),
    share=st.floats(0, 1),
    max_scores=st.sampled_from([1, 7, 40, 10_000]),
)
def test_agrees_with_ranking_the_whole_product(seed, num_items, k, share, max_scores):
    queries, items = integer_vectors(seed, 4, 6), integer_vectors(seed + 1, num_items, 6)
    mask = ItemMask(np.random.default_rng(seed).random(num_items) < share)
    found = exact_top_k(queries, items, k, mask, max_scores=max_scores)
    truth = top_k_of_scores(queries @ items.T, k, mask)
    assert torch.equal(found.item_rows, truth.item_rows)
    assert torch.equal(found.scores, truth.scores)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_query_that_is_not_finite_is_refused(bad):
    queries = torch.zeros(3, 4)
    queries[1, 2] = bad
    with pytest.raises(ValueError, match="query 1 holds NaN or infinity"):
        exact_top_k(queries, torch.zeros(9, 4), 3)
