from dataclasses import replace

import pytest
import torch

from recsys.layers.moe.routing import expert_use
from recsys.models.ranker.config import RankerConfig
from recsys.models.ranker.model import Ranker
from tests.recsys.testing.ranking_worlds import (
    TASKS,
    RankingWorld,
    RankingWorldConfig,
    drawn_to_one_expert,
    ranking_world,
    routing_information,
)

CONFIG = RankingWorldConfig(seed=5, num_requests=12_000, num_users=500, num_items=400)


@pytest.fixture(scope="module")
def world() -> RankingWorld:
    return ranking_world(CONFIG)


def test_the_same_seed_is_the_same_world(world):
    again, other = ranking_world(CONFIG), ranking_world(replace(CONFIG, seed=6))
    assert torch.equal(again.labels, world.labels)
    assert torch.equal(again.histories.values, world.histories.values)
    assert not torch.equal(other.labels, world.labels)


def test_feedback_over_relevance_is_the_planted_curve(world):
    happened, expected = world.labels.double().sum((0, 2)), world.relevance.sum((0, 2))
    curve = torch.tensor(CONFIG.examination).double()
    torch.testing.assert_close(happened / expected, curve, atol=0.02, rtol=0)


def test_better_items_stand_higher_so_feedback_alone_misleads(world):
    quality = world.quality[world.items].mean(0)
    assert bool((quality.diff() < 0).all())


def test_tasks_conflict(world):
    """A purchase's taste is the negative of a click's; a like's has little to do with either."""
    logits = torch.logit(world.relevance) - 0.5 * world.quality[world.items].double()[..., None]
    tastes = logits - logits.mean((0, 1))
    click, like, purchase = tastes.flatten(0, 1).T
    assert float(torch.corrcoef(torch.stack([click, purchase]))[0, 1]) < -0.99
    assert abs(float(torch.corrcoef(torch.stack([click, like]))[0, 1])) < 0.35


def test_history_is_what_was_clicked_before(world):
    user = int(world.users.mode().values)
    requests = (world.users == user).nonzero()[:, 0]
    clicked: list[int] = []
    for request in requests.tolist():
        begin, end = world.histories.offsets[request], world.histories.offsets[request + 1]
        assert world.histories.values[begin:end].tolist() == clicked[-CONFIG.max_history :]
        clicks = world.labels[request, :, 0] > 0
        clicked += (world.items[request][clicks] + 1).tolist()


def test_the_true_chances_have_the_highest_auc(world):
    requests = torch.arange(6_000, 12_000)
    truth = world.aucs(world.relevance[requests].flatten(0, 1), requests)
    noisy = torch.logit(world.relevance[requests].flatten(0, 1))
    noisy = noisy + torch.randn(noisy.shape, generator=torch.Generator().manual_seed(0))
    worse = world.aucs(noisy, requests)
    assert all(0.8 < truth[task] < 1 and worse[task] < truth[task] for task in TASKS)


def test_a_sparse_ranker_learns_relevance_slots_and_finds_the_domains(world):
    torch.manual_seed(0)
    config = RankerConfig(
        embedding_dim=16, key_dim=8, max_history=5, num_cross_layers=1, num_experts=4, top_k=1,
        hidden_dim=16, head_dim=8, backend="torch",
    )  # fmt: skip
    model = drawn_to_one_expert(Ranker(config, world.inputs, world.catalogue).train())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(200):
        draws = torch.randint(10_000, (128,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        batch, feedback = world.batch(draws)
        model.loss_of(model(batch), feedback).backward()
        optimizer.step()
    test = torch.arange(10_000, 12_000)
    with torch.no_grad():
        ranked = model.eval()(world.batch(test)[0])
        curve = model.examination.curve()
    assert min(world.aucs(ranked.logits, test).values()) > 0.65
    assert bool((curve.diff() < 0).all())
    torch.testing.assert_close(curve, torch.tensor(CONFIG.examination), atol=0.12, rtol=0)
    experts = ranked.routing.experts
    assert expert_use(experts, 4).dead_experts == 0
    assert routing_information(experts[:, 0], world.domain_of_impressions(test)) > 0.9
