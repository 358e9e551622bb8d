"""BM25 over words (Robertson and Zaragoza, 2009), by the library bm25s; its one door.

Axes: N item rows.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PARAMETERS = "params.index.json"


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
