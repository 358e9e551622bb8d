"""Steering: what a visitor refuses and asks for, as items to leave out and to move.

Refused items are left out of every list and hidden from the models. What is similar to a disliked
item is lowered after the ranker, by a default strength.

Axes: n items of a list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.reranking.steering import DISLIKE_STRENGTH, MAX_FACTOR, dislike_pulls, steered_order
from serving.bundle.load import Bundle
from serving.exclusions import Exclusion
from serving.online.store import MAX_REFUSALS, Visitor
from serving.query import NOTHING, Query, Rows
from serving.ranking import RankedItems
from serving.retrieval import Candidates, Retrieval
from serving.schemas import Degraded, Steered

Vectors = Callable[[Rows], NDArray[np.float32]]
MAX_DISLIKED = 50
"""Disliked items that others are compared with, the latest."""


class Wishes(NamedTuple):
    """What one list takes into account, in rows of the bundle."""

    unread: Rows
    """Items of the history that models do not read."""
    disliked: Rows
    """Items that similar ones are lowered for."""
    exclusions: tuple[Exclusion, ...]
    notes: tuple[Degraded, ...]

    def pool(self, length: int, k: int) -> int:
        """Number of ranked items that a list needs."""
        return max(length, int(MAX_FACTOR) * k) if self.moves else length

    @property
    def moves(self) -> bool:
        """True if a list's items may move."""
        return len(self.disliked) > 0


class Steering:
    """Reads wishes and applies them to lists of one bundle."""

    def __init__(self, bundle: Bundle, retrieval: Retrieval, vectors: Vectors) -> None:
        """Take what ranks candidates, and what gives unit vectors of items."""
        self._bundle, self._retrieval, self._vectors = bundle, retrieval, vectors

    def read(self, visitor: Visitor, unread: Rows) -> Wishes:
        """Read what a visitor asked for; ``unread`` are further items that models do not read."""
        if not visitor.refused:
            return Wishes(unread, NOTHING, (), ())
        row_of = self._bundle.catalogue.row_of
        known = [(row, event) for event in visitor.refused if (row := row_of(event.item_id))]
        rows = np.array([row for row, _ in known], np.int64)
        disliked = [row for row, event in known if event.event_type == "dislike"]
        full = len(visitor.refused) == MAX_REFUSALS
        return Wishes(
            unread=np.concatenate([unread, rows]),
            disliked=np.array(disliked[-MAX_DISLIKED:], np.int64),
            exclusions=(Exclusion("hidden", "the visitor refused it", rows=rows),) * bool(known),
            notes=(Degraded("many_refusals", f"the newest {MAX_REFUSALS}"),) * full,
        )

    def rank(
        self, found: Candidates, query: Query, wishes: Wishes, length: int
    ) -> tuple[RankedItems | None, str | None, list[Degraded], list[Steered] | None]:
        """Merge lists into one, as `Retrieval.rank` does, and move its items by the wishes.

        An item takes the score of its new place, so that scores never rise.

        Returns:
            What `Retrieval.rank` returns, and the wishes that moved items; None if none did.
        """
        pool = wishes.pool(length, query.request.k)
        ranked, ranker, notes = self._retrieval.rank(found, query, pool)
        if ranked is None or not wishes.moves:
            return ranked, ranker, notes, None
        pulls = dislike_pulls(self._vectors(ranked.item_rows), self._vectors(wishes.disliked))
        order = steered_order(pulls)[:length]
        moved = int(np.count_nonzero(order != np.arange(len(order))))
        scores = ranked.scores[: len(order)]
        ranked = ranked.at(ranked.item_rows[order], order)._replace(scores=scores)
        words = f"like {len(wishes.disliked)} disliked items"
        steered = [Steered(words, "less", DISLIKE_STRENGTH, moved)] if moved else None
        return ranked, ranker, notes, steered
