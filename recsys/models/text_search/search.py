"""Items by a text: candidates of BM25, of titles and of the text tower, in one learned order.

A candidate's score is a weighted sum of features of it and the query: the words it has, the
place among titles that have all of them, the similarity of spellings and meanings, how popular it
is, and, where somebody is known, its place in the list that is theirs.

    tower.safetensors, item_vectors.safetensors    the text tower and what it says of items
    *.npy, *.index.json                            words
    search.json                                    settings, weights

BM25 (Robertson and Zaragoza, 2009) is the library bm25s; this is its one door. The tower sums its
tokens' vectors to unit length. One table serves queries and items, so a word that no query was
trained on still finds the items that have it, and a query with a typo finds items that share most
parts of its words. It is trained contrastively on queries made from the items' own texts, with the
other items of a batch as negatives.

Axes: N item rows, K candidates, B texts, T tokens, D width.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from recsys.data.top_k import best_of_one
from recsys.models.configs import TextTowerConfig, without_removed
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


START = (4.0, 2.0, 4.0, 0.5, 1.0)
L2 = 1e-3
NUM_STEPS = 200


def weighed(
    features: NDArray[np.float32], weights: Sequence[float] | NDArray[np.float32]
) -> NDArray[np.float32]:
    """Score candidates, [K, F] -> [K].

    Not by BLAS, whose product of finite numbers once reported an invalid value.
    """
    scores: NDArray[np.float32] = np.einsum("kf,f->k", features, np.asarray(weights, np.float32))
    return scores


def fit_weights(
    features: Sequence[NDArray[np.float32]],
    targets: Sequence[int],
    l2: float = L2,
    start: Sequence[float] = START,
) -> list[float]:
    """Fit by the softmax over each query's candidates (ListNet, Cao et al., 2007).

    Weights are kept at 0 or above: no evidence for an item may count against it.

    Args:
        features: Of each query, [K, F].
        targets: Place of the item that was looked for among them; queries without are left out by
            the caller.
        start: Where weights start, [F]; by default those of ``FEATURES``.

    Returns:
        A weight for each feature; those that every query has 0 for keep their start.
    """
    if not features:
        return list(start)
    lengths = [len(one) for one in features]
    padded = torch.zeros(len(features), max(lengths), len(start))
    mask = torch.zeros(len(features), max(lengths), dtype=torch.bool)
    for row, one in enumerate(features):
        padded[row, : len(one)], mask[row, : len(one)] = torch.from_numpy(one), True
    labels = torch.tensor(list(targets))
    begin = torch.tensor(start)
    weights = begin.clone().requires_grad_()
    optimizer = torch.optim.Adam([weights], lr=0.1)
    for _ in range(NUM_STEPS):
        logits = (padded @ weights.clamp_min(0)).masked_fill(~mask, -torch.inf)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss = loss + l2 * (weights - begin).square().sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    used = padded.abs().sum((0, 1)) > 0
    return torch.where(used, weights.detach().clamp_min(0), begin).tolist()


Rows = NDArray[np.int64]
Floats = NDArray[np.float32]

FEATURES = ("words", "title", "spelling", "popularity", "personal")
"""Features of a candidate; ``personal`` is 0 for an unknown user."""
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
class SearchCandidates:
    """Items that a text may mean, and the features of each."""

    item_rows: Rows
    """Ascending, [K]."""
    features: Floats
    """[K, 5], by ``FEATURES``."""
    has_word: bool
    """Whether any item has a word of the query, or a title begins with its words."""

    def personal(self, ranked: Rows) -> Floats:
        """Add somebody's own order of these items: the features with their places, [K, 5]."""
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
    def candidates(self, text: str, titles: Sequence[int], popularity: Floats) -> SearchCandidates:
        """Find what a text may mean.

        Args:
            popularity: Of each item, from 0 to 1, [N].
        """
        query = split(text)
        vector = self.tower(hash_texts([query], NUM_BUCKETS))[0]
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
        return SearchCandidates(rows, features, bool(len(found) or len(titled)))

    def order(self, candidates: SearchCandidates, features: Floats) -> tuple[Rows, Floats]:
        """Rank candidates by their features: rows and scores, best first; ties by row."""
        scores = weighed(features, self.weights)
        order = np.argsort(-scores, kind="stable")
        return candidates.item_rows[order], scores[order]

    def save(self, directory: Path) -> None:
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
        document = json.loads((directory / CONFIG).read_text())
        fixed = {
            "num_buckets": NUM_BUCKETS,
            "batch_size": BATCH_SIZE,
            "learning_rate": LEARNING_RATE,
            "temperature": TEMPERATURE,
        }
        tower = TextTower(TextTowerConfig(**without_removed(document["tower"], fixed, directory)))
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
