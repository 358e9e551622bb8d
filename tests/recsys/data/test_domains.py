import numpy as np
import torch

from recsys.data.dataset import Sequences
from recsys.data.windows import (
    domain_positions,
    domain_window_batch,
    domain_windows,
    training_windows,
    window_batch,
)
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel

# Items 1..4 are of the domain, 5..9 are not; user 3 never is in it but at the first event.
EVENTS = [[1, 5, 2, 6, 7], [5, 6, 7, 3], [4, 5, 6]]
OWN = np.arange(10) < 5


def sequences() -> Sequences:
    offsets = np.cumsum([0, 0, *map(len, EVENTS)])
    return Sequences(
        item_rows=np.concatenate(EVENTS),
        offsets=offsets,
        train_end=offsets[1:],
        validation_end=offsets[1:],
    )


def test_positions_are_the_labels_that_are_items_of_the_domain():
    found = domain_positions(sequences(), "train", OWN)
    assert sequences().item_rows[found].tolist() == [2, 3]
    assert domain_positions(sequences(), "train", ~OWN).tolist() == [1, 3, 4, 6, 7, 10, 11]


def test_windows_without_a_label_of_the_domain_are_left_out():
    windows = training_windows(sequences(), "train", 8)
    kept = domain_windows(sequences(), windows, OWN)
    assert kept.starts.tolist() == [0, 5]
    short = domain_windows(sequences(), training_windows(sequences(), "train", 2), OWN)
    # Neighbours share an event: 5 ends one window and begins the next, where it is no label.
    assert list(zip(short.starts, short.ends, strict=True)) == [(0, 3), (6, 9)]


def test_the_loss_counts_labels_of_the_domain_alone():
    torch.manual_seed(0)
    config = SequenceConfig(
        embedding_dim=8, hidden_dim=8, max_length=8, dropout=0.0, id_dropout=0.0, backend="torch",
        label_smoothing=0.0, leave_out_history=False,
    )  # fmt: skip
    model = SequenceModel(
        config, FeatureSizes(num_item_rows=10), ItemCatalogue.empty(10), torch.ones(10).long()
    )
    windows = training_windows(sequences(), "train", 8)
    counted = domain_window_batch(sequences(), windows.starts, windows.ends, OWN)
    assert counted["history.counted"].values.tolist() == [1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0]
    # Each label alone, as the last event of its own sequence.
    alone = [
        model.score(window_batch(sequences(), np.array([start]), np.array([label])))[0]
        for start, label in ((0, 2), (5, 8))
    ]
    logits = torch.stack(alone)[:, 1:] / config.temperature
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([2, 3]) - 1)
    torch.testing.assert_close(model.loss(counted), expected, rtol=1e-5, atol=1e-5)
