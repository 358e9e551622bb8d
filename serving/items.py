"""Items by a text and as cards: titles by word prefixes, search with spelling, cards of replies.

SQLite FTS5 searches titles: case and accents folded, popular items first. Words that no title has
are corrected to the nearest ones that titles have.
"""

from __future__ import annotations

import sqlite3
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from rapidfuzz.distance import OSA
from rapidfuzz.process import extractOne

from recsys.data.top_k import ItemMask, OneList
from recsys.models.text_search.folding import APOSTROPHES, words_of
from recsys.models.text_search.search import SearchCandidates, TextSearch
from recsys.models.text_search.tokens import shared_parts, split
from serving.bundle.catalogue import MAX_TITLE
from serving.bundle.load import Bundle
from serving.schemas import Degraded, ItemCard

MAX_KEPT = 16_384
"""Cards in memory, about 10 MB."""


class ItemCards:
    """The cards of a bundle's items by row; safe to share between threads."""

    def __init__(self, bundle: Bundle) -> None:
        catalogue, semantic_ids = bundle.catalogue, bundle.semantic_ids

        # Nothing here refers to itself: a cycle would keep a swapped bundle's files open.
        @lru_cache(MAX_KEPT)
        def made(item_row: int) -> ItemCard:
            return ItemCard(
                item_id=catalogue.item_ids[item_row],
                title=catalogue.display_texts[item_row][:MAX_TITLE] or None,
                categories=tuple(catalogue.categories_of(item_row)) or None,
                semantic_id=semantic_ids.text(item_row) or None if semantic_ids else None,
            )

        self.of: Callable[[int], ItemCard] = made
        """The card of an item row."""


MAX_TITLES = 500_000
"""Most items that are indexed, the most popular ones."""
MIN_CORRECTED = 4
"""Characters of the shortest word that is corrected; in shorter ones a typo could be any word."""
LONG_WORD = 8
"""Length of a word from which two typos are corrected."""
END = "\U0010ffff"


def indexed_texts(title: str) -> tuple[str, str]:
    """Fold a title to its words, and to those plus the ones on either side of an apostrophe."""
    words = words_of(title)
    more = words_of(APOSTROPHES.sub(" ", title)) if APOSTROPHES.search(title) else []
    return " ".join(words), " ".join([*words, *more])


# A place is an item's rank by popularity. The words are folded here, so FTS5 only has to split them
# at spaces: its tokenizer ``ascii`` takes each character beyond ASCII as part of a word.
_SCHEMA = """
CREATE TABLE titles (place INTEGER PRIMARY KEY, item_row INTEGER, title TEXT);
CREATE VIRTUAL TABLE words USING fts5(
    folded, tokenize = 'ascii', prefix = '1 2', content = '', columnsize = 0, detail = 'none'
);
"""
_TITLE = "SELECT title FROM titles WHERE item_row = ? LIMIT 1"
_POPULAR = "SELECT item_row FROM titles ORDER BY place LIMIT ?"
_EQUAL = "SELECT item_row FROM titles WHERE title = ? ORDER BY place LIMIT ?"
_BEGINNING = "SELECT item_row FROM titles WHERE title >= ? AND title < ? ORDER BY place LIMIT ?"
_WITH_WORDS = (
    "SELECT item_row FROM words JOIN titles ON place = words.rowid WHERE words MATCH ? "
    "ORDER BY words.rowid LIMIT ?"
)


class TitleIndex:
    """Titles in an in-memory database; holds no reference to the bundle, safe between threads."""

    def __init__(self, titles: Iterable[tuple[int, str]]) -> None:
        """Index item rows with their titles, most popular first, at most ``MAX_TITLES``."""
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.executescript(_SCHEMA)
        entries = [
            (place, row, *indexed_texts(title))
            for place, (row, title) in enumerate(islice(titles, MAX_TITLES))
        ]
        insert = self._database.executemany
        insert("INSERT INTO titles VALUES (?, ?, ?)", (entry[:3] for entry in entries))
        words = ((place, text) for place, _, _, text in entries)
        insert("INSERT INTO words (rowid, folded) VALUES (?, ?)", words)
        self._database.execute("CREATE INDEX by_title ON titles (title, place)")
        self._database.execute("CREATE INDEX by_row ON titles (item_row)")
        # In order of popularity, so that of two words that are equally near the better known wins.
        known = dict.fromkeys(word for *_, text in entries for word in text.split())
        self._places = {word: place for place, word in enumerate(known)}
        self._sorted_words = sorted(self._places)
        # A typo leaves a word's first or its last letter as it is.
        self._alike: dict[tuple[int, str, int], list[str]] = {}
        for word in self._places:
            for end in (0, -1):
                self._alike.setdefault((end, word[end], len(word)), []).append(word)

    def search(self, query: str, k: int) -> list[int]:
        """List item rows whose titles have a word beginning with each word of the query.

        First the titles that equal the query, then those that begin with it, then those that have
        each of its words whole, then the rest; by popularity within each.

        Args:
            query: As typed; empty lists the most popular items.
        """
        words = words_of(query)
        text = " ".join(words)
        searches: list[tuple[str, tuple[str, ...]]] = [
            (_EQUAL, (text,)),
            (_BEGINNING, (text, text + END)),
            (_WITH_WORDS, (" AND ".join(f'"{word}"' for word in words),)),
            (_WITH_WORDS, (" AND ".join(f'"{word}"*' for word in words),)),
        ]
        if not words:
            searches = [] if query.strip() else [(_POPULAR, ())]
        found: dict[int, None] = {}
        with self._lock:
            for statement, values in searches:
                if len(found) < k:
                    rows = self._database.execute(statement, (*values, k + len(found)))
                    found.update((row, None) for (row,) in rows)
        return list(found)[:k]

    def title_of(self, item_row: int) -> str:
        """Return the folded title of an item; empty where it has none here."""
        with self._lock:
            found = self._database.execute(_TITLE, (item_row,)).fetchone()
        return str(found[0]) if found else ""

    def corrected(self, query: str) -> str | None:
        """Replace words that no title has, nor begins with, by the nearest ones that titles have.

        Returns:
            The words of the corrected query; None where there is nothing to correct, or no word is
            near.
        """
        words = words_of(query)
        fixed = [word if self._is_known(word) else self._nearest(word) for word in words]
        if fixed == words or None in fixed:
            return None
        return " ".join(word for word in fixed if word is not None)

    def _is_known(self, word: str) -> bool:
        place = bisect_left(self._sorted_words, word)
        return place < len(self._sorted_words) and self._sorted_words[place].startswith(word)

    def _nearest(self, word: str) -> str | None:
        """Find the word with the fewest edits (a swap of neighbours is one); None if too many.

        It has the same first or the same last letter.
        """
        if len(word) < MIN_CORRECTED:
            return None
        most = 1 if len(word) < LONG_WORD else 2
        lengths = range(len(word) - most, len(word) + most + 1)
        keys = [(end, word[end], length) for end in (0, -1) for length in lengths]
        found = []
        for key in keys:
            alike = self._alike.get(key, ())
            if (
                near := extractOne(word, alike, scorer=OSA.distance, score_cutoff=most)
            ) is not None:
                found.append((near[1], self._places[near[0]], near[0]))
        # Of equally near ones the better known.
        return min(found)[2] if found else None


MAX_FOUND = 1_000
LEAST_SHARED = 0.4
"""Share of a query's parts of words that a title has to have where no item has a word of it."""


@dataclass(frozen=True)
class Searched:
    """Items found by a text, best first."""

    item_rows: tuple[int, ...]
    notes: tuple[Degraded, ...] = ()
    """Notes on a corrected query, or that no item has any of its words."""
    search: TextSearch | None = None
    candidates: SearchCandidates | None = None
    """Features of each item; None if titles alone were searched."""

    def listed(self, eligible: ItemMask, personal: NDArray[np.int64] | None = None) -> OneList:
        """List what may be shown; scores fall with the place.

        Args:
            personal: Some or all of the items in the order of the user's own list.
        """
        rows = np.array(self.item_rows, np.int64)
        if personal is not None and self.search is not None and self.candidates is not None:
            rows, _ = self.search.order(self.candidates, self.candidates.personal(personal))
        rows = rows[eligible.allows(rows)]
        return OneList((1 / np.arange(1, len(rows) + 1)).astype(np.float32), rows)


@dataclass(frozen=True)
class ItemSearch:
    """Finds items by a text in one bundle."""

    titles: TitleIndex
    text_search: TextSearch | None
    popularity: NDArray[np.float32]
    """Popularity by item row, 0 to 1, [N]."""
    title_of: Callable[[int], str]
    """Gives an item's title."""

    def find(self, query: str) -> Searched:
        """Find items by their titles, and where the bundle can by all their words and spellings.

        Words that no title has are corrected.
        """
        found, notes = self.titles.search(query, MAX_FOUND), tuple[Degraded, ...]()
        known = self.text_search is not None and self.text_search.words.knows(split(query))
        if not found and not known and (corrected := self.titles.corrected(query)) is not None:
            found = self.titles.search(corrected, MAX_FOUND)
            notes, query = (Degraded("corrected_query", corrected),), corrected
        if self.text_search is None or not query.strip():
            return Searched(tuple(found), notes)
        candidates = self.text_search.candidates(query, found, self.popularity)
        rows, _ = self.text_search.order(candidates, candidates.features)
        if not candidates.has_word:
            words = split(query)
            alike = [shared_parts(words, split(self.title_of(int(row)))) for row in rows]
            rows = rows[np.array(alike, np.float64) >= LEAST_SHARED]
            notes = (Degraded("no_word_found"),) if len(rows) else ()
        return Searched(tuple(rows.tolist()), notes, self.text_search, candidates)


def build_search(bundle: Bundle) -> ItemSearch:
    """Index the titles of a bundle, popular items first."""
    catalogue = bundle.catalogue
    order = torch.sort(bundle.popularity.item_scores, descending=True, stable=True).indices
    rows = order[order > 0].tolist()
    logs = torch.log1p(bundle.item_counts)
    popularity = (logs / logs.max().clamp_min(1e-9)).float().numpy()
    titles = TitleIndex((row, catalogue.title_of(row)) for row in rows)
    return ItemSearch(titles, bundle.text_search, popularity, catalogue.title_of)
