"""Memory of a history's last semantic IDs, looked up by hash and let in by a gate.

What followed two given items in a row is a fact to look up rather than to compute: the last n IDs
of each event hash to rows of a table, and the event's state decides how much of them it takes
(conditional memory: Cheng et al. 2026, "Engram", arXiv:2601.07372). Each n-gram is the mean of
``NUM_HASHES`` rows of a table far smaller than the number of n-grams (hash embeddings,
arXiv:1709.03933); row 0 is "unknown" as in every table.

Axes: B sequences, T places, D width, n IDs of a gram, M ids of a batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.embedding.collection import Backend, EmbeddingBags, TableConfig

NUM_HASHES = 2
"""Rows of a gram: two grams are mixed up only where both rows are the same."""


def hashed_rows(ids: Tensor, num_rows: int, num_hashes: int, *, seed: int = 0) -> Tensor:
    """Hash ids to rows in [1, num_rows), [...] -> [..., num_hashes]; on any device.

    Each hash is a different permutation of the 64-bit words (the finaliser of SplitMix64) taken
    modulo the rows. The same numbers give the same rows on every machine.
    """
    if num_rows < 2 or num_hashes < 1:
        raise ValueError(
            f"hashing needs num_rows >= 2 and num_hashes >= 1, got {num_rows} and {num_hashes}"
        )
    streams = torch.arange(1, num_hashes + 1, device=ids.device) + seed * 1_000_003
    words = mixed(ids.long()[..., None] ^ mixed(streams * -0x61C8864680B583EB))
    rows: Tensor = words.remainder(num_rows - 1) + 1
    return rows


def mixed(words: Tensor) -> Tensor:
    """Permute 64-bit words such that each bit depends on all (Stafford's variant 13)."""
    words = (words ^ shifted(words, 30)) * -0x40A7B892E31B1A47
    words = (words ^ shifted(words, 27)) * -0x6B2FB644ECCEEE15
    return words ^ shifted(words, 31)


def shifted(words: Tensor, count: int) -> Tensor:
    """Shift to the right and fill with zeros, as for unsigned words."""
    kept: Tensor = (words >> count) & ((1 << (64 - count)) - 1)
    return kept


def hashed_feature(values: Jagged, num_rows: int, num_hashes: int, *, seed: int = 0) -> Jagged:
    """Replace each id by its hashed rows, weighted so that they are averaged; any table pools that.

    The weights of an id's rows sum to the id's own weight, so sum and mean pooling mean the same as
    for ids with a row each.
    """
    rows = hashed_rows(values.values, num_rows, num_hashes, seed=seed)  # [M, num_hashes]
    weights = values.weights
    if weights is None:
        weights = torch.ones(len(values.values), device=values.values.device)
    shared = (weights / num_hashes).repeat_interleave(num_hashes)
    return Jagged(rows.flatten(), values.offsets * num_hashes, shared)


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
