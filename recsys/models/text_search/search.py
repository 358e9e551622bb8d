"""Items by a text: candidates of words, titles, spellings and meanings in one learned order.

A candidate's score is a weighted sum of features of it and the query: the words it has, the
place among titles that have all of them, the similarity of spellings, how popular it is, where
somebody is known its place in the list that is theirs, and, unless many titles have all words, the
similarity of meanings and the categories that are meant.

    *.npy, *.index.json    words
    meaning.*              meanings, where an encoder is configured
    search.json            number of items, weights

Axes: N item rows, K candidates, F features.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from recsys.models.text_search.meaning import Meanings
from recsys.models.text_search.tokens import split
from recsys.models.text_search.words import WordIndex

START = (4.0, 2.0, 4.0, 0.5, 1.0, 4.0, 4.0)
L2 = 1e-3
NUM_STEPS = 200


def fit_weights(
    features: Sequence[NDArray[np.float32]], targets: Sequence[int], start: Sequence[float] = START
) -> list[float]:
    """Fit by the softmax over each query's candidates (ListNet, Cao et al., 2007).

    Weights are kept at 0 or above: no evidence for an item may count against it.

    Args:
        features: Of each query, [K, F].
        targets: Place of the item that was looked for among them; queries without are left out by
            the caller.
        start: Weights that others are drawn to, [F].

    Returns:
        A weight for each feature; those that every query has 0 for keep their start.
    """
    if not features:
        return list(start)
    padded = pad_sequence([torch.from_numpy(one) for one in features], batch_first=True)
    lengths = torch.tensor([len(one) for one in features])
    mask = torch.arange(padded.shape[1]) < lengths[:, None]
    labels, begin = torch.tensor(list(targets)), torch.tensor(start)
    weights = begin.clone().requires_grad_()
    optimizer = torch.optim.Adam([weights], lr=0.1)
    for _ in range(NUM_STEPS):
        logits = (padded @ weights.clamp_min(0)).masked_fill(~mask, -torch.inf)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss = loss + L2 * (weights - begin).square().sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    used = padded.abs().sum((0, 1)) > 0
    return torch.where(used, weights.detach().clamp_min(0), begin).tolist()


Rows = NDArray[np.int64]
Floats = NDArray[np.float32]

FEATURES = ("words", "title", "spelling", "popularity", "personal", "meaning", "values")
"""Features of a candidate; ``personal`` is 0 for an unknown user."""
WORDS, TITLE, SPELLING, POPULARITY, PERSONAL, MEANING, VALUES = range(len(FEATURES))
NUM_EACH = 200
"""Candidates by title, and by spelling."""
NUM_WORDS = 500
"""Candidates by words, of which many may be equal: all items of a category are."""
FEW_TITLES = 10
"""Titles from which nothing is added by its meaning."""
LEAST_MEANING = 0.1
"""Share of the meaning that counts if one item has all words: it orders the others."""
TIED = 1e-3
"""Share of the best score by which popularity settles such ties."""
PERSONAL_SCALE = 10.0
"""Places of the personal list over which its feature halves."""
CONFIG = "search.json"


@dataclass(frozen=True)
class SearchCandidates:
    """Items that a text may mean, and the features of each."""

    item_rows: Rows
    """Ascending, [K]."""
    features: Floats
    """[K, F], by ``FEATURES``."""
    has_word: bool
    """Whether any item has a word of the query, a title begins with its words, or a word is known
    by its meaning."""

    def personal(self, ranked: Rows) -> Floats:
        """Add somebody's own order of these items: the features with their places, [K, F]."""
        features = self.features.copy()
        features[:, PERSONAL] = PERSONAL_SCALE / (PERSONAL_SCALE + _places(self.item_rows, ranked))
        return features


def scale_counts(item_counts: Sequence[float] | NDArray[np.floating]) -> NDArray[np.float32]:
    """Scale counts of events to 0 to 1 by their logarithm, [N]."""
    logs = np.log1p(np.asarray(item_counts, np.float64))
    return (logs / max(1e-9, float(logs.max(initial=0.0)))).astype(np.float32)


class TextSearch:
    """Finds items by texts; nothing in it changes after it is made."""

    def __init__(
        self, words: WordIndex, weights: Sequence[float], meanings: Meanings | None = None
    ) -> None:
        """Put the parts together.

        Args:
            meanings: None finds by words and spelling alone.
        """
        if len(weights) != len(FEATURES) or not np.isfinite(weights).all():
            raise ValueError(
                f"a search needs {len(FEATURES)} finite weights ({', '.join(FEATURES)}), got "
                f"{list(weights)}"
            )
        if meanings is not None and len(meanings.item_vectors) != words.num_item_rows:
            raise ValueError(
                f"a search of {words.num_item_rows} item rows has meanings of "
                f"{len(meanings.item_vectors)}; fit both on the same items"
            )
        self.words, self.meanings = words, meanings
        self.weights: Floats = np.asarray(weights, np.float32)
        self.known_words = words.known.union(() if meanings is None else meanings.words)
        """Words that some item has, or whose meanings are known."""

    @property
    def num_item_rows(self) -> int:
        return self.words.num_item_rows

    def grown(self, texts: Sequence[str]) -> TextSearch:
        """Take in items that were appended."""
        if not texts:
            return self
        words = [split(text) for text in texts]
        meanings = None if self.meanings is None else self.meanings.grown(words)
        return TextSearch(self.words.grown(words), self.weights.tolist(), meanings)

    def extended(self, texts: Sequence[str]) -> TextSearch:
        """Take in items that came after the fit, with the texts of all, [N - 1]."""
        words = WordIndex.of([[], *map(split, texts)])
        meanings = self.grown(texts[self.num_item_rows - 1 :]).meanings
        return TextSearch(words, self.weights.tolist(), meanings)

    @torch.inference_mode()
    def candidates(self, text: str, titles: Sequence[int], popularity: Floats) -> SearchCandidates:
        """Find what a text may mean.

        Args:
            popularity: Of each item, from 0 to 1, [N].
        """
        query = split(text)
        # Words that are known are not misspelt: what they mean counts, not what is spelt like them.
        unknown = [word for word in query if word not in self.known_words]
        scores, alike = self.words.scores(query), self.words.spelling(unknown)
        alike *= len(unknown) / max(1, len(query))
        found = np.zeros(0, np.int64) if scores is None else _best_words(scores, popularity)
        titled = np.asarray(titles[:NUM_EACH], np.int64)
        rows = np.union1d(titled, found)
        like = np.flatnonzero(alike)
        rows = np.union1d(rows, like[np.argsort(-alike[like], kind="stable")[:NUM_EACH]])
        meanings = self.meanings if len(titled) < FEW_TITLES else None
        near = None if meanings is None else meanings.near(query)
        if near is not None:
            rows = np.union1d(rows, _best_meanings(near, self.weights, popularity))
        features = np.zeros((len(rows), len(FEATURES)), np.float32)
        if scores is not None:
            features[:, WORDS] = scores[rows] / scores.max()
        features[:, TITLE] = 1 / (1 + _places(rows, titled)) ** 0.5
        features[:, SPELLING], features[:, POPULARITY] = alike[rows], popularity[rows]
        if near is not None:
            covered = self.words.coverage(query)
            features[:, WORDS] *= covered
            # A title has all words if the last of them is not yet whole, too.
            share = LEAST_MEANING if len(titled) else max(LEAST_MEANING, 1 - covered)
            for place, values in zip((MEANING, VALUES), near, strict=True):
                features[:, place] = share * values[rows]
        return SearchCandidates(rows, features, bool(len(found) or len(titled) or near))

    def order(self, candidates: SearchCandidates, features: Floats) -> tuple[Rows, Floats]:
        """Rank candidates by their features: rows and scores, best first; ties by row."""
        # Not by BLAS, whose product of finite numbers once reported an invalid value.
        scores: Floats = np.einsum("kf,f->k", features, self.weights)
        order = np.argsort(-scores, kind="stable")
        return candidates.item_rows[order], scores[order]

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.words.save(directory)
        if self.meanings is not None:
            self.meanings.save(directory)
        document = {
            "num_item_rows": self.num_item_rows,
            "weights": dict(zip(FEATURES, self.weights.tolist(), strict=True)),
        }
        (directory / CONFIG).write_text(json.dumps(document, indent=2) + "\n")

    @classmethod
    def load(cls, directory: Path) -> TextSearch:
        document = json.loads((directory / CONFIG).read_text())
        # A search of before meanings has no weights for them, and counts its items by its words.
        given = dict(zip(FEATURES, START, strict=True)) | document["weights"]
        words = WordIndex.load(directory, document.get("num_item_rows"))
        return cls(words, [float(given[name]) for name in FEATURES], Meanings.load(directory))


def _places(item_rows: Rows, ranked: Rows) -> NDArray[np.float64]:
    """Find the places of ascending rows in a list, from 0, [K]; infinite where it has them not."""
    places = np.full(len(item_rows), np.inf)
    at = np.searchsorted(item_rows, ranked)
    known = np.flatnonzero(at < len(item_rows))
    known = known[item_rows[at[known]] == ranked[known]]
    places[at[known]] = known
    return places


def _best_meanings(near: tuple[Floats, Floats], weights: Floats, popularity: Floats) -> Rows:
    """Take the items that are nearest to a query by meaning and values."""
    scores = weights[MEANING] * near[0] + weights[VALUES] * near[1]
    # Row 0 is padding; popularity settles the order of items that have equal values.
    scores = (scores + weights[POPULARITY] * popularity)[1:]
    number = min(NUM_EACH, len(scores))
    return np.argpartition(-scores, number - 1)[:number] + 1


def _best_words(scores: Floats, popularity: Floats) -> Rows:
    """Take the best items by words, the popular ones of equals."""
    # Of numbers the search takes several times as long.
    rows = np.flatnonzero(scores != 0)
    if len(rows) > NUM_WORDS:
        settled = scores[rows] + TIED * scores.max() * popularity[rows]
        rows = rows[np.argpartition(settled, -NUM_WORDS)[-NUM_WORDS:]]
    return rows
