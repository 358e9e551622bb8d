from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Sequences
from recsys.fitting.own_model import check_retriever
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from tests.recsys.models.parity import NUM_ITEM_ROWS, catalogue, queries, trained
from tests.recsys.testing import synthetic
from tests.recsys.testing.tensors import rounding

SMALL = SequenceConfig(
    embedding_dim=16,
    hidden_dim=32,
    max_length=8,
    dropout=0.1,
    id_dropout=0.1,
    label_smoothing=0.0,
    backend="torch",
)
INPUTS = FeatureSizes(num_item_rows=NUM_ITEM_ROWS, content_dim=4, num_categories=3)
# Two blocks at most, 16 and 32 wide, over 8 events, then cosines.
CLOSE = rounding(2 * (16 + 32 + 8) + 16)
VARIANTS = {
    "attention": SMALL,
    "convolution": replace(SMALL, block="convolution", num_blocks=2, num_heads=2),
    "hstu": replace(SMALL, block="hstu", num_heads=2, time_buckets=16),
    "attention with times": replace(SMALL, num_blocks=2, num_heads=2, time_buckets=16),
    "calendar": replace(SMALL, calendar_days=30.0),
    "sampled": replace(SMALL, num_uniform_negatives=20),
    "members": replace(SMALL, num_members=2, num_heads=2, calendar_days=30.0),
}


def built(config: SequenceConfig, *, bare: bool = False, num_item_rows: int = NUM_ITEM_ROWS):
    inputs = FeatureSizes(num_item_rows=num_item_rows) if bare else INPUTS
    known = ItemCatalogue.empty(num_item_rows) if bare else catalogue()
    return SequenceModel(config, inputs, known, torch.ones(num_item_rows, dtype=torch.int64))


def fit(sequences: Sequences, seed: int, config: SequenceConfig) -> SequenceModel:
    torch.manual_seed(seed)
    return trained(sequences, built(config), seed, steps=3)


@pytest.mark.parametrize("name", VARIANTS)
def test_keeps_the_contract_of_every_retriever(
    name: str, tastes: Sequences, tmp_path: Path
) -> None:
    check_retriever(
        lambda seed: fit(tastes, seed, VARIANTS[name]),
        lambda path: SequenceModel.load(path, catalogue()),
        JaggedBatch({"history": queries(tastes)["history"]}),
        NUM_ITEM_ROWS,
        tmp_path,
    )


@pytest.mark.parametrize("name", ["attention", "hstu", "sampled"])
def test_the_last_item_decides_where_order_is_everything(name: str) -> None:
    """All items lie on one hidden cycle: the successor of the last item is the one right answer."""
    world = synthetic.markov_world(num_users=120, num_items=20, events_per_user=10)
    sequences = synthetic.sequences(world)
    torch.manual_seed(2)
    model = trained(
        sequences, built(VARIANTS[name], bare=True, num_item_rows=21), seed=2, steps=150
    )
    positions, batch = sequences.label_positions("test"), queries(sequences)
    scores, seen = model.score(batch), batch["history"]
    scores[seen.segments(), seen.values] = -torch.inf
    assert (scores.argmax(1) == sequences.labels(positions)).float().mean() > 0.95


@pytest.mark.numerics
@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_positions_do_not_see_what_comes_after_them_and_the_last_may_be_read_alone(
    tastes: Sequences, config: SequenceConfig
) -> None:
    """The vector after an event is the same whether or not more events follow."""
    model = fit(tastes, seed=1, config=config)
    history = Jagged.from_lists([[1, 3, 5, 7], [2, 4]])
    times = torch.tensor([10, 500, 90_000, 90_001, 7, 8])
    inputs = model.all_item_inputs()[history.values]
    whole = model.encoder(inputs, history, times)
    kept = torch.tensor([0, 1, 4])
    part = model.encoder(inputs[kept], Jagged.from_lists([[1, 3], [2]]), times[kept])
    torch.testing.assert_close(whole[kept], part)
    for lists in ([[1, 3, 5, 7], [2], [9, 8]], [[4, 2, 6]]):
        moments = [[10 * row * row for row in rows] for rows in lists]
        history, times = Jagged.from_lists(lists), Jagged.from_lists(moments).values
        inputs = model.all_item_inputs()[history.values].chunk(config.num_members, dim=1)
        for member, share in zip(model.encoder.members, inputs, strict=True):
            alone = member.only_last(share, history, times)
            last = member(share, history, times)[history.offsets[1:] - 1]
            torch.testing.assert_close(alone, last, atol=CLOSE, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("name", ["attention", "members", "sampled"])
def test_rivals_alone_stand_against_a_label(name: str) -> None:
    torch.manual_seed(0)
    model = built(VARIANTS[name]).eval()
    # Item 30 is read but is no rival.
    batch = JaggedBatch({"history": Jagged.from_lists([[3, 30, 5, 7], [9, 3]])})
    counted = batch["history"]._replace(values=torch.tensor([0, 0, 1, 1, 0, 1]))
    batch = JaggedBatch({**batch.features, "history.counted": counted})
    softmax_over, members = torch.arange(1, 20), model.config.num_members
    found = model.loss(batch, softmax_over)
    # Slowly: each member's cosines of each position's query with the items it has not seen.
    vectors = model.normalized(model.all_item_inputs()) * members**0.5
    expected = []
    for history, label in (([3, 30], 5), ([3, 30, 5], 7), ([9], 3)):
        query = model.query_vectors(JaggedBatch({"history": Jagged.from_lists([history])}))
        query = query[0] * members**0.5
        stand = [row for row in range(1, 20) if row not in history]
        for part in range(members):
            one, items = query.chunk(members)[part], vectors.chunk(members, dim=1)[part]
            scores = items[stand] @ one / model.config.temperature
            expected.append(-scores.log_softmax(0)[stand.index(label)])
    torch.testing.assert_close(found, torch.stack(expected).mean(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", VARIANTS)
def test_histories_of_any_kind_are_trained_and_scored(name: str) -> None:
    mixed = [list(range(1, 40)), [], [2, 2], [3, 4], [1, 999, 2, 0, 3]]
    for lists in ([[]], [[], [1]], [[0, 0, 0]], [[5] * 30], mixed):
        model = built(VARIANTS[name])
        batch = JaggedBatch({"history": Jagged.from_lists(lists)})
        loss = model.loss(batch)
        loss.backward()
        assert torch.isfinite(loss)
        for parameter in model.parameters():
            assert parameter.grad is None or torch.isfinite(parameter.grad).all()
        assert torch.isfinite(model.eval().score(batch)[:, 1:]).all()
