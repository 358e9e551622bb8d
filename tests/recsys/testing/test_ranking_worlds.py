import pytest
import torch

from recsys.layers.moe.routing import expert_use
from recsys.models.ranker.config import RankerConfig
from recsys.models.ranker.model import Ranker
from tests.recsys.testing.ranking_worlds import (
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


def test_feedback_over_relevance_is_the_planted_curve(world):
    happened, expected = world.labels.double().sum((0, 2)), world.relevance.sum((0, 2))
    curve = torch.tensor(CONFIG.examination).double()
    torch.testing.assert_close(happened / expected, curve, atol=0.02, rtol=0)


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
