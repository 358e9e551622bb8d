"""Texts of a generated world's items: words tell the topic, a noun tells the domain.

Axes: N items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

START = 1_704_067_200
"""Unix seconds of the first event, 2024-01-01 UTC."""
MILLION = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """What is known of each item, all of length N, in the order of ``item_ids``."""

    item_ids: tuple[str, ...]
    titles: tuple[str, ...]
    descriptions: tuple[str, ...]
    categories: tuple[tuple[str, ...], ...]
    prices: NDArray[np.float64]


# No two topics share a word, so that text alone tells what a cold item is about.
TOPICS = {
    "garden": ("roses", "soil", "tulips", "pruning", "orchard", "seeds"),
    "space": ("rockets", "comets", "orbit", "galaxy", "astronauts", "mars"),
    "kitchen": ("bread", "spices", "oven", "noodles", "soup", "knives"),
    "sea": ("sailing", "whales", "harbour", "tides", "coral", "lighthouse"),
    "crime": ("detective", "alibi", "heist", "poison", "witness", "forgery"),
    "mountain": ("glacier", "summit", "climbing", "avalanche", "valley", "hut"),
    "machine": ("engine", "robots", "gears", "turbine", "welding", "circuits"),
    "history": ("castle", "emperor", "siege", "parchment", "knights", "dynasty"),
}
DOMAINS = {"books": "novel", "films": "film", "games": "game", "music": "album"}


def catalogue_of(
    topics: NDArray[np.int64],
    domains: NDArray[np.int64],
    words: NDArray[np.int64],
    prices: NDArray[np.float64],
    numbers: Sequence[int] | None = None,
) -> Catalogue:
    """Write item-0, item-1, ... with title, description and categories.

    Args:
        words: Any integers, [N, 2]; they choose the words.
        numbers: In ids and titles; 0, 1, ... by default.
    """
    names, nouns = list(TOPICS), list(DOMAINS.items())
    titles, descriptions, categories = [], [], []
    numbers = range(len(topics)) if numbers is None else numbers
    rows = zip(numbers, topics.tolist(), domains.tolist(), words.tolist(), strict=True)
    for number, topic, domain, (first, step) in rows:
        vocabulary = TOPICS[names[topic]]
        # Steps of 1 and 2 never come back to a word of six within three.
        chosen = [vocabulary[(first + place * (1 + step % 2)) % 6] for place in range(3)]
        section, noun = nouns[domain]
        titles.append(f"{chosen[0].capitalize()} and {chosen[1]}, {noun} {number}")
        descriptions.append(f"A {noun} about {chosen[0]}, {chosen[1]} and {chosen[2]}.")
        categories.append((section, names[topic]))
    return Catalogue(
        item_ids=tuple(f"item-{number}" for number in numbers),
        titles=tuple(titles),
        descriptions=tuple(descriptions),
        categories=tuple(categories),
        prices=prices,
    )
