"""Balance a ranker's experts over the candidates as they are served.

A training step draws the first candidates of a list more often than those after, and drops most
ids where users are few, so router biases that balance its batches leave served lists unbalanced.
They are settled on the whole lists, without id dropout, before every step.

Axes: U queries, k candidates of each, N distinct items.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from recsys.layers.moe.experts import SparseMoe
from recsys.layers.moe.router import BiasedRouter, without_autocast
from recsys.models.ranker.model import Ranker

RESETTLE_ROUNDS, RESETTLE_RATE = 15, 0.01
"""For biases that were settled a step ago."""
MAX_ITEMS = 1 << 14
"""Sample of items that biases are settled on, drawn as often as they are candidates."""


def item_router(model: Ranker) -> BiasedRouter | None:
    """Return the router that is balanced by biases; None without."""
    body = model.trunk.body
    if not isinstance(body, SparseMoe):
        return None
    return body.router


def served_items(item_rows: Tensor) -> tuple[Tensor, Tensor]:
    """Count the distinct items of lists [U, k], rows and counts [N]; 0 where a list is short."""
    rows, counts = torch.unique(item_rows[item_rows > 0], return_counts=True)
    if len(rows) <= MAX_ITEMS:
        return rows, counts
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(counts.double(), MAX_ITEMS, replacement=True, generator=generator)
    places, counts = torch.unique(drawn, return_counts=True)
    return rows[places], counts


def settling(model: Ranker, item_rows: Tensor, device: torch.device) -> Callable[[int], None]:
    """Return what to call before each training step; does nothing where no bias balances items.

    From here on training batches no longer move biases.

    Args:
        item_rows: Candidates as served, [U, k], on the host; 0 where a list is short.
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
            if rows.is_cuda and model.encodes_all(len(rows)):
                items = model.item_inputs_of_all()[1].index_select(0, rows)
            else:
                items = model.item_inputs(rows)
        if step:
            router.settle(items, counts, num_rounds=RESETTLE_ROUNDS, rate=RESETTLE_RATE)
        else:
            router.settle(items, counts)
        model.train(was_training)

    return before_step
