"""Lists by compiled functions are those of numpy and torch, on generated requests."""

import os
from dataclasses import replace

import numpy as np
import pytest

from recsys.kernels.choice import without
from recsys.kernels.one_query.op import functions
from recsys.retrieval.ranked import RankedItems
from serving.recommend import Recommender
from serving.schemas import Request

pytestmark = pytest.mark.numerics

NUM_REQUESTS = int(os.environ.get("RECSYS_API_CASES", "500")) // 2


def generated(rng: np.random.Generator) -> Request:
    """Draw a request of a user or session, with what may be left out."""
    items = [f"item-{row}" for row in rng.integers(1, 41, 12)]
    fields: dict[str, object] = {"k": int(rng.integers(1, 45))}
    if rng.random() < 0.7:
        fields["user_id"] = f"user-{rng.integers(1, 14)}"
    if rng.random() < 0.5:
        fields["session"] = items[: rng.integers(0, 12)]
    if rng.random() < 0.3:
        fields["exclude"] = items[:5]
    if rng.random() < 0.2:
        fields["filter"] = {"categories": [["even", "odd", "tens"][rng.integers(3)]]}
    elif rng.random() < 0.1:
        fields["candidates"] = items
    return Request.model_validate(fields)


@pytest.mark.parametrize("ranker", [True, False])
def test_same_lists_as_by_numpy_and_torch(ranked, ranker):
    assert functions() is not None, "a C compiler is needed for the tests"
    recommender = Recommender(ranked if ranker else replace(ranked, ranker=None))
    rng = np.random.default_rng(0)
    for _ in range(NUM_REQUESTS):
        request = generated(rng)
        found = recommender.make(request, now_ms=1_700_000_000_000, seed=1)
        with without("one_query"):
            expected = recommender.make(request, now_ms=1_700_000_000_000, seed=1)
        assert found.reply.degraded == expected.reply.degraded
        lists, expected_lists = (one.listed.candidates.lists for one in (found, expected))
        assert lists.keys() == expected_lists.keys()
        for name, (scores, rows) in expected_lists.items():
            assert lists[name].item_rows.tolist() == rows.tolist()
            np.testing.assert_allclose(lists[name].scores, scores, rtol=0, atol=1e-5)
        for one, other in zip(found.reply.items, expected.reply.items, strict=True):
            assert (one.item_id, one.source) == (other.item_id, other.source)
            assert one.score == pytest.approx(other.score, rel=1e-5, abs=1e-5)


def test_same_leading_sources_as_by_numpy():
    rng = np.random.default_rng(0)
    for _ in range(300):
        shape = rng.integers(1, 30), rng.integers(1, 7)
        # Equal contributions and ranks, and items of no source.
        shares = (rng.integers(-2, 3, shape) / 2).astype(np.float32)
        rows, scores = np.arange(shape[0]), np.zeros(shape[0], np.float32)
        ranked = RankedItems(
            rows, scores, tuple("abcdef"[: shape[1]]), rng.integers(0, 4, shape), shares
        )
        found = ranked.leading("rules")
        with without("one_query"):
            assert found == ranked.leading("rules")
