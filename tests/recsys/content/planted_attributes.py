"""A world whose true attribute decides what people take, and what a model says of its items."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from recsys.content.attribute_gate import GateDecision, Queries, choose_attributes
from recsys.content.encoder import Vectors

NUM_ITEMS, NUM_KINDS, HISTORY = 400, 20, 8


def wrong_at_rate(words: list[str], rate: float, generator: np.random.Generator) -> list[str]:
    """Replace a share of the words by those of items drawn at random."""
    drawn = generator.permutation(len(words))
    wrong = generator.random(len(words)) < rate
    return [words[drawn[i]] if wrong[i] else word for i, word in enumerate(words)]


def planted_world(
    seed: int, num_users: int = 250, rate: float = 0.2
) -> tuple[list[str], dict[str, list[str]], list[NDArray[np.int64]]]:
    """Titles that say nothing, an oracle's attributes, and users who stay with a kind or two."""
    generator = np.random.default_rng(seed)
    kinds = generator.integers(0, NUM_KINDS, NUM_ITEMS)
    names = generator.integers(0, 60, (NUM_ITEMS, 2))
    texts = [f"name{first} word{second}" for first, second in names]
    true = [f"kind{kind}" for kind in kinds]
    attributes = {
        "true": true,
        "fifth wrong": wrong_at_rate(true, rate, generator),
        "random": wrong_at_rate(true, 1.0, generator),
        "the same for all": ["thing"] * NUM_ITEMS,
        "absent": [""] * NUM_ITEMS,
    }
    users = []
    for _ in range(num_users):
        liked = np.isin(kinds, generator.choice(NUM_KINDS, 2, replace=False))
        weights = np.where(liked, 8.0, 1.0)
        users.append(generator.choice(NUM_ITEMS, HISTORY, replace=False, p=weights / weights.sum()))
    return texts, attributes, users


def decisions(
    texts: Sequence[str],
    attributes: Mapping[str, Sequence[str]],
    queries: Queries,
    encode: Callable[[list[str]], Vectors],
    seed: int = 0,
) -> list[GateDecision]:
    def texts_with(name: str | None, rows: Sequence[int]) -> list[str]:
        if name is None:
            return list(texts)
        words = (attributes[name][row] for row in rows)
        return [
            f"{text}. {word}" if word else text for text, word in zip(texts, words, strict=True)
        ]

    return choose_attributes(
        list(attributes), texts_with, encode, queries, num_items=len(texts), seed=seed
    )
