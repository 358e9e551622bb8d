"""Texts that a search reads of each item, and queries made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.engine.artifacts import read_json
from recsys.models.text_search.tokens import ItemText, split
from serving.items import TitleIndex

ATTRIBUTES = ("categories", "brand")
"""Columns whose values a query may name."""
READ = ("title", *ATTRIBUTES, "description", "release_year")
"""Columns that are searched, in this order, where the catalogue has them, and the decade."""


Kind = Literal["title", "typo", "attribute", "mixed"]
SHARES: dict[Kind, float] = {"title": 0.4, "typo": 0.25, "attribute": 0.2, "mixed": 0.15}
"""Shares of the kinds of query that are trained on."""
MAX_TITLE_WORDS = 4
SHORTEST_TYPO = 4
"""Characters of the shortest word that a typo is put into."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def read_described(features: Path, enriched: Path) -> tuple[pl.DataFrame, list[str]]:
    """Read the catalogue by item row, with the attributes that a language model found.

    A column of the shop's own is not replaced.

    Returns:
        The items, and the attributes that are texts or lists of them.
    """
    items = pl.read_parquet(features / "items.parquet").sort("item_row")
    found, texts = pl.read_parquet(enriched / "enrichment.parquet"), []
    for name, kind in read_json(enriched / "enrichment.json").get("kinds", {}).items():
        one = found.filter(pl.col("attribute") == name)
        if name in items.columns or one.is_empty():
            continue
        values = {
            "array": pl.col("values"),
            "boolean": pl.col("values").list.first() == "yes",
            "number": pl.col("values").list.first().cast(pl.Float64, strict=False),
        }
        column = values.get(kind, pl.col("values").list.first()).alias(name)
        items = items.join(one.select("item_row", column), "item_row", "left").sort("item_row")
        texts += [name] if kind in ("array", "string") else []
    return items, texts


def item_texts(items: pl.DataFrame, found: Sequence[str] = ()) -> list[ItemText]:
    """Read the catalogue, by item row from 1.

    Args:
        found: Further columns that a query may name.
    """
    return [_read_text(item, found) for item in items.sort("item_row").iter_rows(named=True)]


def _read_text(item: dict[str, object], found: Sequence[str]) -> ItemText:
    parts = {name: list(_values(item.get(name))) for name in (*READ, *found)}
    title = " ".join(parts["title"])
    named = [value for name in (*ATTRIBUTES, *found) for value in parts[name]]
    rest = [value for values in parts.values() for value in values]
    rest += [f"{int(year) // 10}0s" for year in parts["release_year"] if year.isdecimal()]
    return ItemText(
        item_row=int(str(item["item_row"])),
        title=title,
        text=" ".join(rest),
        attributes=tuple(dict.fromkeys(named)),
    )


def _values(value: object) -> Iterator[str]:
    if isinstance(value, list):
        yield from (str(one) for one in value if one is not None)
    elif value is not None and str(value).strip():
        yield str(value)


def title_index(texts: Sequence[ItemText], popularity: NDArray[np.float32]) -> TitleIndex:
    """Index titles as a server does, the most popular first."""
    order = sorted(texts, key=lambda item: (-popularity[item.item_row], item.item_row))
    return TitleIndex((item.item_row, item.title) for item in order)


class MadeQuery(NamedTuple):
    """A query and what it is made of."""

    text: str
    kind: Kind


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
            return MadeQuery(chosen, kind)
        if kind == "mixed":
            chosen = str(self._random.choice(attributes))
            return MadeQuery(f"{chosen} {self._random.choice(words)}", kind)
        typed = self._some(words or split(item.text))
        if kind == "typo":
            typed = self._misspelt(typed)
        return MadeQuery(" ".join(typed), kind)

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
