"""Items by a text and as cards: titles by word prefixes, search with spelling, cards of replies.

SQLite FTS5 searches titles: case and accents folded, popular items first. Words that no title has
are corrected to the nearest ones that titles have.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import numpy as np
import orjson
import torch
from numpy.typing import NDArray

from recsys.data.top_k import ItemMask, OneList
from recsys.models.text_search.search import SearchCandidates, TextSearch, scale_counts
from recsys.models.text_search.tokens import indexed_texts, split, words_of
from recsys.models.text_search.words import MIN_CORRECTED, MIN_WITH_OTHERS, Spelling
from serving.bundle.catalogue import MAX_TITLE
from serving.bundle.load import Bundle
from serving.schemas import Degraded, ItemCard, to_json

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

        @lru_cache(MAX_KEPT)
        def written(item_row: int) -> tuple[bytes, bytes]:
            card = made(item_row)
            item_id = orjson.dumps(card.item_id)
            return item_id, to_json(card)[len(b'{"item_id":') + len(item_id) :]

        self.of: Callable[[int], ItemCard] = made
        """The card of an item row."""
        self.json: Callable[[int], tuple[bytes, bytes]] = written
        """The JSON of the card of an item row: that of its id, and the rest after it."""


MAX_TITLES = 500_000
"""Most items that are indexed, the most popular ones."""
END = "\U0010ffff"


# A place is an item's rank by popularity. The words are folded here, so FTS5 only has to split them
# at spaces: its tokenizer ``ascii`` takes each character beyond ASCII as part of a word.
_SCHEMA = """
CREATE TABLE titles (place INTEGER PRIMARY KEY, item_row INTEGER, title TEXT);
CREATE VIRTUAL TABLE words USING fts5(
    folded, tokenize = 'ascii', prefix = '1 2', content = '', columnsize = 0, detail = 'none'
);
"""
_POPULAR = "SELECT item_row FROM titles ORDER BY place LIMIT ?"
_EQUAL = "SELECT item_row FROM titles WHERE title = ? ORDER BY place LIMIT ?"
_BEGINNING = "SELECT item_row FROM titles WHERE title >= ? AND title < ? ORDER BY place LIMIT ?"
_TITLE_WITH_WORDS = (
    "SELECT title FROM words JOIN titles ON place = words.rowid WHERE words MATCH ? "
    "ORDER BY words.rowid LIMIT 1"
)
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
        # In order of popularity, so that of two words that are equally near the better known wins.
        self._spelling = Spelling(word for *_, text in entries for word in text.split())

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

    def corrected(self, query: str, known: Container[str] = ()) -> str | None:
        """Replace words that no title has, nor begins with, by near ones that titles have.

        Of near words those are taken that one title has together, the most popular one, else the
        nearest.

        Args:
            known: Further words that are left as they are.

        Returns:
            The words of the corrected query; None where there is nothing to correct, or no word is
            near.
        """
        typed, spelling, options = words_of(query), self._spelling, list[list[str]]()
        shortest = MIN_CORRECTED if len(typed) == 1 else MIN_WITH_OTHERS
        for word in typed:
            if word in known or spelling.is_known(word):
                options.append([word])
            elif parts := spelling.parted(word):
                options += [[part] for part in parts]
            else:
                options.append(spelling.near(word, shortest))
        if not all(options) or [[word] for word in typed] == options:
            return None
        # A word has no quotes.
        joined = " AND ".join('("' + '" OR "'.join(some) + '")' for some in options)
        with self._lock:
            found = self._database.execute(_TITLE_WITH_WORDS, (joined,)).fetchone()
        title = found[0].split() if found else ()
        near = [[one for one in some if one in title] or some for some in options]
        return " ".join(some[0] for some in near)


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

    def find(self, query: str) -> Searched:
        """Find items by their titles, and where the bundle can by all their words and spellings.

        Words that no title has are corrected.
        """
        found, notes = self.titles.search(query, MAX_FOUND), tuple[Degraded, ...]()
        words = () if self.text_search is None else self.text_search.known_words
        is_known = bool(words) and all(word in words for word in split(query))
        corrected = None if found or is_known else self.titles.corrected(query, words)
        if corrected is not None:
            found = self.titles.search(corrected, MAX_FOUND)
            notes, query = (Degraded("corrected_query", corrected),), corrected
        if self.text_search is None or not query.strip():
            return Searched(tuple(found), notes)
        candidates = self.text_search.candidates(query, found, self.popularity)
        rows, _ = self.text_search.order(candidates, candidates.features)
        if not candidates.has_word:
            rows = rows[self.text_search.words.spelling(split(query))[rows] >= LEAST_SHARED]
            notes = (Degraded("no_word_found"),) if len(rows) else ()
        return Searched(tuple(rows.tolist()), notes, self.text_search, candidates)


def build_search(bundle: Bundle) -> ItemSearch:
    """Index the titles of a bundle, popular items first."""
    catalogue = bundle.catalogue
    order = torch.sort(bundle.popularity.item_scores, descending=True, stable=True).indices
    rows = order[order > 0].tolist()
    popularity = scale_counts(bundle.item_counts.numpy())
    titles = TitleIndex((row, catalogue.title_of(row)) for row in rows)
    return ItemSearch(titles, bundle.text_search, popularity)
