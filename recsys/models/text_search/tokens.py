"""Texts as hashed words and parts of words, so that no vocabulary is needed and typos cost little.

A word is one token and each three characters of it are another (Bojanowski et al., 2017): two
spellings of a word share most of these.

Axes: B texts, T tokens of all texts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.models.text_search.folding import words_of

PART = 3
"""Characters of a part of a word."""
MAX_WORD = 32
"""Characters of a word that are read."""
WORD_WEIGHT = 1.0
PARTS_WEIGHT = 1.0
"""Length of the parts of a word together, were they orthogonal."""


class Bags(NamedTuple):
    """Tokens of texts, one after the other."""

    tokens: Tensor
    """Buckets, [T] int64."""
    weights: Tensor
    """[T] float32"""
    offsets: Tensor
    """Start of each text, [B] int64."""


def hash_token(token: str, num_buckets: int) -> int:
    """Hash a token; equal on every machine."""
    digest = hashlib.blake2b(token.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % num_buckets


@lru_cache(maxsize=1 << 18)
def word_tokens(word: str, num_buckets: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Split a word into its buckets and their weights."""
    parts = parts_of(word)
    tokens = [hash_token(f"word {word[:MAX_WORD]}", num_buckets)]
    tokens += [hash_token(f"part {part}", num_buckets) for part in parts]
    weights = np.full(len(tokens), PARTS_WEIGHT / math.sqrt(max(1, len(parts))), np.float32)
    weights[0] = WORD_WEIGHT
    return np.array(tokens, np.int64), weights


def hash_texts(texts: Sequence[Sequence[str]], num_buckets: int) -> Bags:
    """Hash texts that are split into words; a text without a word is an empty bag."""
    tokens: list[NDArray[np.int64]] = []
    weights: list[NDArray[np.float32]] = []
    offsets = np.zeros(len(texts) + 1, np.int64)
    for row, words in enumerate(texts):
        length = 0
        for word in words:
            own, weight = word_tokens(word, num_buckets)
            tokens.append(own)
            weights.append(weight)
            length += len(own)
        offsets[row + 1] = offsets[row] + length
    if not tokens:
        return Bags(
            torch.zeros(0, dtype=torch.int64), torch.zeros(0), torch.from_numpy(offsets[:-1])
        )
    return Bags(
        torch.from_numpy(np.concatenate(tokens)),
        torch.from_numpy(np.concatenate(weights)),
        torch.from_numpy(offsets[:-1]),
    )


def shared_parts(query: Sequence[str], text: Sequence[str]) -> float:
    """Return the largest share of a query's word parts that a word of a text has, 0 to 1."""
    parts = {part for word in query for part in parts_of(word)}
    there = {part for word in text for part in parts_of(word)}
    return len(parts & there) / len(parts) if parts else 0.0


def parts_of(word: str) -> list[str]:
    """Cut a word, its ends marked, into each three characters that follow each other."""
    framed = f"<{word[:MAX_WORD]}>"
    return [framed[place : place + PART] for place in range(len(framed) - PART + 1)]


MAX_WORDS = 64
"""Words of a text that are read."""
MAX_TEXT = 1_000
"""Characters of an item's text that are read."""


def split(text: str) -> list[str]:
    """Split an item's text or a query into at most ``MAX_WORDS`` words."""
    return words_of(text, MAX_TEXT)[:MAX_WORDS]


Kind = Literal["title", "typo", "attribute", "mixed"]
SHARES: dict[Kind, float] = {"title": 0.4, "typo": 0.25, "attribute": 0.2, "mixed": 0.15}
"""Shares of the kinds of query that are trained on."""
MAX_TITLE_WORDS = 4
SHORTEST_TYPO = 4
"""Characters of the shortest word that a typo is put into."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, kw_only=True)
class ItemText:
    """Texts and attributes of an item."""

    item_row: int
    title: str
    text: str
    """All that is searched: title, brand, categories, description."""
    attributes: tuple[str, ...] = ()
    """Categories, brand: what a query may name without meaning this item alone."""


class MadeQuery(NamedTuple):
    """A query and what it is made of."""

    text: str
    kind: Kind
    attribute: str | None
    """Named by the query; other items that have it fit too."""


class QueryMaker:
    """Makes queries; equal seeds make equal ones."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng([seed, 7])

    def make(self, item: ItemText, kind: Kind | None = None) -> MadeQuery:
        """Make a query of an item; a kind that it has nothing for becomes another.

        Args:
            kind: Drawn by ``SHARES`` if None.
        """
        kind = kind or str(self._random.choice(list(SHARES), p=list(SHARES.values())))  # type: ignore[assignment]
        assert kind is not None
        words = split(item.title)
        attributes = [one for one in item.attributes if split(one)]
        if kind in ("attribute", "mixed") and not attributes:
            kind = "title"
        if not words:
            kind = "attribute" if attributes else kind
        if kind == "attribute":
            chosen = str(self._random.choice(attributes))
            return MadeQuery(chosen, kind, chosen)
        if kind == "mixed":
            chosen = str(self._random.choice(attributes))
            return MadeQuery(f"{chosen} {self._random.choice(words)}", kind, None)
        typed = self._some(words or split(item.text))
        if kind == "typo":
            typed = self._misspelt(typed)
        return MadeQuery(" ".join(typed), kind, None)

    def _some(self, words: list[str]) -> list[str]:
        """Take one to four words in their order, the longer ones more often."""
        count = int(self._random.integers(1, 1 + min(MAX_TITLE_WORDS, len(words)))) if words else 0
        weight = np.array([len(word) for word in words], float)
        places = self._random.choice(len(words), count, replace=False, p=weight / weight.sum())
        return [words[place] for place in sorted(places)]

    def _misspelt(self, words: list[str]) -> list[str]:
        """Put a typo into a longer word: a swap, or a lost, doubled or wrong letter."""
        long = [place for place, word in enumerate(words) if len(word) >= SHORTEST_TYPO]
        if not long:
            return words
        place = int(self._random.choice(long))
        word, at = words[place], int(self._random.integers(1, len(words[place]) - 1))
        what = int(self._random.integers(4))
        letter = LETTERS[int(self._random.integers(len(LETTERS)))]
        changed = (
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word[:at] + letter + word[at + 1 :],
        )[what]
        return [*words[:place], changed, *words[place + 1 :]]
