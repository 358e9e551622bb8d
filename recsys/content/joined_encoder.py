"""Concatenate a sentence encoder's vectors with hashed words.

A sentence encoder keeps meaning and loses the words that distinguish items: brands, series, sizes.
Signed hashing (Weinberger et al., arXiv:0902.2206) keeps them, and a model that projects content
linearly then has, in effect, an embedding of each word.

Axes: n texts, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from recsys.content.encoder import Encoder, Vectors


class JoinedEncoder:
    """Two encoders' vectors side by side, the first one's columns first.

    Rows are not of unit length: what reads the first encoder alone takes its first columns.
    """

    def __init__(self, first: Encoder, second: Encoder, *, weight: float = 1.0) -> None:
        """Take the encoders."""
        if not 0 < weight < math.inf:
            raise ValueError(f"weight must be > 0 and finite, got {weight}")
        self.first, self.second, self.weight = first, second, weight
        self.name = f"{first.name}+{weight:g}x{second.name}"
        self.dim = first.dim + second.dim
        self.shard_rows = min(first.shard_rows, second.shard_rows)

    def encode(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> Vectors:
        return self.joined(self.first.encode(texts, progress), texts)

    def joined(self, first: Vectors, texts: Sequence[str]) -> Vectors:
        """Put the second one's vectors of the texts beside the first one's, [n, D]."""
        second = np.float32(self.weight) * self.second.encode(texts)
        return np.concatenate([first, second], axis=1)
