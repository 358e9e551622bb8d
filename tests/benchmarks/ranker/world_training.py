"""Training of rankers on worlds with a known truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.models.ranker.batch import Feedback, RankingBatch
from recsys.models.ranker.config import RankerConfig
from recsys.models.ranker.model import Ranker
from recsys.training.loop import TrainConfig, train
from recsys.training.optim import AdamWConfig, adamw
from recsys.training.progress import SilentProgress, SilentTracker
from tests.recsys.testing.ranking_worlds import RankingWorld

_SIZES = RankerConfig(embedding_dim=16, key_dim=8, max_history=5, hidden_dim=16, head_dim=8)
WORLD_RANKER = replace(
    _SIZES, num_cross_layers=0, num_experts=4, top_k=1, id_init_scale=0.01, backend="torch"
)
"""A small ranker, which rankers of worlds are variants of."""

Loss = Callable[[RankingBatch, Feedback], Tensor]


def on_device(world: RankingWorld, device: str) -> RankingWorld:
    tensors = {
        name: value.to(device)
        for name, value in vars(world).items()
        if isinstance(value, torch.Tensor | Jagged)
    }
    return replace(world, **tensors)


def train_on_requests(
    world: RankingWorld,
    model: Ranker,
    loss: Loss,
    config: TrainConfig,
    *,
    num_requests: int,
    batch_size: int,
    device: str = "cpu",
) -> None:
    """Train on batches drawn from the first requests of a world, by the world's seed."""
    draws = torch.Generator(device).manual_seed(world.config.seed)

    def loss_at(_: int) -> Tensor:
        drawn = torch.randint(num_requests, (batch_size,), generator=draws, device=device)
        return loss(*world.batch(drawn))

    train(
        model,
        loss_at,
        adamw(model, AdamWConfig(tables="dense")),
        config,
        tracker=SilentTracker(),
        progress=SilentProgress(),
    )
