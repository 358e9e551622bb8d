"""A text tower for queries and items: the sum of its tokens' vectors, of unit length.

One table serves both sides, so a word that no query was trained on still finds the items that have
it, and a query with a typo the items that share most parts of its words. Trained contrastively on
queries made from the items' own texts, with the other items of a batch as negatives.

Axes: B texts, T tokens, D width, N item rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.models.configs import TextTowerConfig
from recsys.models.text_search.tokens import Bags, ItemText, QueryMaker, hash_texts, split

ENCODED_AT_ONCE = 4_096
NUM_BUCKETS = 65_536
"""Hashed words and parts of words."""
BATCH_SIZE = 256
LEARNING_RATE = 3e-3
TEMPERATURE = 0.05


class TextTower(nn.Module):
    """Encodes texts."""

    def __init__(self, config: TextTowerConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.table = nn.EmbeddingBag(NUM_BUCKETS, config.dim, mode="sum", sparse=True)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.table.weight.normal_(std=config.dim**-0.5, generator=generator)

    def forward(self, bags: Bags) -> Tensor:
        """Encode bags of tokens, [B, D] of unit length, or zeros for an empty one."""
        summed = self.table(bags.tokens, bags.offsets, per_sample_weights=bags.weights)
        return functional.normalize(summed, dim=1)

    @torch.no_grad()
    def encode(self, texts: Sequence[Sequence[str]]) -> Tensor:
        """Encode texts that are split into words, [B, D]."""
        parts = [
            self(hash_texts(texts[begin : begin + ENCODED_AT_ONCE], NUM_BUCKETS))
            for begin in range(0, len(texts), ENCODED_AT_ONCE)
        ]
        return torch.cat(parts) if parts else torch.zeros(0, self.config.dim)


def train_tower(items: Sequence[ItemText], config: TextTowerConfig, seed: int) -> TextTower:
    """Train on queries that are made from items' texts.

    An item that fits the query by its attribute is no negative of it.

    Args:
        items: Those that queries are made of; items without a word are left out.
    """
    tower = TextTower(config, seed)
    known = [item for item in items if split(item.text)]
    if len(known) < 2 or config.num_steps == 0:
        return tower
    documents = [split(item.text) for item in known]
    attributes = [frozenset(item.attributes) for item in known]
    maker, random = QueryMaker(seed), np.random.default_rng(seed)
    optimizer = torch.optim.SparseAdam(list(tower.parameters()), lr=LEARNING_RATE)
    size = min(BATCH_SIZE, len(known))
    for _ in range(config.num_steps):
        rows = random.choice(len(known), size, replace=False)
        queries = [maker.make(known[row]) for row in rows]
        left = tower(hash_texts([split(query.text) for query in queries], NUM_BUCKETS))
        right = tower(hash_texts([documents[row] for row in rows], NUM_BUCKETS))
        logits = left @ right.T / TEMPERATURE
        named = np.array(
            [[query.attribute in attributes[row] for row in rows] for query in queries]
        )
        np.fill_diagonal(named, False)
        loss = functional.cross_entropy(
            logits.masked_fill(torch.from_numpy(named), -torch.inf), torch.arange(size)
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()  # type: ignore[no-untyped-call]
    return tower
