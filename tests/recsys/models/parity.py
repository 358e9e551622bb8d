"""Items that content tells apart by parity, and a short training on windows of events."""

from __future__ import annotations

from typing import TypeVar

import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Sequences
from recsys.data.windows import BatchOrder, training_windows, window_batch
from recsys.models.generative.model import GenerativeModel
from recsys.models.item_tower import ItemCatalogue
from recsys.models.sequence.model import SequenceModel

NUM_ITEM_ROWS = 41
Model = TypeVar("Model", SequenceModel, GenerativeModel)


def catalogue(num_item_rows: int = NUM_ITEM_ROWS) -> ItemCatalogue:
    """Content says the parity, the category too; row 0 has neither."""
    parity = torch.arange(num_item_rows) % 2
    content = torch.stack([parity, 1 - parity, parity, 1 - parity], dim=1).float()
    content[0] = 0
    lists = [[], *([int(value) + 1] for value in parity[1:])]
    return ItemCatalogue(content, Jagged.from_lists(lists))


def queries(sequences: Sequences) -> JaggedBatch:
    """What was known before each test event, with times."""
    labels = sequences.label_positions("test")
    return window_batch(sequences, sequences.offsets[sequences.users_of(labels)], labels)


@torch.enable_grad()
def trained(sequences: Sequences, model: Model, seed: int, steps: int = 60) -> Model:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    windows = training_windows(sequences, "train", model.config.max_length)
    order = BatchOrder(len(windows), 16, seed)
    for step in range(steps):
        chosen = order.indices(step)
        loss = model.loss(window_batch(sequences, windows.starts[chosen], windows.ends[chosen]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()
