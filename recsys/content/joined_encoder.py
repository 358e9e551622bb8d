"""Vectors that say what a text means and, beside it, which words it has.

A sentence encoder places alike what is alike and forgets the words that tell one item from another:
brands, series, sizes. Signed hashing (Weinberger et al., arXiv:0902.2206) keeps them, and a model
that projects content linearly then has, in effect, an embedding of each word.

Axes: n texts, D width.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from recsys.content.encoder import Encoder, Vectors, normalized


class WordEncoder:
    """Signed hashing of single words; each counts once a text."""

    def __init__(self, dim: int = 1024) -> None:
        if dim < 1:
            raise ValueError(f"dim must be >= 1, got {dim}")
        self._dim = dim

    @property
    def name(self) -> str:
        return f"words-{self._dim}"

    @property
    def dim(self) -> int:
        return self._dim

    @property
    def shard_rows(self) -> int:
        return 1024

    def encode(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> Vectors:
        vectors = np.zeros((len(texts), self._dim), np.float32)
        places: dict[str, int] = {}
        for row, text in enumerate(texts):
            for word in set(re.findall(r"\w+", text.lower())):
                code = places.get(word)
                if code is None:
                    digest = hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8)
                    code = places[word] = int.from_bytes(digest.digest(), "little")
                vectors[row, (code >> 1) % self._dim] += 1 if code & 1 else -1
        if progress is not None:
            progress(len(texts))
        return normalized(vectors)


class JoinedEncoder:
    """Two encoders' vectors side by side, the first one's columns first.

    Rows are not of unit length: what reads the first encoder alone takes its first columns.
    """

    def __init__(self, first: Encoder, second: Encoder, *, weight: float = 1.0) -> None:
        """Take the encoders.

        Args:
            weight: Length of the second one's part; the first one's is 1.
        """
        if not 0 < weight < math.inf:
            raise ValueError(f"weight must be > 0 and finite, got {weight}")
        self.first, self.second, self.weight = first, second, weight

    @property
    def name(self) -> str:
        return f"{self.first.name}+{self.weight:g}x{self.second.name}"

    @property
    def dim(self) -> int:
        return self.first.dim + self.second.dim

    @property
    def shard_rows(self) -> int:
        return min(self.first.shard_rows, self.second.shard_rows)

    def encode(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> Vectors:
        return self.joined(self.first.encode(texts, progress), texts)

    def joined(self, first: Vectors, texts: Sequence[str]) -> Vectors:
        """Put the second one's vectors of the texts beside the first one's, [n, D]."""
        second = np.float32(self.weight) * self.second.encode(texts)
        return np.concatenate([first, second], axis=1)
