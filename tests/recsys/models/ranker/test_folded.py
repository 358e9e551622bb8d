"""A ranker's folded weights say what its layers say, and give way to adapters."""

from dataclasses import replace

import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.models.ranker.config import RankerConfig, RankerInputs
from recsys.models.ranker.folded import folded
from recsys.models.ranker.model import Ranker
from recsys.models.ranker.network import RankingBatch
from tests.recsys.testing.catalogues import drawn_catalogue

pytestmark = pytest.mark.numerics

INPUTS = RankerInputs(
    num_item_rows=200,
    tasks=("click", "like", "purchase"),
    content_dim=6,
    user_features={"segment": 4},
    candidate_dense=("price", "score"),
)
SMALL = RankerConfig(
    trunk="sparse",
    embedding_dim=8, key_dim=4, max_history=6, hidden_dim=16, head_dim=8, tile_rows=32,
    backend="torch",
)  # fmt: skip


def ranker(config: RankerConfig = SMALL, inputs: RankerInputs = INPUTS) -> Ranker:
    torch.manual_seed(0)
    model = Ranker(config, inputs, drawn_catalogue(200, 6))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                # Norms and biases as a trained model has them.
                weight.add_(0.3 * torch.randn_like(weight))
            elif not bool(weight.any()):
                weight.normal_(std=0.3)
    return model.eval()


def asked(count: int = 70, events: int = 4, seed: int = 1) -> RankingBatch:
    generator = torch.Generator().manual_seed(seed)
    history = torch.randint(1, 200, (events,), generator=generator).tolist()
    queries = JaggedBatch(
        {"history": Jagged.from_lists([history]), "user.segment": Jagged.from_lists([[2]])}
    )
    rows = torch.randint(1, 200, (count,), generator=generator)
    numbers = torch.randn(count, 2, generator=generator)
    return RankingBatch(queries, Jagged(rows, torch.tensor([0, count])), numbers)


@pytest.mark.parametrize("events", [0, 1, 9])
@pytest.mark.parametrize("base", ["", "score"])
def test_folded_logits_are_those_of_training(events, base):
    for changes in (
        {},
        {"top_k": 1, "num_experts": 4},
        {"num_cross_layers": 0},
        {"trunk": "dense"},
    ):
        model = ranker(replace(SMALL, **changes), replace(INPUTS, base_feature=base))
        batch = asked(events=events)
        layers = model.layers(), model.all_item_inputs(), model.all_item_routing()
        assert folded(*layers) is not None
        with torch.no_grad():
            torch.testing.assert_close(model.logits(batch), model(batch).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("events", [0, 1, 40])
def test_one_query_has_the_bits_of_a_batch(events):
    model, batch = ranker(), asked(events=events)
    features = {
        name: int(one.values) for name, one in batch.queries.features.items() if name != "history"
    }
    for _ in range(2):
        with torch.inference_mode():
            reader = model.reader_of_one(batch.queries["history"].values, features)
            found = model.score_candidates(reader, batch.candidates.values, batch.candidate_dense)
        assert torch.equal(found, model.score(batch))


def test_loaded_weights_are_folded_anew():
    model, other, batch = ranker(), ranker(), asked()
    model.logits(batch)
    with torch.no_grad():
        other.heads[0][0].weight.mul_(2)
    model.load_state_dict(other.state_dict())
    assert torch.equal(model.logits(batch), other.logits(batch))
    assert not torch.equal(model.logits(batch), ranker().logits(batch))
