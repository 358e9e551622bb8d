"""Texts as words and parts of words, and queries that are made of the texts of items."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

MAX_CHARACTERS = 200
"""Characters of a text that are split into words by default."""
APOSTROPHES = re.compile("['\u2019]")

_LETTERS = str.maketrans(
    {
        "\u00f8": "o",
        "\u0142": "l",
        "\u0111": "d",
        "\u0131": "i",
        "\u00e6": "ae",
        "\u0153": "oe",
        "\u00fe": "th",
        "\u00f0": "d",
    }
)
# Scripts written without spaces, and pictures: each character is a word.
_SINGLE = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u2600-\u27bf\U0001f000-\U0001faff"
_WORD = re.compile(f"[{_SINGLE}]|[^\\W_{_SINGLE}]+")


def fold(text: str) -> str:
    """Drop case and diacritics, so that ``Amélie`` and ``AMELIE`` are one."""
    if text.isascii():
        return text.casefold()
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    bare = "".join(one for one in decomposed if not unicodedata.combining(one))
    return bare.casefold().translate(_LETTERS)


def words_of(text: str, most: int = MAX_CHARACTERS) -> list[str]:
    """Split a text into folded words; an apostrophe splits none (``d'Amélie`` is ``damelie``)."""
    return _WORD.findall(APOSTROPHES.sub("", fold(text[:most])))


def indexed_texts(title: str) -> tuple[str, str]:
    """Fold a title to its words, and to those plus the ones on either side of an apostrophe."""
    words = words_of(title)
    more = words_of(APOSTROPHES.sub(" ", title)) if APOSTROPHES.search(title) else []
    return " ".join(words), " ".join([*words, *more])


PART = 3
"""Characters of a part of a word."""
MAX_WORD = 32
"""Characters of a word that are read."""


def parts_of(word: str) -> list[str]:
    """Cut a word, its ends marked, into each three characters that follow each other."""
    framed = f"<{word[:MAX_WORD]}>"
    return [framed[place : place + PART] for place in range(len(framed) - PART + 1)]


MAX_WORDS = 64
"""Words of a text that are read."""
MAX_TEXT = 1_000
"""Characters of an item's text that are read."""


_DECADE = re.compile(r"(1[89]|20)?([0-9])0(s|ern?)?")
_DECADES = {
    "twenties": 1920,
    "thirties": 1930,
    "forties": 1940,
    "fifties": 1950,
    "sixties": 1960,
    "seventies": 1970,
    "eighties": 1980,
    "nineties": 1990,
}
_YEARS = ("annees", "anos", "anni")
"""Words that a decade follows in French, Spanish and Italian, such as "annees 80"."""


def split(text: str) -> list[str]:
    """Split an item's text or a query into at most ``MAX_WORDS`` words.

    Decades in figures or words, such as "80s", become one word: ``1980s``.
    """
    words: list[str] = []
    for word in words_of(text, MAX_TEXT)[:MAX_WORDS]:
        decade = _DECADES.get(word)
        if decade is None and (named := _DECADE.fullmatch(word)) is not None:
            follows = bool(words) and words[-1] in _YEARS
            if named[3] or follows:
                decade = 10 * int((named[1] or ("19" if named[2] >= "3" else "20")) + named[2])
                words = words[:-1] if follows else words
        words.append(word if decade is None else f"{decade}s")
    return words


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
