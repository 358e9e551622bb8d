"""Types of events in a history: what they are worth where they decide, and when none are read."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from recsys.data.batch import JaggedBatch
from recsys.data.dataset import Sequences
from recsys.fitting.spec import load_trained
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from tests.recsys.models.parity import trained

NUM_ITEMS = 20
VIEW, CART, PURCHASE = 1, 2, 3
SIZES = FeatureSizes(num_item_rows=NUM_ITEMS + 1, event_types=("view", "cart", "purchase"))
UNTYPED = replace(SIZES, event_types=())
CONFIG = SequenceConfig(
    embedding_dim=16,
    hidden_dim=32,
    max_length=8,
    dropout=0.0,
    id_dropout=0.0,
    label_smoothing=0.0,
    leave_out_history=False,
    backend="torch",
)


def carts(num_users: int = 600, seed: int = 0) -> Sequences:
    """Users view at random and cart one item; the purchase at the end is what goes with that one.

    What goes with an item follows it on one hidden cycle; views before and after say nothing.
    """
    rng = np.random.default_rng(seed)
    cycle = rng.permutation(NUM_ITEMS) + 1
    follower = np.zeros(NUM_ITEMS + 1, np.int64)
    follower[cycle] = np.roll(cycle, -1)
    length = 5
    rows = rng.integers(1, NUM_ITEMS + 1, (num_users, length))
    types = np.full((num_users, length), VIEW)
    carted = rng.integers(1, length - 1, num_users), np.arange(num_users)
    types[carted[1], carted[0]] = CART
    rows[:, -1], types[:, -1] = follower[rows[carted[1], carted[0]]], PURCHASE
    offsets = np.concatenate([[0], length * np.arange(num_users + 1)])
    ends = offsets[1:]
    held_out = np.where(np.arange(num_users + 1) > num_users * 2 // 3, 1, 0)
    return Sequences(
        item_rows=rows.flatten(),
        offsets=offsets,
        train_end=ends - held_out,
        validation_end=ends,
        event_types=types.flatten().astype(np.uint8),
    )


def built(sizes: FeatureSizes = SIZES) -> SequenceModel:
    counts = torch.ones(sizes.num_item_rows, dtype=torch.int64)
    return SequenceModel(CONFIG, sizes, ItemCatalogue.empty(sizes.num_item_rows), counts)


def next_purchase(model: SequenceModel, sequences: Sequences) -> float:
    """Measure NDCG@10 of the held-out purchases."""
    positions = sequences.label_positions("validation")
    scores = model.score(sequences.queries(positions, max_history=8))
    labels = sequences.labels(positions)[:, None]
    ranks = 1 + (scores > scores.gather(1, labels)).sum(1)
    return float(torch.where(ranks <= 10, 1 / torch.log2(ranks + 1.0), 0.0).mean())


def test_the_next_purchase_follows_from_what_is_in_the_cart() -> None:
    sequences, found = carts(), []
    for reads in (False, True):
        torch.manual_seed(0)
        model = built(SIZES if reads else UNTYPED)
        found.append(next_purchase(trained(sequences, model, seed=0, steps=400), sequences))
    assert found[1] > 1.05 * found[0]


def test_one_type_has_the_parameters_and_the_bits_of_none() -> None:
    """A log of one type has no types, a model of no types neither reads nor holds any."""
    sequences = carts(40)
    bare = replace(sequences, event_types=None)
    states = []
    for log in (bare, sequences):
        torch.manual_seed(0)
        model = trained(log, built(UNTYPED), seed=0, steps=5)
        assert model.event_types is None
        states.append(model.state_dict())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_an_unknown_type_is_read_as_no_type(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sequences = carts(40)
    trained(sequences, built(), seed=0, steps=20).save(tmp_path)
    model = SequenceModel.load(tmp_path, ItemCatalogue.empty(NUM_ITEMS + 1))
    positions = sequences.label_positions("validation")
    asked = sequences.queries(positions, max_history=8)
    without = JaggedBatch({name: asked[name] for name in asked if name != "history.types"})
    scores = model.score(without)
    for unknown in (0, 4, 99):
        strange = asked["history.types"]._replace(
            values=torch.full_like(asked["history.types"].values, unknown)
        )
        other = JaggedBatch({**asked.features, "history.types": strange})
        assert torch.equal(model.score(other), scores)
    assert not torch.equal(model.score(asked), scores)


def test_a_release_without_types_continues_over_a_log_that_gained_some() -> None:
    before = built(UNTYPED).state_dict()
    model = built()
    load_trained(model, before)
    assert model.event_types is not None
    assert not model.event_types.weight.any()
    grown = built(replace(SIZES, event_types=tuple("abcde")))
    torch.nn.init.ones_(model.event_types.weight)
    load_trained(grown, model.state_dict())
    assert grown.event_types is not None
    assert grown.event_types.weight.sum(1).tolist() == [16, 16, 16, 16, 0, 0]
