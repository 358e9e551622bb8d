"""Users who were away for long are ranked by their own history if validation loses little."""

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
    OWN,
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
    assert days[:2].tolist() == [3.0, 0.0]
    assert days[2].isnan()
    earlier = replace(log, times=np.array([2, 9, 5, 4, 7]) * DAY)
    assert days_away(earlier, np.array([1, 3])) is None
    assert days_away(replace(log, times=np.full(5, DAY)), np.array([1, 3])) is None
    assert days_away(replace(log, times=None), np.array([1])) is None
    new = torch.full((60,), torch.nan)
    assert longest_absences(torch.zeros(60)) == []
    assert longest_absences(torch.cat([torch.arange(49.0), new])) == []
    found = longest_absences(torch.cat([torch.arange(101.0), new]))
    assert found == pytest.approx([70, 80, 90, 95, 100])


def world(*, num_own: int) -> SourceLists:
    """Popular items are chosen; by the users who were away longest, so many, their own."""
    drawn = torch.Generator().manual_seed(5)
    shape = (NUM_QUERIES, NUM_ITEMS)
    popular = torch.arange(1, NUM_ITEMS + 1).expand(shape).contiguous()
    rows = torch.stack([torch.randperm(NUM_ITEMS, generator=drawn) + 1 for _ in range(NUM_QUERIES)])
    scores = torch.linspace(1, 0, NUM_ITEMS).expand(shape).contiguous()
    days = torch.arange(NUM_QUERIES) * 1.0
    place = torch.multinomial(0.5 ** torch.arange(8.0), NUM_QUERIES, True, generator=drawn)
    targets = popular.gather(1, place[:, None])[:, 0]
    targets = torch.where(days >= NUM_QUERIES - num_own, rows[:, 0], targets)
    return SourceLists(
        {"popularity": TopK(scores, popular), "ease": TopK(scores, rows)},
        Jagged.one_each(targets),
        torch.full((NUM_QUERIES,), 5),
        torch.arange(NUM_QUERIES) % 2,
        torch.ones(NUM_ITEMS + 1),
        days_away=days,
    )


@pytest.mark.parametrize(
    ("num_own", "num_lapsed", "days"), [(160, 120, 279.3), (20, 80, 319.2), (0, 40, 359.1)]
)
def test_the_days_are_the_fewest_that_lose_little(
    num_own: int, num_lapsed: int, days: float, tmp_path: Path
) -> None:
    examples = world(num_own=num_own)
    found = fit_blend(examples, BlendConfig(), {}, "ndcg@10")
    assert found.document["absence"]["days"] == pytest.approx(days)
    assert found.document["absence"]["kept"] >= 0.9
    found.blend.served.save(tmp_path / "blend")
    again = LearnedBlend.load(tmp_path / "blend").as_of(1_000 * DAY)
    assert again.lapsed_before == pytest.approx((1_000 - days) * DAY)
    first = found.blend.merged(examples, 10).item_rows[:, 0]
    lapsed = first == examples.lists["ease"].item_rows[:, 0]
    assert bool(lapsed[NUM_QUERIES - num_lapsed :].all())
    assert float(lapsed[: NUM_QUERIES - num_lapsed].float().mean()) < 0.5
    never = fit_blend(examples, BlendConfig(absent_days=math.inf), {}, "ndcg@10")
    assert never.document["absence"] == {"days": math.inf, "set": True}


def test_weights_of_a_visit_rank_during_it_and_after_a_long_absence(tmp_path: Path) -> None:
    """People who come back take what is popular, and then what goes with their history."""
    examples = world(num_own=0)
    examples.days_away[:100] = 0.01
    of_visits = world(num_own=NUM_QUERIES)
    found = fit_blend(examples, BlendConfig(), {}, "ndcg@10", visits=of_visits)
    # Queries of train's last half hour lose by it here, so that no visit has weights of its own.
    assert found.document["absence"]["days"] is None
    assert found.blend.served.own is None
    examples.targets.values[:100] = examples.lists["ease"].item_rows[:100, 0]
    found = fit_blend(examples, BlendConfig(), {}, "ndcg@10", visits=of_visits)
    assert found.document["absence"]["days"] == pytest.approx(359.1)
    found.blend.served.save(tmp_path / "blend")
    again = LearnedBlend.load(tmp_path / "blend")
    assert again.own is not None
    assert torch.equal(again.own, found.blend.served.own)
    own = again.own[again.sources.index("popularity")]
    assert not own.any()
    first = found.blend.merged(examples, 10).item_rows[:, 0]
    assert torch.equal(first[:100], examples.lists["ease"].item_rows[:100, 0])
    assert bool((first[100:300] <= 8).all())


def test_a_visit_goes_on_for_half_an_hour() -> None:
    lists = {
        "popularity": OneList.of(TopK(torch.ones(1, 9), torch.arange(1, 10)[None])),
        "ease": OneList.of(TopK(torch.linspace(2, 1, 9)[None], torch.arange(3, 12)[None])),
    }
    config = BlendConfig(absent_days=10.0)
    plain = LearnedBlend(config, ("popularity", "ease"), torch.ones(2, 2, 4), torch.ones(2))
    own = LearnedBlend(BlendConfig(), ("ease",), torch.ones(2, 1, 4), torch.ones(1))
    now, history = 100 * DAY, np.array([4, 5])

    def length(learned: LearnedBlend, seconds: int | None, moment: int | None = now) -> int:
        blend = OneQueryBlend(learned.as_of(now), torch.ones(12))
        times = None if seconds is None else np.array([now - 50 * DAY, now - seconds])
        read, found = blend.read(lists, history, times, moment, 5)
        assert ("popularity" in read) is (found != OWN)
        return found

    with_own = plain.with_own(own)
    assert [length(with_own, one) for one in (5, 1_799, 1_800, 9 * DAY)] == [OWN, OWN, 2, 2]
    assert [length(plain, one) for one in (5, 9 * DAY, 11 * DAY)] == [2, 2, OWN]
    assert length(with_own, 11 * DAY) == OWN
    # Without times, and for items like another, nothing is known of visits.
    assert length(with_own, None) == length(with_own, 5, None) == 2


@pytest.mark.parametrize("has_own", [False, True])
@pytest.mark.parametrize("k", [5, 12])
def test_one_query_of_a_lapsed_user_is_merged_as_in_a_batch(k: int, has_own: bool) -> None:
    """The own list has ten items: beyond them what is popular counts."""
    drawn = torch.Generator().manual_seed(1)
    weights = torch.rand((2, 2, 4), generator=drawn)
    blend = LearnedBlend(BlendConfig(), ("popularity", "ease"), weights, torch.ones(2))
    blend.demand = torch.randn(PARTS, len(DEMAND), generator=drawn)
    blend = blend.with_demand(torch.rand(NUM_ITEMS + 1, len(DEMAND), generator=drawn))
    if has_own:
        weights = torch.rand((2, 1, 4), generator=drawn)
        blend = blend.with_own(LearnedBlend(BlendConfig(), ("ease",), weights, torch.tensor([3.0])))
    counts = torch.ones(NUM_ITEMS + 1)
    lists = {
        "popularity": TopK(torch.linspace(1, 0, 20)[None], torch.arange(1, 21)[None]),
        "ease": TopK(torch.linspace(2, 1, 10)[None], torch.arange(15, 25)[None]),
    }
    own, lengths = of_their_own(lists, torch.tensor([7]), torch.tensor([True]), k)
    whole = blended_lists(blend, own, lengths, counts, k)
    single = {name: OneList.of(top) for name, top in lists.items()}
    found, num_events = one_of_their_own(single, 7, k)
    assert num_events == int(lengths[0]) == (OWN if k <= 10 else 7)
    one = OneQueryBlend(blend, counts).merge(found, num_events, k)
    assert one.item_rows.tolist() == whole.item_rows[0].tolist()
    np.testing.assert_allclose(one.scores, whole.scores[0].numpy(), rtol=1e-5)
