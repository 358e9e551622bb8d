"""Draws semantic IDs from a model: code by code, each in proportion to its probability.

Only codes that lead to an item of the catalogue share a step's probability, so every draw is an
item, and the draws' frequencies are the model's constrained distribution over items.

Axes: B requests, G draws of a request, L levels, K codes of a level.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from recsys.layers.codes.decode_step import Beams, DecodeStep
from recsys.semantic_ids.trie import Trie

ContextT = TypeVar("ContextT")
StateT = TypeVar("StateT")


class SampledItems(NamedTuple):
    """Independent draws, with replacement."""

    item_rows: Tensor
    """[B, G] int64"""
    log_probabilities: Tensor
    """Of the whole IDs, each level's probability shared among the live codes, [B, G]."""


@torch.no_grad()
def sample_items(
    decode_step: DecodeStep[ContextT, StateT],
    context: ContextT,
    trie: Trie,
    num_samples: int,
    generator: torch.Generator | None = None,
) -> SampledItems:
    """Draw items for each request.

    Args:
        decode_step: Of a model that was built for the trie's IDs.
        context: Of B requests.
        trie: Of the catalogue, on the model's device.
        num_samples: G.
        generator: On the model's device; None draws from the global one.

    Raises:
        ValueError: The trie is empty, or num_samples < 1.
    """
    if num_samples < 1 or trie.num_items == 0:
        raise ValueError(
            f"{num_samples} draws from a trie of {trie.num_items} items; both must be >= 1"
        )
    decoded = decode_step(context, None)
    batch_size = len(decoded.logits)
    states = trie.start(batch_size)[:, None]  # [B, W], W is 1 and then G
    parents = states.new_zeros(batch_size, num_samples)
    total = torch.zeros(batch_size, num_samples, device=states.device)
    for level, size in enumerate(trie.level_sizes):
        live = trie.mask(states.reshape(-1), level).view(batch_size, -1, size)
        logits = decoded.logits.float().masked_fill(~live, -torch.inf)
        spread = torch.log_softmax(logits, dim=2)[:, : parents.shape[1]]  # [B, W, K]
        draws = num_samples // spread.shape[1]
        flat = spread.flatten(0, 1).exp()
        codes = torch.multinomial(flat, draws, replacement=True, generator=generator)
        codes = codes.view(batch_size, num_samples)
        total += spread.expand(-1, num_samples, -1).gather(2, codes[..., None])[..., 0]
        states = states.expand(-1, num_samples).reshape(-1)
        states = trie.step(states, codes.view(-1), level).view(batch_size, num_samples)
        if level + 1 < trie.num_levels:
            decoded = decode_step(context, Beams(level + 1, parents, codes, decoded.state))
            parents = torch.arange(num_samples, device=states.device).expand(batch_size, -1)
    return SampledItems(trie.item_rows(states.view(-1)).view(batch_size, -1), total)
