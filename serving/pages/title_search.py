"""Find items by their titles: word prefixes, case and diacritics folded, popular items first.

Axes: N item rows, W distinct words, P postings (a word of a title).
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
MAX_TITLES = 500_000
"""The most popular so many items can be found; the rest of a larger catalogue cannot."""
MAX_TITLE_CHARACTERS = 200
END = "\U0010ffff"
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
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    bare = "".join(one for one in decomposed if not unicodedata.combining(one))
    return bare.casefold().translate(_LETTERS)


def words_of(text: str) -> list[str]:
    """Split a text into folded words; an apostrophe parts none (``d'Amélie`` is ``damelie``)."""
    return _WORD.findall(APOSTROPHES.sub("", fold(text[:MAX_TITLE_CHARACTERS])))


def indexed_words(title: str) -> set[str]:
    """List the words a title is found by: also those on either side of an apostrophe."""
    return {*words_of(title), *words_of(APOSTROPHES.sub(" ", title))}


class TitleIndex:
    """Words of all titles and where they stand; holds no reference to the bundle."""

    def __init__(self, titles: Iterable[tuple[int, str]], num_titles: int) -> None:
        """Index titles.

        Args:
            titles: Item row and title, most popular first.
            num_titles: How many of them at most; ``MAX_TITLES`` bounds it too.
        """
        self._item_rows: list[int] = []
        folded: list[str] = []
        places: dict[str, list[int]] = {}
        for place, (row, title) in enumerate(titles):
            if place == min(num_titles, MAX_TITLES):
                break
            self._item_rows.append(row)
            folded.append(" ".join(words_of(title)))
            for word in indexed_words(title):
                places.setdefault(word, []).append(place)
        self._words = sorted(places)
        self._places = [np.array(places[word], np.int32) for word in self._words]
        # A stable sort, so that of equal titles the more popular comes first.
        self._by_title = sorted(range(len(folded)), key=folded.__getitem__)
        self._titles = [folded[place] for place in self._by_title]

    @property
    def num_titles(self) -> int:
        return len(self._item_rows)

    def search(self, query: str, k: int) -> list[int]:
        """List item rows whose titles have a word beginning with each word of the query.

        First the titles that are the query, then those that begin with it, then those that have
        each of its words whole, then the rest; by popularity within each.

        Args:
            query: As typed; empty lists the most popular items.
            k: At most so many.
        """
        if not query.strip():
            return self._item_rows[:k]
        words = words_of(query)
        if not words:
            return []
        text = " ".join(words)
        found = dict.fromkeys(self._titled(text, text + "\0"))
        for places in (self._titled(text, text + END), self._whole(words), self._begun(words)):
            if len(found) >= k:
                break
            found.update(dict.fromkeys(np.sort(places)[: k + len(found)].tolist()))
        return [self._item_rows[place] for place in list(found)[:k]]

    def _titled(self, first: str, last: str) -> Sequence[int]:
        """Places of titles in [first, last)."""
        return self._by_title[bisect_left(self._titles, first) : bisect_left(self._titles, last)]

    def _whole(self, words: Sequence[str]) -> Rows:
        return self._in_all([(self._at(word), self._at(word + "\0")) for word in words])

    def _begun(self, words: Sequence[str]) -> Rows:
        return self._in_all([(self._at(word), self._at(word + END)) for word in words])

    def _at(self, word: str) -> int:
        return bisect_left(self._words, word)

    def _in_all(self, ranges: Sequence[tuple[int, int]]) -> Rows:
        """Places that stand under a word of every range, ascending."""
        hits = np.ones(self.num_titles, bool)
        for first, last in ranges:
            own = np.zeros(self.num_titles, bool)
            if first < last:
                own[np.concatenate(self._places[first:last])] = True
            hits &= own
        return np.flatnonzero(hits)
