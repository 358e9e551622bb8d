"""A ranker learns from lists that were shown: what was left, and how often a place is looked at."""

import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.models.item_tower import ItemCatalogue
from recsys.models.ranker.batch import Candidates
from recsys.models.ranker.config import RankerConfig, RankerInputs
from recsys.models.ranker.model import Ranker
from recsys.training.passes import RankerFitConfig
from recsys.training.ranking_examples import NOT_SHOWN, RankingExamples
from recsys.training.shown_lists import (
    Impressions,
    fit_examination,
    impression_examples,
    shown_losses,
    usable,
)

NUM_ITEMS, NUM_LISTS, NUM_SLOTS = 30, 6_000, 4
EXAMINED = torch.tensor([1.0, 0.6, 0.4, 0.2])
CPU = torch.device("cpu")


def ranker(num_slots: int = NUM_SLOTS, base: str = "lead") -> Ranker:
    torch.manual_seed(0)
    config = RankerConfig(
        trunk="dense", embedding_dim=8, key_dim=4, hidden_dim=8, max_history=4, tile_rows=32
    )
    inputs = RankerInputs(
        num_item_rows=NUM_ITEMS,
        tasks=("next", "buy"),
        candidate_dense=("lead", "noise"),
        base_feature=base,
        num_slots=num_slots,
    )
    return Ranker(config, inputs, ItemCatalogue.empty(NUM_ITEMS))


def lists() -> RankingExamples:
    """Let a policy put the better items higher, except in three lists of ten."""
    generator = torch.Generator().manual_seed(1)
    quality = torch.randn(NUM_ITEMS, generator=generator)
    rows = torch.stack(
        [torch.randperm(NUM_ITEMS - 1, generator=generator)[:8] + 1 for _ in range(NUM_LISTS)]
    )
    best = quality[rows[:, :NUM_SLOTS]].sort(dim=1, descending=True).indices
    explored = torch.rand(NUM_LISTS, 1, generator=generator) < 0.3
    order = torch.where(explored, torch.arange(NUM_SLOTS), best)
    shown = rows[:, :NUM_SLOTS].gather(1, order)
    slots = torch.arange(NUM_SLOTS).repeat(NUM_LISTS)
    looked = torch.rand(NUM_LISTS * NUM_SLOTS, generator=generator) < EXAMINED[slots]
    chance = torch.sigmoid(2 * quality[shown.flatten()])
    draws = torch.rand(2, len(chance), generator=generator)
    taken = looked & (draws[0] < chance)
    labels = torch.stack([taken, taken & (draws[1] < 0.5)], dim=1).float()
    numbers = torch.randn(NUM_LISTS, 8, 2, generator=generator)
    numbers[:, :, 0] = 0
    each = Jagged.one_each(torch.ones(NUM_LISTS, dtype=torch.int64))
    offsets = torch.arange(NUM_LISTS + 1) * NUM_SLOTS
    return impression_examples(
        JaggedBatch({"history": each}),
        each,
        Candidates(rows, numbers),
        Impressions(Jagged(shown.flatten(), offsets), slots, labels),
    )


def test_what_is_no_candidate_is_left_out_and_the_rest_keeps_slot_and_outcome() -> None:
    rows = torch.tensor([[5, 7, 9], [1, 2, -1], [4, 5, 6]])
    shown = Impressions(
        Jagged.from_lists([[9, 8, 5], [2], []]),
        torch.tensor([0, 1, 2, 3]),
        torch.tensor([[1.0], [1.0], [0.0], [float("nan")]]),
    )
    each = Jagged.from_lists([[1], [2], [3]])
    candidates = Candidates(rows, torch.zeros(3, 3, 1))
    found = impression_examples(JaggedBatch({"history": each}), each, candidates, shown)
    assert found.slots is not None
    assert found.slots.tolist() == [[2, -1, 0], [-1, 3, -1], [-1, -1, -1]]
    labels = found.labels[:, :, 0].nan_to_num(-1)
    assert labels.tolist() == [[0, -1, 1], [-1, -1, -1], [-1, -1, -1]]
    assert usable(found).tolist() == [0, 1]


def test_a_step_reads_what_was_shown_and_depends_on_the_step_alone() -> None:
    found, model = lists(), ranker()
    fit_examination(model, found, usable(found))
    config = RankerFitConfig(num_candidates=40, batch_size=32)
    loss_at = shown_losses(model.eval(), found, usable(found), config, 3, CPU)
    again = shown_losses(model, found, usable(found), config, 3, CPU)
    assert torch.equal(loss_at(5), again(5))
    assert not torch.equal(loss_at(5), loss_at(6))
    # Labels of what was not shown are not read.
    other = found.labels.masked_fill((found.slots == NOT_SHOWN)[:, :, None], 1.0)
    changed = found._replace(labels=other)
    assert torch.equal(shown_losses(model, changed, usable(found), config, 3, CPU)(5), loss_at(5))
    model.train()
    loss_at(5).backward()  # type: ignore[no-untyped-call]
    assert model.shown_level is not None
    assert model.shown_level.grad is not None
    assert all(
        parameter.grad is None or bool(parameter.grad.isfinite().all())
        for parameter in model.parameters()
    )
