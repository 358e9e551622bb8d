"""Users who were away for long are ranked by their own history if validation loses nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from recsys.data.batch import Jagged
from recsys.data.dataset import Sequences
from recsys.data.top_k import OneList, TopK
from recsys.fitting.blend import fit_blend
from recsys.fitting.source_lists import SourceLists
from recsys.retrieval.blend.candidate_features import blended_lists
from recsys.retrieval.blend.config import BlendConfig
from recsys.retrieval.blend.demand import (
    DAY,
    DEMAND,
    LAPSED,
    PARTS,
    days_away,
    longest_absences,
    of_their_own,
)
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.one import OneQueryBlend, one_of_their_own

NUM_QUERIES, NUM_ITEMS = 400, 30


def test_days_away_end_with_train_and_are_of_splits_by_time_alone() -> None:
    log = Sequences(
        item_rows=np.array([1, 2, 1, 3, 2]),
        offsets=np.array([0, 0, 2, 4, 5]),
        train_end=np.array([0, 1, 3, 4]),
        validation_end=np.array([0, 2, 4, 5]),
        times=np.array([2, 9, 5, 8, 7]) * DAY,
    )
    days = days_away(log, np.array([1, 3, 4]))
    assert days is not None
    assert days.tolist() == [3.0, 0.0, 0.0]
    earlier = replace(log, times=np.array([2, 9, 5, 4, 7]) * DAY)
    assert days_away(earlier, np.array([1, 3])) is None
    assert days_away(replace(log, times=np.full(5, DAY)), np.array([1, 3])) is None
    assert days_away(replace(log, times=None), np.array([1])) is None
    assert longest_absences(torch.zeros(60)) == []
    assert longest_absences(torch.arange(60.0)[:49]) == []
    assert longest_absences(torch.arange(101.0)) == [95.0, 100.0]


def world(*, own: bool) -> SourceLists:
    """Popular items are chosen; by the twenty users who were away longest their own, or those."""
    drawn = torch.Generator().manual_seed(5)
    shape = (NUM_QUERIES, NUM_ITEMS)
    popular = torch.arange(1, NUM_ITEMS + 1).expand(shape).contiguous()
    rows = torch.stack([torch.randperm(NUM_ITEMS, generator=drawn) + 1 for _ in range(NUM_QUERIES)])
    scores = torch.linspace(1, 0, NUM_ITEMS).expand(shape).contiguous()
    days = torch.arange(NUM_QUERIES) * 1.0
    place = torch.multinomial(0.5 ** torch.arange(8.0), NUM_QUERIES, True, generator=drawn)
    targets = popular.gather(1, place[:, None])[:, 0]
    if own:
        targets = torch.where(days >= NUM_QUERIES - 20, rows[:, 0], targets)
    return SourceLists(
        {"popularity": TopK(scores, popular), "ease": TopK(scores, rows)},
        Jagged.one_each(targets),
        torch.full((NUM_QUERIES,), 5),
        torch.arange(NUM_QUERIES) % 2,
        torch.ones(NUM_ITEMS + 1),
        days_away=days,
    )


@pytest.mark.parametrize("own", [True, False])
def test_the_days_are_those_that_lose_nothing(own: bool, tmp_path: Path) -> None:
    examples = world(own=own)
    found = fit_blend(examples, BlendConfig(), {}, "ndcg@10")
    # If those who were away longest lose by it, it is for users who are away for even longer.
    days = 379.05 if own else 399.0
    assert found.document["absence"]["days"] == pytest.approx(days)
    assert found.document["absence"]["tried"] == pytest.approx(379.05)
    assert bool(found.document["absence"]["difference"] > 0) is own
    found.blend.served.save(tmp_path / "blend")
    again = LearnedBlend.load(tmp_path / "blend").as_of(1_000 * DAY)
    assert again.lapsed_before == pytest.approx((1_000 - days) * DAY)
    first = found.blend.merged(examples, 10).item_rows[:, 0]
    lapsed = first[-20:] == examples.lists["ease"].item_rows[-20:, 0]
    assert bool(lapsed.all()) is own
    assert bool((first[:-20] <= 8).all())
    never = fit_blend(examples, BlendConfig(absent_days=math.inf), {}, "ndcg@10")
    assert never.document["absence"] == {"days": math.inf, "set": True}


@pytest.mark.parametrize("k", [5, 12])
def test_one_query_of_a_lapsed_user_is_merged_as_in_a_batch(k: int) -> None:
    """The own list has ten items: beyond them what is popular counts."""
    drawn = torch.Generator().manual_seed(1)
    weights = torch.rand((2, 2, 4), generator=drawn)
    blend = LearnedBlend(BlendConfig(), ("popularity", "ease"), weights, torch.ones(2))
    blend.demand = torch.randn(PARTS, len(DEMAND), generator=drawn)
    blend = blend.with_demand(torch.rand(NUM_ITEMS + 1, len(DEMAND), generator=drawn))
    counts = torch.ones(NUM_ITEMS + 1)
    lists = {
        "popularity": TopK(torch.linspace(1, 0, 20)[None], torch.arange(1, 21)[None]),
        "ease": TopK(torch.linspace(2, 1, 10)[None], torch.arange(15, 25)[None]),
    }
    own, lengths = of_their_own(lists, torch.tensor([7]), torch.tensor([True]), k)
    whole = blended_lists(blend, own, lengths, counts, k)
    single = {name: OneList.of(top) for name, top in lists.items()}
    found, num_events = one_of_their_own(single, 7, k)
    assert num_events == int(lengths[0]) == (LAPSED if k <= 10 else 7)
    one = OneQueryBlend(blend, counts).merge(found, num_events, k)
    assert one.item_rows.tolist() == whole.item_rows[0].tolist()
    np.testing.assert_allclose(one.scores, whole.scores[0].numpy(), rtol=1e-5)
