"""Training with tables that move by rows, through the loop and its checkpoints."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.embedding.collection import EmbeddingBags, TableConfig
from recsys.training.loop import train
from recsys.training.optim import (
    AdamWConfig,
    LoopConfig,
    ScheduleConfig,
    adamw,
)
from recsys.training.progress import SilentTracker

NUM_ROWS = 31


class Quiet:
    def show(self, step, num_steps, **values): ...


class Tower(nn.Module):
    """Item i is followed by item i + 3; pooled history against every item."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        tables = [
            TableConfig(name="item", num_rows=NUM_ROWS, embedding_dim=8, features=("history",)),
            TableConfig(name="out", num_rows=NUM_ROWS, embedding_dim=8, features=("label",)),
        ]
        self.bags = EmbeddingBags(tables, "torch")
        self.query = nn.Linear(8, 8)

    def loss_at(self, step):
        start = torch.arange(step * 5, step * 5 + 12) % 30
        history = JaggedBatch(
            {
                "history": Jagged(
                    (start[:, None] + torch.tensor([0, 3])).flatten() % 30 + 1,
                    torch.arange(0, 25, 2),
                ),
                "label": Jagged.one_each((start + 6) % 30 + 1),
            }
        )
        pooled = self.bags(history)
        scores = self.query(pooled["history"]) @ pooled["label"].T
        return functional.cross_entropy(scores, torch.arange(12))


def config_of(num_steps, **settings):
    defaults = {"schedule": ScheduleConfig(learning_rate=0.02), "checkpoint_every": 5}
    return LoopConfig(num_steps=num_steps, **{**defaults, **settings})


def run(model, num_steps, *, loss_at=None, folder=None, tables="adam", **settings):
    optimizer = adamw(model, AdamWConfig(tables=tables))
    result = train(
        model,
        loss_at or model.loss_at,
        optimizer,
        config_of(num_steps, **settings),
        tracker=SilentTracker(),
        progress=Quiet(),
        checkpoint_dir=folder,
    )
    return optimizer, result


def test_a_step_with_a_bad_loss_moves_no_table():
    model, states = Tower(), {}

    def loss_at(step):
        states[step] = {name: value.clone() for name, value in model.state_dict().items()}
        loss = model.loss_at(step)
        return loss * math.nan if step in (3, 4) else loss

    _, result = run(model, 7, loss_at=loss_at)
    assert result.bad_steps == 2
    for name in states[3]:
        assert torch.equal(states[5][name], states[3][name]), name
        assert not torch.equal(states[6][name], states[5][name]), name


def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path):
    whole = Tower()
    run(whole, 17, folder=tmp_path / "whole")

    def stopped(step):
        if step == 12:
            raise KeyboardInterrupt
        return first.loss_at(step)

    first = Tower()
    with pytest.raises(KeyboardInterrupt):
        run(first, 17, loss_at=stopped, folder=tmp_path / "stopped")
    resumed = Tower()
    run(resumed, 17, folder=tmp_path / "stopped")
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
