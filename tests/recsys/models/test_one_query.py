"""Scores of one request are those of a batch, whatever the sizes, up to rounding."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.top_k import ItemMask, best_of_one
from recsys.kernels.choice import without
from recsys.models import content_similarity
from recsys.models.configs import ContentSimilarityConfig, TwoTowerConfig
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.content_similarity import OneContentHistory as OneContent
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from recsys.models.sequence.one import OneHistory
from recsys.models.two_tower import OneQuery, TwoTower
from tests.recsys.testing.catalogues import drawn_catalogue
from tests.recsys.testing.tensors import rounding

pytestmark = pytest.mark.numerics

NUM_ITEM_ROWS = 30
CLOSE = rounding(6 * 64)
INPUTS = FeatureSizes(num_item_rows=NUM_ITEM_ROWS, content_dim=6)
SEQUENCE = SequenceConfig(embedding_dim=16, hidden_dim=24, max_length=7, backend="torch")
KINDS = [
    SEQUENCE,
    replace(SEQUENCE, num_heads=2, time_buckets=5, calendar_days=30.0),
    replace(SEQUENCE, num_members=2, member_blocks=("attention", "hstu")),
    replace(SEQUENCE, num_blocks=2, time_buckets=5),
]


@pytest.fixture(autouse=True, params=[[], ["one_query"]], ids=["compiled", "torch"])
def seeded(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad(), without(*request.param):
        yield


def catalogue() -> ItemCatalogue:
    found = drawn_catalogue(NUM_ITEM_ROWS, 6)
    found.content[5] = 0
    return found


def stirred(model: torch.nn.Module) -> None:
    """Give every weight a value, also those that start at 0 or 1."""
    for weight in model.parameters():
        weight.add_(0.2 * torch.randn_like(weight))
    model.eval()


def history(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.randint(0, NUM_ITEM_ROWS, (length,))
    return rows, 1_700_000_000 + torch.randint(0, 5_000_000, (length,)).cumsum(0)


def batch_of(rows: torch.Tensor, **features: torch.Tensor) -> JaggedBatch:
    offsets = torch.tensor([0, len(rows)])
    named = {name.replace("_", "."): value for name, value in features.items()}
    found = {"history": Jagged(rows, offsets)}
    found |= {name: Jagged(own, torch.tensor([0, len(own)])) for name, own in named.items()}
    return JaggedBatch(found)


@pytest.mark.parametrize("config", KINDS)
@pytest.mark.parametrize("length", [1, 2, 7, 12])
@pytest.mark.parametrize("types_known", [(), ("view", "cart")])
def test_sequence_model(config: SequenceConfig, length: int, types_known: tuple[str, ...]) -> None:
    model = SequenceModel(config, replace(INPUTS, event_types=types_known), catalogue())
    stirred(model)
    one, vectors = OneHistory(model), model.all_item_vectors().T
    rows, times = history(length)
    # The last type came after the model.
    types = torch.arange(length) % 4
    for known in ({}, {"times": times}, {"types": types}, {"times": times, "types": types}):
        named = {f"history_{name}": values for name, values in known.items()}
        expected = model.score(batch_of(rows, **named))[0, 1:]
        found = one.query_vector(rows, known.get("times"), known.get("types")) @ vectors
        torch.testing.assert_close(found[1:], expected, rtol=0, atol=CLOSE)
    known_types = torch.where(types < 3, types, 0)
    same = one.query_vector(rows, times, known_types), one.query_vector(rows, times, types)
    assert torch.equal(*same)


@pytest.mark.parametrize("length", [1, 5, 9])
def test_two_tower(length: int) -> None:
    inputs = replace(
        INPUTS, user_features={"age": 4}, context_features={"hour": 3}, event_types=("view", "cart")
    )
    config = TwoTowerConfig(embedding_dim=16, hidden_dim=24, max_history=6, backend="torch")
    model = TwoTower(config, inputs, catalogue())
    stirred(model)
    rows, _ = history(length)
    features = {"user.age": 3, "context.hour": 1}
    named = {name.replace(".", "_"): torch.tensor([row]) for name, row in features.items()}
    # The last type came after the model.
    types = torch.arange(length) % 4
    for known in (None, types):
        own = named if known is None else {**named, "history_types": known}
        expected = model.query_vectors(batch_of(rows, **own))[0]
        found = OneQuery(model).query_vector(rows, features, known)
        torch.testing.assert_close(found, expected, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("pairs_up_to", [0, 4096])
@pytest.mark.parametrize("rows", [[3], [5], [4, 5, 6, 4, 9, 12], list(range(1, 20))])
def test_content_similarity(
    rows: list[int], pairs_up_to: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_similarity, "PAIRS_UP_TO", pairs_up_to)
    monkeypatch.setattr(content_similarity, "MAX_HISTORY", 8)
    config = ContentSimilarityConfig(history_power=0.7)
    model = ContentSimilarity(config, catalogue().content)
    expected = model.score(batch_of(torch.tensor(rows)))[0]
    one, mask = OneContent(model), ItemMask.all(len(expected))
    torch.testing.assert_close(one.scores(torch.tensor(rows)), expected, rtol=0, atol=CLOSE)
    found = one.best(torch.tensor(rows), mask, 5)
    mask.blank(expected.numpy())
    truth = best_of_one(expected, 5)
    assert found.item_rows.tolist() == truth.item_rows.tolist()
    np.testing.assert_allclose(found.scores, truth.scores, rtol=0, atol=CLOSE)
