"""What a blend reads of items themselves: how much they are wanted, lately and ever."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from recsys.data.batch import Jagged
from recsys.data.dataset import Sequences
from recsys.data.top_k import TopK
from recsys.fitting.blend import FittedBlend, fit_blend
from recsys.fitting.source_lists import SourceLists
from recsys.retrieval.blend.config import BlendConfig
from recsys.retrieval.blend.demand import DAY, DEMAND, NEVER, PARTS, demand_before, item_demand
from recsys.retrieval.blend.learned import LearnedBlend

NUM_ITEMS, NUM_QUERIES = 12, 400
NOW = 1_700_000_000


def test_the_features_of_known_events() -> None:
    rows = np.array([1, 1, 2, 5, 0])
    times = NOW - DAY * np.array([0, 30, 60, 10, 0])
    demand = item_demand(rows, times, 4)
    assert demand.shape == (4, len(DEMAND))
    assert demand[0].tolist() == demand[3].tolist() == [0.0] * len(DEMAND)
    thirty = DEMAND.index("events.30d")
    assert float(demand[1, thirty]) == pytest.approx(math.log1p(1 + 0.5))
    assert float(demand[2, thirty]) == pytest.approx(math.log1p(0.25))
    assert float(demand[1, DEMAND.index("events")]) == pytest.approx(math.log1p(2))
    assert float(demand[2, DEMAND.index("age")]) == pytest.approx(math.log1p(60))
    last = [math.log1p(days) - math.log1p(NEVER) for days in (0, 60)]
    assert demand[1:3, DEMAND.index("last")].tolist() == pytest.approx(last)


def test_only_events_before_the_ends_count() -> None:
    sequences = Sequences(
        item_rows=np.array([1, 2, 1, 3]),
        offsets=np.array([0, 0, 2, 4]),
        train_end=np.array([0, 1, 3]),
        validation_end=np.array([0, 2, 4]),
        times=np.array([NOW, NOW + DAY, NOW - DAY, NOW + 2 * DAY]),
    )
    train = demand_before(sequences, sequences.train_end, 5)
    torch.testing.assert_close(train, item_demand(np.array([1, 1]), np.array([NOW, NOW - DAY]), 5))
    assert demand_before(replace(sequences, times=None), sequences.train_end, 5) is None


def world(*, by_demand: bool) -> SourceLists:
    """One list of all items in an order of chance; items wanted lately are chosen, or any."""
    generator = torch.Generator().manual_seed(3)
    order = torch.stack(
        [torch.randperm(NUM_ITEMS, generator=generator) + 1 for _ in range(NUM_QUERIES)]
    )
    scores = torch.linspace(1, 0, NUM_ITEMS).expand(NUM_QUERIES, -1).contiguous()
    times = NOW - DAY * np.arange(NUM_ITEMS) * 20
    demand = item_demand(np.arange(1, NUM_ITEMS + 1), times, NUM_ITEMS + 1)
    odds = -0.7 * torch.arange(NUM_ITEMS) if by_demand else torch.zeros(NUM_ITEMS)
    targets = 1 + torch.multinomial(odds.exp(), NUM_QUERIES, replacement=True, generator=generator)
    return SourceLists(
        {"shuffled": TopK(scores, order)},
        Jagged.one_each(targets),
        torch.arange(NUM_QUERIES) % 5,
        torch.arange(NUM_QUERIES) % 2,
        torch.ones(NUM_ITEMS + 1),
        demand,
    )


def fitted(examples: SourceLists, **changes: bool) -> FittedBlend:
    config = replace(BlendConfig(), **changes)
    return fit_blend(examples, config, {"shuffled": 1.0}, "ndcg@10")


def test_items_that_are_wanted_lately_rise_where_they_are_chosen() -> None:
    examples = world(by_demand=True)
    found = fitted(examples)
    assert found.document["demand"]["read"] is True
    assert found.document["demand"]["difference"] > 0.1
    assert bool((found.blend.merged(examples, 3).item_rows[:, 0] <= 2).all())
    plain = fitted(examples, recent_demand=False)
    assert plain.document["demand"] == {"read": False, "reason": "blend.recent_demand is false"}
    assert plain.blend.served.demand is None


def test_where_it_does_not_help_or_there_are_no_times_it_is_not_read() -> None:
    assert fitted(world(by_demand=False)).document["demand"]["read"] is False
    found = fitted(replace(world(by_demand=True), demand=None))
    assert found.document["demand"] == {"read": False, "reason": "events have no times"}


def test_new_events_change_the_list_without_a_fit() -> None:
    """A blend weighs the events of the last week alone, by 2, and twice that without a history."""
    weights = torch.zeros(PARTS, len(DEMAND))
    weights[:2, 0] = 2.0
    of_lists = torch.zeros(2, 1, 4)
    of_lists[..., 2] = 1.0
    config = BlendConfig()
    weekly = LearnedBlend(config, ("shuffled",), of_lists, torch.ones(1), demand=weights)
    lists = {"shuffled": TopK(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[1, 2, 3]]))}
    before = item_demand(np.array([1, 2, 3]), np.full(3, NOW), 4)
    after = item_demand(np.array([1, 2, 3, 3, 3, 3]), np.full(6, NOW), 4)

    def ranked(demand: torch.Tensor | None, length: int) -> tuple[list[int], list[float]]:
        blend = weekly.with_demand(demand)
        found = blend.blend(lists, 3, history_lengths=torch.tensor([length]))
        return found.item_rows[0].tolist(), found.scores[0].tolist()

    assert ranked(None, 5)[0] == ranked(before, 5)[0] == [1, 2, 3]
    rows, scores = ranked(after, 5)
    assert rows == [3, 1, 2]
    plain = dict(zip(*ranked(None, 5), strict=True))
    assert scores[0] == pytest.approx(plain[3] + 2 * math.log1p(4), rel=1e-5)
    assert ranked(after, 0)[1][0] == pytest.approx(plain[3] + 4 * math.log1p(4), rel=1e-5)


def test_a_blend_that_reads_demand_is_saved_and_read(tmp_path: Path) -> None:
    blend, repeated = (fitted(world(by_demand=True)).blend.served for _ in range(2))
    digest = blend.save(tmp_path / "a")
    again = LearnedBlend.load(tmp_path / "a")
    torch.testing.assert_close(again.odds, blend.odds, rtol=0, atol=0)
    assert repeated.save(tmp_path / "b") == digest
