"""Every kind of index answers alike: known lists, masks, padding, and what it refuses."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from recsys.data.top_k import ItemMask, TopK
from recsys.retrieval.exact import exact_top_k
from recsys.retrieval.faiss_index import FaissIndex, build_index
from recsys.retrieval.faiss_library import FaissIndexConfig
from recsys.retrieval.index import ExactIndex, copy_halves, gpu_layout, index_of, tune_effort
from recsys.retrieval.sources import VectorIndex
from tests.recsys.retrieval.recall import measure_recall
from tests.recsys.testing.refusals import assert_refused
from tests.recsys.testing.tensors import (
    as_lists,
    assert_same_lists,
    near_ties,
    rounding,
    top_k_of_scores,
)

pytestmark = pytest.mark.numerics

NUM_ROWS, DIM = 3_000, 16
KINDS = ("exact", "flat", "ivf_sq8")


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
@pytest.mark.parametrize("share", [None, 0.98, 0.5, 0.1, 0.01, 0.0])
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
def test_bad_queries_and_items_are_refused(kind: str) -> None:
    index, spoilt = made(kind), ITEMS[:50].clone()
    spoilt[7, 3] = torch.inf
    grown = {} if kind == "exact" else {"item row 3007 holds NaN": lambda: index.add(spoilt)}
    for bad in (torch.nan, torch.inf):
        query = torch.full((DIM,), bad)
        assert_refused(
            {
                "query 0 holds NaN or infinity": lambda query=query: index.search(query[None], 3),
                "^.*query 0 holds NaN": lambda query=query: index.search_one(
                    query, 3, ItemMask.all(NUM_ROWS)
                ),
            }
        )
    assert_refused(
        {
            "mask covers 9 item rows": lambda: index.search(QUERIES, 3, ItemMask.all(9)),
            "item row 7 holds NaN": lambda: made(kind, spoilt),
            **grown,
        }
    )
    assert (index.dim, index.num_item_rows, index.device.type) == (DIM, NUM_ROWS, "cpu")


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
        back = copied.float() * (vectors.abs().max() / copied.float().abs().max())
        torch.testing.assert_close(back, vectors, rtol=2e-3, atol=2e-3)
    vectors[7] *= 1e-4
    assert copy_halves(vectors) is None
    assert copy_halves(torch.zeros(5, 3)) is None


@settings(deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_items=st.integers(1, 60),
    k=st.integers(1, 70),
    share=st.floats(0, 1),
    max_scores=st.sampled_from([1, 7, 40, 10_000]),
)
def test_agrees_with_ranking_the_whole_product(seed, num_items, k, share, max_scores):
    queries, items = whole_numbers(seed, 4, 6), whole_numbers(seed + 1, num_items, 6)
    mask = ItemMask(np.random.default_rng(seed).random(num_items) < share)
    found = exact_top_k(queries, items, k, mask, max_scores=max_scores)
    truth = top_k_of_scores(queries @ items.T, k, mask)
    assert torch.equal(found.item_rows, truth.item_rows)
    assert torch.equal(found.scores, truth.scores)


APPROXIMATE = ("flat", "ivf_sq8")
NUM_CLUSTERED, CLUSTERED_DIM = 6000, 16


def clustered(seed: int = 0) -> torch.Tensor:
    """Unit vectors around 60 centres, a fifth of the variance within a cluster."""
    generator = torch.Generator().manual_seed(seed)
    centres = normalize(torch.randn(60, DIM, generator=generator))
    cluster = torch.randint(0, 60, (NUM_CLUSTERED,), generator=generator)
    noise = torch.randn(NUM_CLUSTERED, DIM, generator=generator) / DIM**0.5
    return normalize(centres[cluster] + 0.5 * noise)


CLUSTERED = clustered()
NEAR_CLUSTERED = normalize(CLUSTERED[100:200] + 0.05 * clustered(seed=3)[:100])


def faiss_of(kind: str, **config: int) -> FaissIndex:
    return build_index(CLUSTERED, FaissIndexConfig(kind=kind, **config))


def test_tuning_takes_the_least_effort_that_it_tried_and_no_more_than_it_may():
    index = faiss_of("ivf_sq8", effort=1)
    # Queries between the clusters need several lists.
    queries = normalize(torch.randn(100, CLUSTERED_DIM, generator=torch.Generator().manual_seed(5)))
    reached = tune_effort(index, queries, CLUSTERED, target=0.99)
    assert reached >= 0.99
    assert index.effort > 3
    index.effort //= 2
    assert measure_recall(index, queries, CLUSTERED) < 0.99
    index.effort = 1
    assert tune_effort(index, queries, CLUSTERED, target=0.99, most=3) < 0.99
    assert index.effort == 3


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_a_copy_that_grows_leaves_the_original_as_it_was(kind):
    index = build_index(CLUSTERED[:5000], FaissIndexConfig(kind=kind))
    before = index.search(NEAR_CLUSTERED, 20)
    copy = index.copy()
    copy.add(CLUSTERED[5000:])
    assert (index.num_item_rows, copy.num_item_rows) == (5000, NUM_CLUSTERED)
    assert all(map(torch.equal, index.search(NEAR_CLUSTERED, 20), before))
    found = copy.search(CLUSTERED[5000:5050], 1).item_rows.squeeze(1)
    assert found.tolist() == [*range(5000, 5050)]
    rows = torch.tensor([1, 4999, 5000, 5999])
    assert torch.allclose(copy.vectors(rows), CLUSTERED[rows], atol=1e-3)
    assert (copy.kind, copy.effort) == (index.kind, index.effort)
    del index
    assert copy.search(NEAR_CLUSTERED, 5).item_rows.shape == (100, 5)


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_a_loaded_index_answers_like_the_saved_one(kind, tmp_path):
    index = faiss_of(kind, effort=37)
    digest = index.save(tmp_path / "items.faiss")
    loaded = FaissIndex.load(tmp_path / "items.faiss", sha256=digest, num_threads=1)
    assert (loaded.kind, loaded.effort, loaded.num_threads) == (kind, 37, 1)
    mask = ItemMask(np.random.default_rng(5).random(NUM_CLUSTERED) < 0.5)
    for chosen in (None, mask):
        ours, theirs = (one.search(NEAR_CLUSTERED, 40, chosen) for one in (index, loaded))
        assert all(map(torch.equal, ours, theirs))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["items.faiss", "items.faiss.json"]


def test_a_query_that_finds_too_few_items_is_repeated_in_more_lists(monkeypatch):
    monkeypatch.setattr("recsys.retrieval.faiss_index.exact_top_k", None)
    index = build_index(ITEMS, FaissIndexConfig(kind="ivf_sq8", effort=1))
    # A list holds about 39 items.
    found = index.search(QUERIES, 150)
    assert int(found.item_rows.min()) > 0
    # Eight of 76 lists hold a tenth of the items, and more of the best.
    assert measure_recall(index, QUERIES, ITEMS, 150) > 0.2
