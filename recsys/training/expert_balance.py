"""Keep a ranker's experts evenly used by candidates as they are served.

A training step draws the first candidates of a list more often than those behind, and hides most
ids where users are few. Biases that balance its batches then leave what is served uneven. So they
are settled on the lists as they are, with ids shown, before every step.

Axes: U queries, k candidates of each, N distinct items.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from recsys.layers.moe.layer import SparseMoe
from recsys.layers.moe.routing import BiasedRouter, without_autocast
from recsys.models.ranker.model import Ranker

ROUNDS_AGAIN, RATE_AGAIN = 15, 0.01
"""How biases are settled that were a step ago."""
MOST_ITEMS = 1 << 14
"""Items that stand for all, drawn as often as they are candidates."""


def item_router(model: Ranker) -> BiasedRouter | None:
    """Find the router that reads items alone and is balanced by biases; None without."""
    body = model.trunk.body
    if not isinstance(body, SparseMoe) or not isinstance(body.router, BiasedRouter):
        return None
    by_item = model.config.routed_by == "item" and body.router.bias_rate > 0
    return body.router if by_item else None


def served_items(item_rows: Tensor) -> tuple[Tensor, Tensor]:
    """Give the distinct items of lists [U, k], 0 for a hole, and how often each is one, [N]."""
    rows, counts = torch.unique(item_rows[item_rows > 0], return_counts=True)
    if len(rows) <= MOST_ITEMS:
        return rows, counts
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(counts.double(), MOST_ITEMS, replacement=True, generator=generator)
    places, counts = torch.unique(drawn, return_counts=True)
    return rows[places], counts


def settling(model: Ranker, item_rows: Tensor, device: torch.device) -> Callable[[int], None]:
    """Give what to call at each training step; it does nothing where no biases balance items.

    From here on a training batch moves no bias.

    Args:
        model: On ``device``.
        item_rows: Candidates as served, [U, k], on the host; 0 for a hole.
        device: Where the model is.
    """
    router = item_router(model)
    if router is None or not bool((item_rows > 0).any()):
        return lambda step: None
    router.moves_by_batch = False
    rows, counts = (part.to(device) for part in served_items(item_rows))

    @torch.no_grad()
    def before_step(step: int) -> None:
        was_training = model.training
        model.eval()
        with without_autocast(device.type):
            items = model.item_inputs(rows)
        if step:
            router.settle(items, counts, num_rounds=ROUNDS_AGAIN, rate=RATE_AGAIN)
        else:
            router.settle(items, counts)
        model.train(was_training)

    return before_step
