"""One query merged alone, against the batched form."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.top_k import OneList, TopK
from recsys.kernels.choice import without
from recsys.models.names import REPEATS
from recsys.retrieval.blend.candidate_features import blended_lists
from recsys.retrieval.blend.config import BlendConfig
from recsys.retrieval.blend.demand import DEMAND, PARTS
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.one import OneQueryBlend
from recsys.retrieval.blend.source_features import FEATURES
from tests.recsys.testing.refusals import assert_refused
from tests.recsys.testing.tensors import rounding

pytestmark = pytest.mark.numerics

SOURCES = ("near", "far", REPEATS.name, "dull")
NUM_ROWS = 40


def learned(
    generator: torch.Generator,
    *,
    odds: float = 1.0,
    demand: bool = False,
    bounds: tuple[float, ...] = (1.0, 5.0),
    own: bool = False,
) -> LearnedBlend:
    config = BlendConfig(item_bounds=bounds, new_item_odds=odds, non_negative=False)
    shape = (len(bounds) + 2 + own, len(SOURCES), len(FEATURES))
    weights = torch.randn(shape, generator=generator)
    weights = weights if len(weights) > 2 else weights[:1].repeat(2, 1, 1)  # of one kind
    blend = LearnedBlend(config, SOURCES, weights, torch.rand(len(SOURCES), generator=generator))
    if demand:
        blend.demand = torch.randn(PARTS, len(DEMAND), generator=generator)
        blend = blend.with_demand(torch.rand(NUM_ROWS, len(DEMAND), generator=generator))
    return blend


def list_of(generator: torch.Generator, length: int, *, ties: bool) -> TopK:
    """A list with repeats, holes, equal scores, and rows beyond what the counts know."""
    rows = torch.randint(-1, NUM_ROWS + 4, (1, length), generator=generator)
    scores = torch.randn(1, length, generator=generator)
    scores = (scores * 2).round() if ties else scores
    scores = scores.sort(descending=True).values
    return TopK(scores.masked_fill(rows < 1, -torch.inf), rows)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    ties=st.booleans(),
    odds=st.sampled_from([1.0, 8.0]),
    demand=st.booleans(),
    bounds=st.sampled_from([(), (1.0, 5.0)]),
    own=st.booleans(),
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    num_events=st.integers(-2, 12),
    k=st.integers(1, 60),
    off=st.sampled_from([[], ["one_query"]]),
)
def test_one_query_is_merged_as_in_a_batch(
    seed: int,
    ties: bool,
    odds: float,
    demand: bool,
    bounds: tuple[float, ...],
    own: bool,
    lengths: list[int],
    num_events: int,
    k: int,
    off: list[str],
) -> None:
    generator = torch.Generator().manual_seed(seed)
    blend = learned(generator, odds=odds, demand=demand, bounds=bounds, own=own)
    counts = torch.randint(0, 8, (NUM_ROWS,), generator=generator)
    names = SOURCES[: len(lengths)][::-1]
    lists = {
        name: list_of(generator, length, ties=ties)
        for name, length in zip(names, lengths, strict=True)
    }
    batch = blended_lists(blend, lists, torch.tensor([num_events]), counts, k)
    alone = {
        name: OneList(top.scores[0].numpy(), top.item_rows[0].numpy())
        for name, top in lists.items()
    }
    with without(*off):
        one = OneQueryBlend(blend, counts).merge(alone, num_events, k)
    there = batch.item_rows[0] > 0
    assert one.item_rows.tolist() == batch.item_rows[0][there].tolist()
    assert one.ranks.tolist() == batch.source_ranks[0][there].tolist()
    largest = 1 + float(np.abs(one.contributions).max(initial=0))
    close = rounding(len(SOURCES) * len(FEATURES), size=largest)
    np.testing.assert_allclose(one.scores, batch.scores[0][there], rtol=0, atol=close)
    np.testing.assert_allclose(one.contributions, batch.contributions[0][there], rtol=0, atol=close)
    assert one.scores.dtype == one.contributions.dtype == np.float32


def test_what_cannot_be_merged_is_refused_alike() -> None:
    blend = OneQueryBlend(learned(torch.Generator().manual_seed(0)), torch.ones(NUM_ROWS))
    top = OneList(np.array([2.0, 1.0], np.float32), np.array([3, 4]))
    bad = OneList(np.array([2.0, np.nan], np.float32), top[1])
    assert_refused(
        {
            r"\['unheard'\] have no weights": lambda: blend.merge({"unheard": top}, 1, 5),
            "'far' scores item row 4 of query 0 nan": lambda: blend.merge(
                {"near": top, "far": bad}, 1, 5
            ),
            "no source to blend": lambda: blend.merge({}, 1, 5),
        }
    )
