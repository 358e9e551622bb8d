import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from recsys.data.top_k import ItemMask
from recsys.retrieval.faiss_index import FaissIndex, build_index
from recsys.retrieval.faiss_library import FaissIndexConfig
from recsys.retrieval.index_recall import tune_effort
from tests.recsys.retrieval.recall import measure_recall

pytestmark = pytest.mark.numerics

KINDS = ("flat", "hnsw", "ivf_sq8")
NUM_ROWS, DIM = 6000, 16


def clustered(num_rows: int = NUM_ROWS, dim: int = DIM, seed: int = 0) -> torch.Tensor:
    """Unit vectors around 60 centres, a fifth of the variance within a cluster."""
    generator = torch.Generator().manual_seed(seed)
    centres = normalize(torch.randn(60, dim, generator=generator))
    cluster = torch.randint(0, 60, (num_rows,), generator=generator)
    noise = torch.randn(num_rows, dim, generator=generator) / dim**0.5
    return normalize(centres[cluster] + 0.5 * noise)


ITEMS = clustered()
QUERIES = normalize(ITEMS[100:200] + 0.05 * clustered(seed=3)[:100])


def index_of(kind: str, **config: int) -> FaissIndex:
    return build_index(ITEMS, FaissIndexConfig(kind=kind, **config))


def test_tuning_takes_the_least_effort_that_it_tried_and_no_more_than_it_may():
    index = index_of("ivf_sq8", effort=1)
    # Queries between the clusters need several lists.
    queries = normalize(torch.randn(100, DIM, generator=torch.Generator().manual_seed(5)))
    reached = tune_effort(index, queries, ITEMS, target=0.99)
    assert reached >= 0.99
    assert index.effort > 3
    index.effort //= 2
    assert measure_recall(index, queries, ITEMS) < 0.99
    index.effort = 1
    assert tune_effort(index, queries, ITEMS, target=0.99, most=3) < 0.99
    assert index.effort == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_that_grows_leaves_the_original_as_it_was(kind):
    index = build_index(ITEMS[:5000], FaissIndexConfig(kind=kind))
    before = index.search(QUERIES, 20)
    copy = index.copy()
    copy.add(ITEMS[5000:])
    assert (index.num_item_rows, copy.num_item_rows) == (5000, NUM_ROWS)
    after = index.search(QUERIES, 20)
    assert torch.equal(after.item_rows, before.item_rows)
    assert torch.equal(after.scores, before.scores)
    assert copy.search(ITEMS[5000:5050], 1).item_rows.squeeze(1).tolist() == [*range(5000, 5050)]
    rows = torch.tensor([1, 4999, 5000, 5999])
    assert torch.allclose(copy.vectors(rows), ITEMS[rows], atol=1e-3)
    assert (copy.kind, copy.effort) == (index.kind, index.effort)
    del index
    assert copy.search(QUERIES, 5).item_rows.shape == (100, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_index_answers_like_the_saved_one(kind, tmp_path):
    index = index_of(kind, effort=37, masked_exact_max_rows=5)
    digest = index.save(tmp_path / "items.faiss")
    loaded = FaissIndex.load(tmp_path / "items.faiss", sha256=digest, num_threads=1)
    assert (loaded.kind, loaded.effort, loaded.num_threads) == (kind, 37, 1)
    mask = ItemMask(np.random.default_rng(5).random(NUM_ROWS) < 0.5)
    for chosen in (None, mask):
        ours, theirs = index.search(QUERIES, 40, chosen), loaded.search(QUERIES, 40, chosen)
        assert torch.equal(ours.item_rows, theirs.item_rows)
        assert torch.equal(ours.scores, theirs.scores)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["items.faiss", "items.faiss.json"]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 7e4])
def test_item_vectors_that_no_index_can_hold_are_refused(bad):
    items = ITEMS[:50].clone()
    items[7, 3] = bad
    with pytest.raises(ValueError, match="item row 7 holds NaN, infinity"):
        build_index(items)
    with pytest.raises(ValueError, match="item row 57 holds NaN, infinity"):
        build_index(ITEMS[:50]).add(items)
