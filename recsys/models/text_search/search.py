"""Items by a text: candidates of BM25, of titles and of the text tower, in one learned order.

A candidate's score is a weighted sum of what is known of it and the query: the words it has, the
place among titles that have all of them, the similarity of spellings and meanings, how popular it
is, and, where somebody is known, its place in the list that is theirs.

    tower.safetensors, item_vectors.safetensors    the text tower and what it says of items
    *.npy, *.index.json                            words
    search.json                                    settings, weights

Axes: N item rows, K candidates, D width.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from recsys.data.top_k import best_of_one
from recsys.models.text_search.lexical import WordIndex
from recsys.models.text_search.merging import weighed
from recsys.models.text_search.tokens import bags_of, split
from recsys.models.text_search.tower import TextTower, TextTowerConfig

Rows = NDArray[np.int64]
Floats = NDArray[np.float32]

FEATURES = ("words", "title", "spelling", "popularity", "personal")
"""What a candidate is known by; ``personal`` is 0 where nobody is known."""
NUM_EACH = 200
"""Candidates by title, and by spelling."""
NUM_WORDS = 500
"""Candidates by words, of which many may be equal: all items of a category are."""
TIED = 1e-3
"""Share of the best score by which popularity settles such ties."""
LEAST_SPELLING = 0.1
"""Cosine below which a text is not like an item's."""
PERSONAL_SCALE = 10.0
"""Places of the personal list over which its feature halves."""
CONFIG, TOWER, VECTORS = "search.json", "tower.safetensors", "item_vectors.safetensors"


@dataclass(frozen=True)
class Candidates:
    """Items that a text may mean, and what is known of each."""

    item_rows: Rows
    """Ascending, [K]."""
    features: Floats
    """[K, 5], by ``FEATURES``."""
    has_word: bool
    """Whether any item has a word of the query, or a title begins with its words."""

    def personal(self, ranked: Rows) -> Floats:
        """Add somebody's own order of these items: the features with their places, [K, 5].

        Args:
            ranked: Some or all of the items, best first.
        """
        features = self.features.copy()
        features[:, -1] = PERSONAL_SCALE / (PERSONAL_SCALE + _places(self.item_rows, ranked))
        return features


class TextSearch:
    """Finds items by texts; nothing in it changes after it is made."""

    def __init__(
        self,
        tower: TextTower,
        item_vectors: torch.Tensor,
        words: WordIndex,
        weights: Sequence[float],
    ) -> None:
        """Put the parts together.

        Args:
            item_vectors: By the tower, [N, D]; rows without a text are zeros.
            weights: Of ``FEATURES``.

        Raises:
            ValueError: Parts that do not fit.
        """
        if len(weights) != len(FEATURES) or not np.isfinite(weights).all():
            raise ValueError(
                f"a search needs {len(FEATURES)} finite weights ({', '.join(FEATURES)}), got "
                f"{list(weights)}"
            )
        if item_vectors.shape[1] != tower.config.dim:
            raise ValueError(
                f"item vectors are {item_vectors.shape[1]} wide, the text tower {tower.config.dim}"
            )
        self.tower, self.item_vectors, self.words = tower, item_vectors, words
        self.weights: Floats = np.asarray(weights, np.float32)

    @property
    def num_item_rows(self) -> int:
        return len(self.item_vectors)

    def grown(self, texts: Sequence[str]) -> TextSearch:
        """Take in items that were appended; their words are found by title and spelling."""
        if not texts:
            return self
        more = self.tower.encode([split(text) for text in texts])
        return TextSearch(
            self.tower, torch.cat([self.item_vectors, more]), self.words, self.weights.tolist()
        )

    @torch.inference_mode()
    def candidates(self, text: str, titles: Sequence[int], popularity: Floats) -> Candidates:
        """Find what a text may mean.

        Args:
            text: As typed.
            titles: Items whose titles have all words of it, or begin with them, best first.
            popularity: Of each item, from 0 to 1, [N].
        """
        query = split(text)
        vector = self.tower(bags_of([query], self.tower.config.num_buckets))[0]
        scores = self.words.scores(query)
        found = np.zeros(0, np.int64) if scores is None else _best_words(scores, popularity)
        titled = np.asarray(titles[:NUM_EACH], np.int64)
        rows = np.union1d(titled, found)
        if len(found) == 0 or not self.words.knows(query):
            # Only a text with a word that no item has is looked up by spelling.
            near = best_of_one(self.item_vectors @ vector, min(NUM_EACH, self.num_item_rows - 1))
            like = near.item_rows[(near.scores >= LEAST_SPELLING) & (near.item_rows > 0)]
            rows = np.union1d(rows, like)
        features = np.zeros((len(rows), len(FEATURES)), np.float32)
        if scores is not None and len(found):
            known = rows < len(scores)
            features[known, 0] = scores[rows[known]] / scores.max()
            # Appended items are not among the words yet; their titles have all of the query's.
            features[~known & np.isin(rows, titled), 0] = 1
        features[:, 1] = 1 / (1 + _places(rows, titled)) ** 0.5
        features[:, 2] = (self.item_vectors[torch.from_numpy(rows)] @ vector).numpy()
        features[:, 3] = popularity[rows]
        return Candidates(rows, features, bool(len(found) or len(titled)))

    def order(self, candidates: Candidates, features: Floats) -> tuple[Rows, Floats]:
        """Rank candidates by their features: rows and scores, best first; ties by row."""
        scores = weighed(features, self.weights)
        order = np.argsort(-scores, kind="stable")
        return candidates.item_rows[order], scores[order]

    def save(self, directory: Path) -> None:
        """Write the parts."""
        directory.mkdir(parents=True, exist_ok=True)
        save_file({"table": self.tower.table.weight.detach()}, directory / TOWER)
        save_file({"item_vectors": self.item_vectors.contiguous()}, directory / VECTORS)
        self.words.save(directory)
        document = {
            "tower": asdict(self.tower.config),
            "weights": dict(zip(FEATURES, self.weights.tolist(), strict=True)),
        }
        (directory / CONFIG).write_text(json.dumps(document, indent=2) + "\n")

    @classmethod
    def load(cls, directory: Path) -> TextSearch:
        """Read what ``save`` wrote.

        Raises:
            ValueError: Parts that do not fit.
        """
        document = json.loads((directory / CONFIG).read_text())
        tower = TextTower(TextTowerConfig(**document["tower"]))
        tower.table.weight = torch.nn.Parameter(
            load_file(directory / TOWER)["table"], requires_grad=False
        )
        vectors = load_file(directory / VECTORS)["item_vectors"]
        weights = [float(document["weights"][name]) for name in FEATURES]
        return cls(tower, vectors, WordIndex.load(directory, len(vectors)), weights)


def _places(item_rows: Rows, ranked: Rows) -> NDArray[np.float64]:
    """Find the places of ascending rows in a list, from 0, [K]; infinite where it has them not."""
    places = np.full(len(item_rows), np.inf)
    at = np.searchsorted(item_rows, ranked)
    known = np.flatnonzero(at < len(item_rows))
    known = known[item_rows[at[known]] == ranked[known]]
    places[at[known]] = known
    return places


def _best_words(scores: Floats, popularity: Floats) -> Rows:
    """Take the best items by words, the popular ones of equals."""
    # Of numbers the search takes several times as long.
    rows = np.flatnonzero(scores != 0)
    if len(rows) > NUM_WORDS:
        settled = scores[rows] + TIED * scores.max() * popularity[rows]
        rows = rows[np.argpartition(settled, -NUM_WORDS)[-NUM_WORDS:]]
    return rows
