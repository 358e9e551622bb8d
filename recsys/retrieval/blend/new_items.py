"""Odds of items without events, fitted on the next items of all queries, of new and old items.

The weights of a blend rank such items low: sources tell little of them, and most targets are old.
One parameter more is how many times as often they are chosen as the weights expect. Nothing tells
it which queries want a new item.

Axes: N item rows, Q queries fitted on, C candidates of each, P features.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from recsys.retrieval.blend.choices import Choices, fit_weights, kinds_of_rows
from recsys.retrieval.blend.config import LearnedBlendConfig

NEW_ITEMS_L2 = 1.0
"""Pulls the logarithm of the odds towards 0; worth a few queries."""


def with_new_item_odds(
    config: LearnedBlendConfig,
    choices: Choices,
    weights: Tensor,
    item_rows: Tensor,
    item_counts: Tensor | None,
) -> tuple[LearnedBlendConfig, Choices]:
    """Fit ``new_item_odds`` if they are not set, and add them to the choices.

    They are 1 if no target is new, and never less: new items are not ranked lower than before.

    Args:
        weights: Fitted to the features of the choices, [P].
        item_rows: Of the candidates, [Q, C].
        item_counts: Events of each item that the sources were fitted on, [N]; None if not known.
    """
    if config.new_item_odds is not None or item_counts is None:
        return config, choices
    new = kinds_of_rows((item_counts == 0).long(), item_rows) == 1  # [Q, C]
    if not bool(((choices.chosen > 0) & new).any()):
        return replace(config, new_item_odds=1.0), choices
    offsets = choices.offsets + choices.features @ weights
    fitted = fit_weights(
        Choices(new[:, :, None].float(), offsets, choices.chosen),
        torch.zeros(1),
        torch.full((1, 1), NEW_ITEMS_L2),
    )
    log_odds = float(fitted.weights)
    choices = choices._replace(offsets=choices.offsets + log_odds * new)
    return replace(config, new_item_odds=math.exp(log_odds)), choices
