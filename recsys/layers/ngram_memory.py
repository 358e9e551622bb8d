"""Memory of a history's last semantic IDs, looked up by hash and let in by a gate.

What followed two given items in a row is a fact to look up rather than to compute: the last n IDs
of each event hash to rows of a table, and the event's state decides how much of them it takes
(conditional memory: Cheng et al. 2026, "Engram", arXiv:2601.07372).

Axes: B sequences, T places, D width, n IDs of a gram.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.embedding.collection import Backend, EmbeddingBags, TableConfig
from recsys.layers.embedding.growing_vocabulary import hashed_feature, mixed

NUM_HASHES = 2
"""Rows of a gram: two grams are mixed up only where both rows are the same."""


class NgramMemory(nn.Module):
    """Tables of hashed grams, one for each order, and the gate.

    Args:
        dim: D.
        orders: Lengths of the grams, each >= 1.
        num_rows: Rows of each table.
    """

    def __init__(
        self, dim: int, orders: tuple[int, ...], num_rows: int, backend: Backend = "auto"
    ) -> None:
        super().__init__()
        self.orders = orders
        self.num_rows = num_rows
        self.tables = EmbeddingBags(
            [
                TableConfig(
                    name=f"gram_{order}",
                    num_rows=num_rows,
                    embedding_dim=dim,
                    features=(f"gram_{order}",),
                )
                for order in orders
            ],
            backend,
        )
        self.state_norm, self.key_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.key, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def look_up(self, ids: Tensor) -> Tensor:
        """Add up what is stored under the grams that end in each place, [B, T] -> [B, T, D].

        Args:
            ids: Semantic IDs read as numbers, int64; places of no event hold -1.
        """
        gram = torch.zeros_like(ids)
        features = {}
        for length in range(1, max(self.orders) + 1):
            # The one more, further back: the first place has none before it.
            earlier = functional.pad(ids, (length - 1, 0), value=-1)[:, : ids.shape[1]]
            gram = mixed(gram + earlier + 1)
            if length in self.orders:
                each = Jagged.one_each(gram.flatten())
                features[f"gram_{length}"] = hashed_feature(
                    each, self.num_rows, NUM_HASHES, seed=length
                )
        found: Tensor = sum(self.tables(JaggedBatch(features)).values())
        return found.view(*ids.shape, -1)

    def forward(self, state: Tensor, found: Tensor) -> Tensor:
        """Let each place take what its state asks for, both [B, T, D]."""
        agreement = (self.state_norm(state) * self.key_norm(self.key(found))).sum(-1, keepdim=True)
        gate = torch.sigmoid(agreement / math.sqrt(state.shape[-1]))
        taken: Tensor = state + gate * self.value(found)
        return taken
