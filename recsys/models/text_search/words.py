"""Items by the words of a query and by words that are spelt like them; corrections of words.

BM25 (Robertson and Zaragoza, 2009) is the library bm25s; this is its one door. Two words are spelt
alike if they share runs of three characters (Bojanowski et al., 2017).

Axes: N item rows, V words, P pairs of a run of characters and a word.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.models.text_search.tokens import parts_of

Floats = NDArray[np.float32]
PARAMETERS = "params.index.json"
LEAST_ALIKE = 0.3
"""Cosine of the runs of two words below which they are not alike."""
MAX_ALIKE = 20
"""Most words that are alike to one."""
MIN_CORRECTED = 4
"""Characters of the shortest word that is corrected alone; a shorter one could be any word."""
MIN_WITH_OTHERS = 3
"""The same where other words of the query tell which word is meant."""
LONG_WORD = 8
"""Length of a word from which two typos are corrected."""
MAX_OPTIONS = 16
SHORTEST_PART = 3
"""Letters of the shortest word that a longer one is cut into."""


class WordIndex:
    """Scores every item by the words of a query; items may be appended."""

    def __init__(self, index: Any, num_item_rows: int, more: WordIndex | None = None) -> None:
        """Take an index of the first items, and that of further ones."""
        self._index, self._more = index, more
        self._num_own = num_item_rows
        self.num_item_rows: int = num_item_rows + (more.num_item_rows if more else 0)
        own = frozenset(() if index is None else index.vocab_dict) - {""}
        self.known: frozenset[str] = own | more.known if more else own

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

    def grown(self, documents: Sequence[Sequence[str]]) -> WordIndex:
        """Append the texts of further items."""
        more = WordIndex.of(documents) if self._more is None else self._more.grown(documents)
        return WordIndex(self._index, self._num_own, more)

    def scores(self, words: Sequence[str]) -> Floats | None:
        """Score all items, [N] float32, 0 without a common word; None if no item has any word."""
        if self.known.isdisjoint(words):
            return None
        known = [word for word in words if word in self._rows]
        found = self._index.get_scores(known) if known else np.zeros(self._num_own, np.float32)
        more = None if self._more is None else self._more.scores(words)
        if self._more is not None and more is not None and known:
            # Rarity differs by index, so its best item counts by the words that it has.
            share = self._more.coverage(words) / self.coverage(words, only_first=True)
            more = more * (share * found.max() / more.max())
        return self._with_more(found, more)

    def coverage(self, words: Sequence[str], *, only_first: bool = False) -> float:
        """Return the largest share of words that one item has, 0 to 1; rare ones count more.

        Args:
            only_first: Leave out items that were appended.
        """
        total, found = 0.0, np.zeros(self._num_own, np.float32)
        for word in dict.fromkeys(words):
            rows = self._rows_of(word)
            weight = np.log1p(self._num_own / (1 + len(rows)))
            found[rows] += weight
            total += weight
        own = float(found.max(initial=0.0)) / total if total else 0.0
        if self._more is None or only_first:
            return own
        return max(own, self._more.coverage(words))

    def spelling(self, words: Sequence[str]) -> Floats:
        """Compare spellings: mean over a query's words of the most alike word of an item, [N]."""
        total = np.zeros(self._num_own, np.float32)
        for word in words:
            best = np.zeros(self._num_own, np.float32)
            for other, cosine in self._alike(word):
                rows = self._rows_of(other)
                best[rows] = np.maximum(best[rows], cosine)
            total += best / len(words)
        more = None if self._more is None else self._more.spelling(words)
        return self._with_more(total, more)

    def _with_more(self, own: Floats, more: Floats | None) -> Floats:
        if self._more is None:
            return own
        return np.concatenate([own, np.zeros(self._more.num_item_rows) if more is None else more])

    @property
    def _rows(self) -> dict[str, int]:
        """Words of the first items by their numbers."""
        return {} if self._index is None else self._index.vocab_dict

    def _rows_of(self, word: str) -> NDArray[np.int32]:
        """Rows of the first items that have a word."""
        if (token := self._rows.get(word)) is None:
            return np.zeros(0, np.int32)
        begin, end = self._index.scores["indptr"][token : token + 2]
        rows: NDArray[np.int32] = self._index.scores["indices"][begin:end]
        return rows

    def _alike(self, word: str) -> list[tuple[str, float]]:
        """List words of the first items that are spelt like one, and their cosines."""
        words, lengths, places = self._parts
        parts = set(parts_of(word))
        shared = np.zeros(len(words), np.float32)
        for part in parts & places.keys():
            shared[places[part]] += 1
        cosines = shared / np.sqrt(len(parts) * lengths)
        near = np.flatnonzero(cosines >= LEAST_ALIKE)
        near = near[np.argsort(-cosines[near], kind="stable")[:MAX_ALIKE]]
        return [(words[place], float(cosines[place])) for place in near.tolist()]

    @cached_property
    def _parts(self) -> tuple[list[str], Floats, dict[str, NDArray[np.int64]]]:
        """Words of the first items, their numbers of runs [V], and each run's words."""
        words, places, lengths = sorted(set(self._rows) - {""}), defaultdict(list), []
        for place, word in enumerate(words):
            parts = set(parts_of(word))
            lengths.append(len(parts))
            for part in parts:
                places[part].append(place)
        found = {part: np.array(some, np.int64) for part, some in places.items()}
        return words, np.array(lengths, np.float32), found

    def save(self, directory: Path) -> None:
        if self._more is not None:
            raise ValueError("items were appended to these words; index all texts, then save")
        if self._index is not None:
            self._index.save(str(directory), show_progress=False)

    @classmethod
    def load(cls, directory: Path, num_item_rows: int | None) -> WordIndex:
        """Read the files.

        Args:
            num_item_rows: None counts the items of the index.
        """
        if not (directory / PARAMETERS).exists():
            return cls(None, num_item_rows or 1)
        index = _library().BM25.load(str(directory), load_corpus=False, show_progress=False)
        found = cls(index, num_item_rows or index.scores["num_docs"])
        _ = found._parts  # The first misspelt word would wait for it.
        return found


class Spelling:
    """Words that are known, the better known first."""

    def __init__(self, words: Iterable[str]) -> None:
        self._places = {word: place for place, word in enumerate(dict.fromkeys(words))}
        self._sorted = sorted(self._places)
        # A typo leaves a word's first or its last letter as it is.
        self._alike: dict[tuple[int, str, int], list[str]] = {}
        for word in self._places:
            for end in (0, -1):
                self._alike.setdefault((end, word[end], len(word)), []).append(word)

    def is_known(self, word: str) -> bool:
        """Return whether a known word begins with this one."""
        place = bisect_left(self._sorted, word)
        return place < len(self._sorted) and self._sorted[place].startswith(word)

    def parted(self, word: str) -> list[str]:
        """Cut a word into known ones, such as "starwars"; empty if it is not made of any."""
        if word in self._places:
            return [word]
        for end in range(len(word) - SHORTEST_PART, SHORTEST_PART - 1, -1):
            if word[:end] in self._places and (rest := self.parted(word[end:])):
                return [word[:end], *rest]
        return []

    def near(self, word: str, shortest: int = MIN_CORRECTED) -> list[str]:
        """List words with few edits (a swap of neighbours is one), the nearest first.

        They have the same first or the same last letter. Of equally near ones the better known
        comes first.
        """
        # The library is imported where a word is misspelt: recsys runs without it otherwise.
        from rapidfuzz.distance import OSA
        from rapidfuzz.process import extract

        if len(word) < shortest:
            return []
        most = 1 if len(word) < LONG_WORD else 2
        lengths = range(len(word) - most, len(word) + most + 1)
        found = set()
        for end, length in ((end, length) for end in (0, -1) for length in lengths):
            alike = self._alike.get((end, word[end], length), ())
            for other, edits, _ in extract(
                word, alike, scorer=OSA.distance, score_cutoff=most, limit=None
            ):
                found.add((edits, self._places[other], other))
        return [other for *_, other in sorted(found)[:MAX_OPTIONS]]


def _library() -> Any:
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s
