"""Meanings: words, items and the values of categories in one space, that of the content encoder.

The encoder reads a list of words when a search is fitted, and a query is the sum of its words'
vectors, so no model runs for a request. A rarer word counts more. The values that are nearest to a
query are soft filters: "scary" is near the category Horror, so horror is wanted.

    meaning.safetensors    vectors, and the items of each value
    meaning.json           words, values

Axes: V words, N item rows, K values, M items of all values together, D width.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import normalize

from recsys.models.text_search.words import Spelling

Floats = NDArray[np.float32]
FILE, NAMES = "meaning.safetensors", "meaning.json"
MAX_DIM = 64
"""Width that vectors are projected to."""
NUM_VALUES = 8
"""Values that a query may ask for at once."""
MIN_COSINE = 0.55
"""Least similarity of a word to the value that it names: "scary" has 0.82 to Horror."""
SHARPNESS = 10.0
"""How much more the nearest value counts than others."""


@dataclass(frozen=True)
class Meanings:
    """Vectors of words, items and values; nothing in it changes after it is made."""

    words: Mapping[str, int]
    """Row of each word."""
    word_vectors: Tensor
    """[V, D], as long as the word counts."""
    item_vectors: Tensor
    """[N, D] of unit length; zeros without a text."""
    values: tuple[str, ...]
    value_vectors: Tensor
    """[K, D] of unit length."""
    owners: Tensor
    """Rows of the items that have each value, [M] int64."""
    offsets: Tensor
    """Where each value's items begin, [K + 1] int64."""

    @classmethod
    def build(
        cls,
        words: Sequence[str],
        word_vectors: Floats,
        item_vectors: Floats,
        values: Mapping[str, Sequence[int]],
        value_vectors: Floats,
    ) -> Meanings:
        """Centre vectors of one encoder and project them to their main directions.

        Args:
            words: The most frequent first.
            item_vectors: Zeros for items without a text, [N, E].
            values: Item rows of each value.
        """
        known = np.abs(item_vectors).sum(1) > 0
        centred = word_vectors - word_vectors.mean(0)
        items = np.where(known[:, None], item_vectors - item_vectors[known].mean(0), 0)
        spread = centred.T @ centred / len(words) + items.T @ items / max(1, known.sum())
        basis = np.linalg.eigh(spread.astype(np.float64))[1][:, ::-1][:, :MAX_DIM]
        basis = basis.astype(np.float32)

        def projected(vectors: Floats) -> Tensor:
            return normalize(torch.from_numpy(np.ascontiguousarray(vectors @ basis)), dim=1)

        weights = torch.log(2 + torch.arange(len(words), dtype=torch.float32))
        return cls(
            words={word: row for row, word in enumerate(words)},
            word_vectors=projected(centred) * weights[:, None],
            item_vectors=projected(items),
            values=tuple(values),
            value_vectors=projected(value_vectors - word_vectors.mean(0)),
            owners=torch.tensor([row for rows in values.values() for row in rows]).long(),
            offsets=torch.tensor([0, *map(len, values.values())]).cumsum(0),
        )

    def encode(self, words: Sequence[str]) -> Tensor:
        """Encode a text, [D] of unit length; zeros if no word of it is known."""
        return normalize(self._vectors(words).sum(0), dim=0)

    def named_value(self, word: str) -> str | None:
        """Find the value that a word means; None if no value is near it."""
        if not self.values:
            return None
        best, place = (self.value_vectors @ self.encode([word])).max(0)
        return self.values[int(place)] if best >= MIN_COSINE else None

    def nearest_values(self, words: Sequence[str]) -> list[str]:
        """List all values, the nearest to any of some words first; unknown words have no part."""
        vectors = self._vectors(words)
        if not len(vectors):
            return list(self.values)
        near = (normalize(vectors, dim=1) @ self.value_vectors.T).max(0).values
        return [self.values[place] for place in torch.argsort(-near, stable=True).tolist()]

    def _vectors(self, words: Sequence[str]) -> Tensor:
        """Look up the words that are known, [W, D], as long as each counts."""
        rows = (row for row in map(self._rows, words) if row)
        found = [self.word_vectors[row].float().sum(0) for row in rows]
        return torch.stack(found) if found else torch.zeros(0, self.word_vectors.shape[1])

    def _rows(self, word: str) -> list[int]:
        """List the row of a word, of those that it is made of, or of one spelt like it."""
        if (row := self.words.get(word)) is not None:
            return [row]
        alike = self._spelling.parted(word) or self._spelling.near(word)[:1]
        return [self.words[one] for one in alike]

    @cached_property
    def _spelling(self) -> Spelling:
        return Spelling(self.words)

    def near(self, words: Sequence[str]) -> tuple[Floats, Floats] | None:
        """Compare a query with all items; None if no word of it is known.

        Returns:
            Cosines, and the share of the wanted values that an item has, each [N].
        """
        vectors = self._vectors(words)
        if not vectors.any():
            return None
        # Numpy, which is faster than torch at this product on one thread.
        query = normalize(vectors.sum(0), dim=0).numpy()
        cosines: Floats = self.item_vectors.numpy() @ query
        # Each word asks for values of its own: of "scary space" one for horror, one for Sci-Fi.
        lengths, number = vectors.norm(dim=1, keepdim=True), min(NUM_VALUES, len(self.values))
        near = torch.topk(normalize(vectors, dim=1) @ self.value_vectors.T, number)
        shares = torch.softmax(SHARPNESS * near.values, 1) * lengths / lengths.sum()
        values = near.indices.flatten()
        most = torch.zeros(len(self.values)).scatter_add(0, values, shares.flatten()).topk(number)
        wanted = np.zeros(len(cosines), np.float32)
        for value, share in zip(most.indices.tolist(), most.values.tolist(), strict=True):
            wanted[self.owners[self.offsets[value] : self.offsets[value + 1]].numpy()] += share
        return cosines, wanted

    def grown(self, texts: Sequence[Sequence[str]]) -> Meanings:
        """Take in items that were appended, by the words of their texts."""
        more = torch.stack([self.encode(words) for words in texts])
        vectors = torch.cat([self.item_vectors, more])
        parts = (self.values, self.value_vectors, self.owners, self.offsets)
        return Meanings(self.words, self.word_vectors, vectors, *parts)

    def save(self, directory: Path) -> None:
        tensors = {
            "word_vectors": self.word_vectors.half(),
            "item_vectors": self.item_vectors.contiguous(),
            "value_vectors": self.value_vectors.contiguous(),
            "owners": self.owners,
            "offsets": self.offsets,
        }
        save_file(tensors, directory / FILE)
        names = {"words": list(self.words), "values": list(self.values)}
        (directory / NAMES).write_text(json.dumps(names, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, directory: Path) -> Meanings | None:
        """Read the files; None where a search was fitted without."""
        if not (directory / NAMES).exists():
            return None
        names = json.loads((directory / NAMES).read_text())
        words = {word: row for row, word in enumerate(names["words"])}
        tensors = load_file(directory / FILE)
        return cls(words=words, values=tuple(names["values"]), **tensors)
