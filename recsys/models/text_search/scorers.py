"""Scores of items for a text: BM25 over words, and a text tower of queries and items.

BM25 (Robertson and Zaragoza, 2009) is the library bm25s; this is its one door. The tower sums its
tokens' vectors to unit length. One table serves queries and items, so a word that no query was
trained on still finds the items that have it, and a query with a typo finds items that share most
parts of its words. It is trained contrastively on queries made from the items' own texts, with the
other items of a batch as negatives.

Axes: B texts, T tokens, D width, N item rows.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from recsys.models.configs import TextTowerConfig
from recsys.models.text_search.tokens import Bags, ItemText, QueryMaker, hash_texts, split

PARAMETERS = "params.index.json"
ENCODED_AT_ONCE = 4_096
NUM_BUCKETS = 65_536
"""Hashed words and parts of words."""
BATCH_SIZE = 256
LEARNING_RATE = 3e-3
TEMPERATURE = 0.05


class WordIndex:
    """Scores every item by the words of a query."""

    def __init__(self, index: Any, num_item_rows: int) -> None:
        self._index = index
        self.num_item_rows = num_item_rows
        self._known: frozenset[str] = frozenset(() if index is None else index.vocab_dict)

    @classmethod
    def of(cls, documents: Sequence[Sequence[str]]) -> WordIndex:
        """Index texts that are split into words, by item row, [N]; row 0 is padding."""
        if not any(documents):
            return cls(None, len(documents))
        library = _library()
        # Numbered in the order of the alphabet, so that equal texts make equal files.
        vocabulary = {
            word: place
            for place, word in enumerate(sorted({word for words in documents for word in words}))
        }
        numbered = [[vocabulary[word] for word in words] for words in documents]
        index = library.BM25(method="lucene")
        index.index(
            library.tokenization.Tokenized(ids=numbered, vocab=vocabulary), show_progress=False
        )
        return cls(index, len(documents))

    def scores(self, words: Sequence[str]) -> NDArray[np.float32] | None:
        """Score all items, [N] float32, 0 without a common word; None if no item has any word."""
        known = [word for word in words if word in self._known]
        if not known:
            return None
        found: NDArray[np.float32] = self._index.get_scores(known)
        return found

    def knows(self, words: Sequence[str]) -> bool:
        """Return whether every word is one of some item."""
        return all(word in self._known for word in words)

    def save(self, directory: Path) -> None:
        if self._index is not None:
            self._index.save(str(directory), show_progress=False)

    @classmethod
    def load(cls, directory: Path, num_item_rows: int) -> WordIndex:
        if not (directory / PARAMETERS).exists():
            return cls(None, num_item_rows)
        index = _library().BM25.load(str(directory), load_corpus=False, show_progress=False)
        return cls(index, num_item_rows)


def _library() -> Any:
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s


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
