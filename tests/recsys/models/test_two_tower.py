from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Sequences
from recsys.data.windows import BatchOrder
from recsys.fitting.own_model import check_retriever
from recsys.models.configs import TwoTowerConfig
from recsys.models.item_tower import FeatureSizes
from recsys.models.two_tower import TwoTower
from tests.recsys.models.parity import NUM_ITEM_ROWS, catalogue
from tests.recsys.testing.tensors import rounding

pytestmark = pytest.mark.numerics

SMALL = TwoTowerConfig(
    embedding_dim=16,
    hidden_dim=32,
    max_history=8,
    dropout=0.1,
    id_dropout=0.2,
    label_smoothing=0.0,
    num_uniform_negatives=20,
    backend="torch",
)
# Up to 8 events, towers of 16 and 32, then cosines.
CLOSE = rounding(8 + 2 * (16 + 32) + 16)
INPUTS = FeatureSizes(
    num_item_rows=NUM_ITEM_ROWS, content_dim=4, num_categories=3, user_features={"taste": 3}
)


def taste_feature(sequences: Sequences) -> dict[str, np.ndarray]:
    return {"taste": np.arange(sequences.num_user_rows) % 2 + 1}


def queries(sequences: Sequences, split: str = "test") -> JaggedBatch:
    positions = sequences.label_positions(split)
    return sequences.queries(positions, max_history=8, user_features=taste_feature(sequences))


@torch.enable_grad()
def fit(
    sequences: Sequences, seed: int, config: TwoTowerConfig = SMALL, steps: int = 60
) -> TwoTower:
    torch.manual_seed(seed)
    counts = np.bincount(sequences.item_rows[sequences.label_positions("train")], minlength=41)
    model = TwoTower(config, INPUTS, catalogue(), torch.from_numpy(counts))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    positions = sequences.label_positions("train")
    order = BatchOrder(len(positions), 64, seed)
    for step in range(steps):
        chosen = positions[order.indices(step)]
        batch = sequences.queries(chosen, max_history=8, user_features=taste_feature(sequences))
        loss = model.loss(batch, sequences.labels(chosen))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@pytest.mark.parametrize("num_uniform", [0, NUM_ITEM_ROWS])
def test_keeps_the_contract_of_every_retriever(
    tastes: Sequences, tmp_path: Path, num_uniform: int
) -> None:
    config = replace(SMALL, num_uniform_negatives=num_uniform)
    check_retriever(
        lambda seed: fit(tastes, seed, config, steps=5),
        lambda path: TwoTower.load(path, catalogue()),
        queries(tastes),
        NUM_ITEM_ROWS,
        tmp_path,
    )


def test_an_item_training_never_met_is_placed_by_its_content(tastes: Sequences) -> None:
    """Rows 41 and 42 were added later; even users should prefer the even one and odd the odd."""
    trained = fit(tastes, seed=1)
    grown = TwoTower(SMALL, INPUTS, catalogue(43))
    grown.load_state_dict(trained.state_dict())
    scores = grown.eval().score(queries(tastes))
    assert scores.shape[1] == 43
    is_odd = tastes.labels(tastes.label_positions("test")) % 2 == 1
    assert ((scores[:, 41] > scores[:, 42]) == is_odd).all()
    items = JaggedBatch(
        {"item": Jagged.from_lists([[0]]), "item.categories": Jagged.from_lists([[2]])}
    )
    vector = grown.item_vectors(items, torch.tensor([[1.0, 0.0, 1.0, 0.0]]))
    torch.testing.assert_close(vector[0], grown.all_item_vectors()[41])


def test_scores_are_cosines_and_follow_the_weights(tastes: Sequences) -> None:
    model = fit(tastes, seed=1, steps=5)
    vectors = model.query_vectors(queries(tastes))
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(vectors)))
    before = model.score(queries(tastes))
    torch.testing.assert_close(before[:, 1:], vectors @ model.all_item_vectors()[1:].T)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    model.train()
    model.loss(queries(tastes), torch.arange(1, len(vectors) + 1) % 40 + 1).backward()
    optimizer.step()
    model.eval()
    fresh = TwoTower(SMALL, INPUTS, catalogue())
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(model.score(queries(tastes)), fresh.eval().score(queries(tastes)))
    assert not torch.equal(model.score(queries(tastes)), before)


def test_only_the_latest_max_history_events_are_read(tastes: Sequences) -> None:
    tail, user = list(range(3, 11)), Jagged.one_each(torch.zeros(2, dtype=torch.int64))
    batch = JaggedBatch({"history": Jagged.from_lists([[20, 30, *tail], tail]), "user.taste": user})
    long, short = fit(tastes, seed=1, steps=5).score(batch)
    # A row's place in a matrix product may change its last bit.
    torch.testing.assert_close(long, short, rtol=0, atol=CLOSE)
