"""Steering: what a visitor refuses and asks for, as items to leave out and to move.

Refused items are left out of every list and hidden from the models. Topics, which a user keeps or a
request brings, name items by a value of a property, such as a category, else by words: ``never``
leaves these out, ``more`` and ``less`` move them after the ranker. What is similar to a disliked
item is lowered by a default strength.

Axes: N item rows, n items of a list.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.data.top_k import ItemMask
from recsys.models.text_search.tokens import fold, split, words_of
from recsys.models.text_search.turns import Split
from recsys.models.text_search.wishes import LIKE, THIS, Topic, find_values, value_key
from recsys.reranking.lists import DISLIKE_STRENGTH, MAX_FACTOR, dislike_pulls, steered_order
from recsys.retrieval.ranked import RankedItems
from serving.bundle.load import Bundle
from serving.bundle.properties import ListColumn, TextColumn
from serving.exclusions import Exclusion
from serving.online.store import MAX_REFUSALS, Visitor
from serving.online.topics import SaidTopic, in_time, read_topics, said_topics
from serving.query import NOTHING, Query, Rows
from serving.retrieval import Candidates, Retrieval
from serving.schemas import Degraded, Request, Steered

Mask = NDArray[np.bool_]
Floats = NDArray[np.float32]
MAX_DISLIKED = 50
"""Disliked items that others are compared with, the latest."""
LIKE_DISLIKED, KEPT = "like disliked items", "a topic that is kept"
"""Words of a wish that has none, and of one that this caller may not read."""
NUM_LIKE = 50
"""Items that are similar to one, of small catalogues a twentieth of all."""
MAX_VALUES = 50_000
"""Different values of a property that topics may name."""
MAX_NAMES, MAX_NAME = 50, 60
"""Values that a language model may choose from, and characters of the longest."""


class TopicItems:
    """Finds the items that a topic names in one bundle."""

    def __init__(
        self,
        bundle: Bundle,
        find_titles: Callable[[str], Sequence[int]],
        find_similar: Callable[[int], Sequence[int]],
    ) -> None:
        """Take what finds items by words of their titles, and items similar to one."""
        self._bundle, self._find_titles, self._find_similar = bundle, find_titles, find_similar

    def mask(self, words: str) -> Mask:
        """Mask of the items, [N]."""
        return self._bundle.masks.get(("topic", words), lambda: self._find(words))

    def at(self, rows: Rows, words: str) -> Mask:
        """Mask of some rows, [n]."""
        return self.mask(words)[rows]

    def refused(self, item_id: str) -> Rows:
        """Find the item of an id, or the items of a value, such as ``brand:Acme``."""
        if (row := self._bundle.catalogue.row_of(item_id)) is not None:
            return np.array([row], np.int64)
        name, _, value = item_id.partition(":")
        columns = self._bundle.properties.columns
        column = self._bundle.catalogue.categories if name == "category" else columns.get(name)
        if not (value and isinstance(column, TextColumn | ListColumn)):
            return NOTHING
        return np.flatnonzero(column.with_any([value]))

    def titled(self, words: str) -> int | None:
        """Find the most popular item of a title, which may have a year after these words."""
        named, rows = re.compile(rf"{re.escape(words)}( \d+)?"), self._find_titles(words)
        titles = ((row, words_of(self._bundle.catalogue.title_of(row))) for row in rows)
        return next((row for row, title in titles if named.fullmatch(" ".join(title))), None)

    def read_twice(self, topic: Topic) -> Split | None:
        """Ask which of two readings of a topic is meant; None if they do not differ."""
        words = topic.words.removeprefix(LIKE)
        way = "no" if topic.direction == "never" else topic.direction
        keys, others = find_values(words, self._values)
        parts = [*(self._values[key][0][1] for key in keys), *others]
        found = [self.mask(fold(part)) for part in parts]
        if (keys or words != topic.words) and (row := self.titled(words)) is not None:
            found = [self.mask(LIKE + words)]
            title = self._bundle.catalogue.title_of(row)
            question = f"Similar to {title}, or all with {words}?"
            answers = f'{way} {LIKE}"{words}"', f"{way} {words}"
        elif way != "more" and keys and len(parts) > 1:
            question = f"{' as well as '.join(parts)}, or only what is {words}?"
            answers = ", ".join(f"{way} {part}" for part in parts), f"{way} {words}"
        else:
            return None
        either, other = np.logical_or.reduce(found), self.mask(words)
        differ = either.any() and other.any() and (either != other).any()
        return Split(question, answers) if differ else None

    def spelt(self, words: str) -> str:
        """Spell values as the catalogue does where no item has the word: of ``comedies`` Comedy."""
        if words.startswith(LIKE) and self.titled(words.removeprefix(LIKE)) is not None:
            return words
        search, words = self._bundle.text_search, words.removeprefix(LIKE)
        known = frozenset[str]() if search is None else search.words.known
        values = ((word, self._values.get(value_key(word))) for word in words.split())
        return " ".join(
            word if word in known or not named else named[0][1] for word, named in values
        )

    @cached_property
    def _values(self) -> dict[str, list[tuple[TextColumn | ListColumn, str]]]:
        """Values of categories and properties by their keys."""
        bundle = self._bundle
        found = defaultdict(list)
        for column in (bundle.catalogue.categories, *bundle.properties.columns.values()):
            if isinstance(column, TextColumn | ListColumn) and len(column.texts) <= MAX_VALUES:
                for text in list(column.texts)[1:]:
                    found[value_key(text)].append((column, text))
        return dict(found)

    def _find(self, words: str) -> Mask:
        """Find the items that have the named values, or all words where these are not all values.

        If no item has all words, each other one is a value that it means, or is left out.
        """
        found = np.zeros(self._bundle.num_item_rows, np.bool_)
        if words == THIS:
            return found
        is_like, words = words.startswith(LIKE), words.removeprefix(LIKE)
        if is_like and (row := self.titled(words)) is not None:
            return np.isin(np.arange(self._bundle.num_item_rows), [row, *self._find_similar(row)])
        keys, others = find_values(words, self._values)
        if others or not keys:
            found = self._with_words(words)
        if not found.any():
            keys += filter(None, map(self._meant, others))
        if keys and not found.any():
            named = (self._values[key] for key in keys)
            every = np.stack(
                [np.logical_or.reduce([one.with_any([text]) for one, text in key]) for key in named]
            )
            # "Romance comedies" are both, if there are any.
            found = np.all(every, axis=0) if every.all(0).any() else np.any(every, axis=0)
        found[0] = False
        return found

    def ignored(self, words: str) -> list[str]:
        """List the words of a topic that have no part in what it finds."""
        if words.startswith(LIKE) or self._with_words(words).any():
            return []
        return [word for word in find_values(words, self._values)[1] if not self._meant(word)]

    def names(self, wish: str) -> list[str]:
        """List values that a wish may mean, the nearest to its words first, at most `MAX_NAMES`."""
        search = self._bundle.text_search
        meanings = None if search is None else search.meanings
        near = () if meanings is None else meanings.nearest_values(words_of(wish, len(wish)))
        keys = dict.fromkeys((*map(value_key, near), *self._values))
        texts = (self._values[key][0][1] for key in keys if key in self._values)
        return list(islice((one for one in texts if 0 < len(one) <= MAX_NAME), MAX_NAMES))

    def _meant(self, word: str) -> str | None:
        """Find the key of the value that a word means; None without."""
        search = self._bundle.text_search
        if search is None or search.meanings is None:
            return None
        value = value_key(search.meanings.named_value(word) or "")
        return value if value in self._values else None

    def _with_words(self, words: str) -> Mask:
        """Mask of the items that have all words, [N]."""
        found = np.zeros(self._bundle.num_item_rows, np.bool_)
        search, known = self._bundle.text_search, split(words)
        if search is None:
            found[list(self._find_titles(words))] = True
        elif known and search.words.known.issuperset(known):
            scores = [search.words.scores([word]) for word in known]
            found = np.logical_and.reduce([one > 0 for one in scores if one is not None])
        return found


class Wishes(NamedTuple):
    """What one list takes into account."""

    unread: Rows
    """Items of the history that models do not read."""
    disliked: Rows
    """Items that similar ones are lowered for."""
    topics: tuple[SaidTopic, ...]
    """Topics that move items."""
    exclusions: tuple[Exclusion, ...]
    never: tuple[Steered, ...]
    """Topics whose items are left out."""
    notes: tuple[Degraded, ...]

    @property
    def moves(self) -> bool:
        """True if a list's items may move."""
        return len(self.disliked) > 0 or len(self.topics) > 0


NO_WISHES = Wishes(NOTHING, NOTHING, (), (), (), ())


def named_wishes(
    steered: Sequence[Steered] | None, request: Request, names_kept: bool
) -> list[Steered] | None:
    """Leave out the words of topics that are kept, where they are another's to read."""
    if steered is None or names_kept:
        return None if steered is None else list(steered)
    own = {LIKE_DISLIKED, *(one.words for one in said_topics(request.steer or "", 0.0))}
    return [one if one.words in own else replace(one, words=KEPT) for one in steered]


class Ranked(NamedTuple):
    """A list after the ranker and the wishes."""

    items: RankedItems | None
    ranker: str | None
    """Version of the ranker that ordered it."""
    notes: list[Degraded]
    steered: list[Steered] | None
    """Wishes that changed it; None if none did."""


class Steering:
    """Reads wishes and applies them to lists of one bundle."""

    def __init__(
        self,
        bundle: Bundle,
        retrieval: Retrieval,
        vectors: Callable[[Rows], Floats],
        items: TopicItems,
    ) -> None:
        """Take what ranks candidates, and what gives unit vectors of items."""
        self._bundle, self._retrieval = bundle, retrieval
        self._vectors, self.items = vectors, items

    def read(self, request: Request, visitor: Visitor, unread: Rows, now: float) -> Wishes:
        """Read what a visitor wishes up to a unix second.

        Args:
            unread: Further items that models do not read.
        """
        if not (visitor.refused or visitor.topics or request.steer):
            return NO_WISHES if unread is NOTHING else NO_WISHES._replace(unread=unread)
        refused = [(self.items.refused(event.item_id), event) for event in visitor.refused]
        rows = np.unique(np.concatenate([NOTHING, *(found for found, _ in refused)]))
        disliked = [
            row for found, event in refused if event.event_type == "dislike" for row in found
        ]
        full = len(visitor.refused) == MAX_REFUSALS
        notes = [Degraded("many_refusals", f"the newest {MAX_REFUSALS}")] * full
        exclusions = [Exclusion("hidden", "the visitor refused it", rows=rows)] * bool(len(rows))
        said = said_topics(request.steer, now) if request.steer else []
        topics = {one.words: one for one in (*in_time(read_topics(visitor.topics), now), *said)}
        moving, never = [], []
        if request.steer and not said:
            notes.append(Degraded("unknown_wish"))
        for topic in topics.values():
            mask = self.items.mask(topic.words)
            number = int(np.count_nonzero(mask))
            if not number and topic in said:
                notes.append(Degraded("unknown_wish", topic.words))
            elif number and topic.direction != "never":
                moving.append(topic)
            elif number:
                never.append(Steered(*topic.wanted, number))
                detail = "the visitor wants nothing of its kind"
                exclusions.append(Exclusion("hidden", detail, rows=np.flatnonzero(mask)))
        return Wishes(
            unread=np.concatenate([unread, rows]),
            disliked=np.array(disliked[-MAX_DISLIKED:], np.int64),
            topics=tuple(moving),
            exclusions=tuple(exclusions),
            never=tuple(never),
            notes=tuple(notes),
        )

    def rank(
        self, found: Candidates, query: Query, wishes: Wishes, mask: ItemMask, length: int
    ) -> Ranked:
        """Merge lists into one, as `Retrieval.rank` does, and move its items by the wishes.

        An item takes the score of its new place, so that scores never rise.

        Args:
            mask: Items that the list may show.
        """
        pool = max(length, int(MAX_FACTOR) * query.request.k) if wishes.moves else length
        ranked, ranker, notes = self._retrieval.rank(found, query, pool)
        if ranked is None or not wishes.moves:
            return Ranked(ranked, ranker, notes, list(wishes.never) or None)
        places = np.arange(1, len(ranked.item_rows) + 1, dtype=np.float64)
        more = self._more(ranked, query, wishes, mask)
        if more is not None:
            ranked = ranked.joined(more)
            # From a quarter of the list on, after one that was in it comes one of these.
            late = 2 * query.request.k + MAX_FACTOR * np.arange(len(ranked.item_rows) - len(places))
            places = np.concatenate([places, late])
        parts = self._pulls(ranked.item_rows, wishes)
        order = steered_order(np.sum([pulls for _, pulls in parts], axis=0), places)[:length]
        moved = np.ones(len(places), np.bool_)
        moved[min(len(places), length) :] = False
        moved[order] = True
        moved[order[order == np.arange(len(order))]] = False
        steered = [
            replace(one, num_items=number)
            for one, pulls in parts
            if (number := int(np.count_nonzero(moved & (pulls != 0))))
        ]
        ranked = ranked.at(ranked.item_rows[order], order)._replace(
            scores=ranked.scores[: len(order)]
        )
        return Ranked(ranked, ranker, notes, [*wishes.never, *steered] or None)

    def _pulls(self, rows: Rows, wishes: Wishes) -> list[tuple[Steered, Floats]]:
        """Compute how far each wish moves each item, [n]."""
        parts = []
        for topic in wishes.topics:
            size = topic.strength if topic.direction == "more" else -topic.strength
            pulls = np.where(self.items.at(rows, topic.words), np.float32(size), np.float32(0))
            parts.append((Steered(*topic.wanted, 0), pulls))
        if len(wishes.disliked):
            pulls = dislike_pulls(self._vectors(rows), self._vectors(wishes.disliked))
            parts.append((Steered(LIKE_DISLIKED, "less", DISLIKE_STRENGTH, 0), pulls))
        return parts

    def _more(
        self, ranked: RankedItems, query: Query, wishes: Wishes, mask: ItemMask
    ) -> RankedItems | None:
        """Rank further items that are wished for, if a list has few of them; None without."""
        k, wanted = query.request.k, [one.words for one in wishes.topics if one.direction == "more"]
        if not wanted or query.request.query is not None:
            return None
        there = np.logical_or.reduce([self.items.at(ranked.item_rows, words) for words in wanted])
        if np.count_nonzero(there) >= k:
            return None
        allowed = ItemMask(np.logical_or.reduce([self.items.mask(one) for one in wanted])) & mask
        found = self._retrieval.retrieve(query, allowed, None, relaxed=False)
        return self._retrieval.rank(found, query, k)[0]
