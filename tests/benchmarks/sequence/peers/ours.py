"""Our sequence model, an epoch at a time.

python ours.py HISTORIES.npz DIM BLOCKS HEADS LENGTH
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import torch
from protocol import Histories, Rows, best_unseen, serve

from recsys.data.dataset import Sequences
from recsys.data.windows import BatchOrder, training_windows, window_batch
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from recsys.training.optim import AdamWConfig, adamw

BATCH = 32
LEARNING_RATE = 4e-3


def main() -> None:
    histories = Histories.load(Path(sys.argv[1]))
    dim, blocks, heads, length = map(int, sys.argv[2:6])
    torch.manual_seed(0)
    users = histories.users()
    train_end = histories.offsets[1:] - 1
    sequences = Sequences(
        histories.item_rows, histories.offsets, train_end, histories.offsets[1:], times=None
    )
    train_rows = np.concatenate([items[:-1] for items in users])
    counts = torch.from_numpy(np.bincount(train_rows, minlength=histories.num_items + 1))
    model = SequenceModel(
        SequenceConfig(
            embedding_dim=dim,
            num_blocks=blocks,
            num_heads=heads,
            hidden_dim=dim,
            max_length=length,
            dropout=0.3,
            label_smoothing=0.1,
            backend="torch",
        ),
        FeatureSizes(num_item_rows=histories.num_items + 1, content_dim=0),
        ItemCatalogue.empty(histories.num_items + 1),
        counts,
    )
    optimizer = adamw(model, AdamWConfig(tables="dense"))
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE
    windows = training_windows(sequences, "train", length)
    order = BatchOrder(len(windows), BATCH, 0)
    steps = -(-len(windows) // BATCH)
    done = 0

    def train_epoch() -> float:
        nonlocal done
        model.train()
        begin = time.process_time()
        for step in range(done, done + steps):
            chosen = order.indices(step)
            loss = model.loss(window_batch(sequences, windows.starts[chosen], windows.ends[chosen]))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        done += steps
        return time.process_time() - begin

    def lists() -> Rows:
        model.eval()
        starts = np.maximum(histories.offsets[:-1], train_end - length)
        scores = model.score(window_batch(sequences, starts, train_end))
        return best_unseen(scores.numpy(), [items[:-1] for items in users])

    serve(train_epoch, lists, histories.held_out())


if __name__ == "__main__":
    main()
