"""Experts stay evenly used by lists as they are served, whatever training draws and hides."""

import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.moe.routing import ExpertUse, expert_use
from recsys.models.item_tower import ItemCatalogue
from recsys.models.ranker.batch import Candidates
from recsys.models.ranker.config import RankerConfig, RankerInputs
from recsys.models.ranker.model import Ranker
from recsys.training import expert_balance
from recsys.training.expert_balance import item_router, served_items
from recsys.training.optim import AdamWConfig, adamw
from recsys.training.passes import RankerFitConfig
from recsys.training.ranker_fit import ranker_loss
from recsys.training.ranking_examples import RankingExamples

NUM_ITEMS, NUM_QUERIES, LENGTH = 200, 80, 60
CPU = torch.device("cpu")


def examples() -> RankingExamples:
    """Lists in which a third of the items stands in front, what is taken among them."""
    generator = torch.Generator().manual_seed(0)

    def drawn(first: int, last: int, count: int) -> torch.Tensor:
        lists = [torch.randperm(last - first, generator=generator) for _ in range(NUM_QUERIES)]
        return torch.stack(lists)[:, :count] + first

    rows = torch.cat([drawn(1, 70, 10), drawn(70, NUM_ITEMS, LENGTH - 10)], dim=1)
    labels = torch.zeros(NUM_QUERIES, LENGTH, 1)
    labels[:, 3] = 1
    numbers = torch.randn(NUM_QUERIES, LENGTH, 2, generator=generator)
    history = Jagged.one_each(rows[:, 0])
    candidates = Candidates(rows, numbers)
    return RankingExamples(JaggedBatch({"history": history}), history, candidates, labels)


def ranker(**changes: object) -> Ranker:
    torch.manual_seed(1)
    inputs = RankerInputs(
        num_item_rows=NUM_ITEMS,
        tasks=("next",),
        content_dim=8,
        candidate_dense=("score", "other"),
        base_feature="score",
    )
    settings: dict[str, object] = {
        "embedding_dim": 8, "key_dim": 8, "hidden_dim": 8, "num_experts": 4, "tile_rows": 32,
        "id_dropout": 0.95, "backend": "torch",
    }  # fmt: skip
    config = RankerConfig(**(settings | changes))  # type: ignore[arg-type]
    content = torch.randn(NUM_ITEMS, 8) + torch.linspace(-1, 1, 8)
    content[:70] += torch.linspace(1, -1, 8)  # What stands in front is of a kind.
    return Ranker(config, inputs, ItemCatalogue(content, ItemCatalogue.empty(NUM_ITEMS).categories))


def use_after_training(found: RankingExamples, *, settled: bool) -> ExpertUse:
    everyone, model = torch.arange(NUM_QUERIES), ranker()
    fit = RankerFitConfig(num_candidates=LENGTH, num_hard=10, num_random=5, batch_size=40)
    loss_at = ranker_loss(model, found, everyone, fit, 0, CPU)
    router = item_router(model)
    assert router is not None
    assert not router.moves_by_batch
    if not settled:
        router.moves_by_batch, router.settle = True, lambda *rows, **how: None  # type: ignore
    optimizer = adamw(model.train(), AdamWConfig())
    for group in optimizer.param_groups:
        group["lr"] = 2e-3
    for step in range(50):
        optimizer.zero_grad()
        loss_at(step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert model.training
    with torch.no_grad():
        routing = model.eval()(found.whole_batch(everyone)).routing
    assert routing is not None
    return expert_use(routing.experts, model.config.num_experts)


def test_lists_as_served_use_experts_evenly_where_batches_are_drawn_otherwise() -> None:
    found = examples()
    by_batch, settled = (use_after_training(found, settled=one) for one in (False, True))
    assert by_batch.max_violation > 0.15
    assert settled.max_violation <= 0.1
    assert settled.dead_experts == 0


def test_a_large_catalogue_is_stood_for_by_items_drawn_as_often_as_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = torch.cat([torch.ones(3000), torch.arange(2, 3002), torch.zeros(50)]).long()[None]
    items, counts = served_items(rows)
    assert items.tolist() == list(range(1, 3002))
    assert counts.tolist() == [3000] + [1] * 3000
    monkeypatch.setattr(expert_balance, "MAX_ITEMS", 1000)
    items, counts = served_items(rows)
    assert int(counts.sum()) == 1000
    assert abs(int(counts[0]) - 500) < 60
    assert len(items) < 600
