"""Items of the history that mattered: lists are made again without each, and places compared.

Leave-one-out on the history is a counterfactual of the whole way a list is made, the ranker
included; no part of a model is interpreted. Items that are left out stay out of the list, so a
place moves by what models read alone.

Axes: H items of the history.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recsys.models.item_weights.model import ItemWeights
from serving.recommend import Made

Rows = NDArray[np.int64]
Make = Callable[[Rows], Made]
"""Makes the list without some item rows of the history."""
DEPTH = 200
"""The longest list whose places are compared."""
LOST = DEPTH + 1
"""Place of an item after them, or of one that is no candidate."""
MAX_LATEST = 20
MAX_STRONGEST = 10
"""Older items that are left out too: those that similar-item models weigh most."""
MAX_NAMED = 3
MAX_JOINT = 10
"""Items of the list for which several items of the history are left out together."""
MAX_SECONDS = 1.0
"""No removal begins later; items of the history that were not reached are named nowhere."""


@dataclass(frozen=True)
class Mattered:
    """An item of the history that holds up an item of the list."""

    item_row: int
    place: int
    """Place by score of the item of the list without it."""


@dataclass(frozen=True)
class Influence:
    """Items of the history that hold up one item of a list."""

    place: int
    """Its place by score."""
    because: tuple[Mattered, ...] = ()
    """Those without which its place is worse, the worst place first."""
    place_without: int | None = None
    """Its place without all of them together; None where they are none, or that was not tried."""


@dataclass(frozen=True)
class _Ranking:
    """Places and scores of one list."""

    places: Mapping[int, int]
    scores: Mapping[int, float]

    @classmethod
    def of(cls, made: Made) -> _Ranking:
        if made.ranked is None:
            return cls({}, {})
        rows = made.ranked.item_rows[:DEPTH].tolist()
        places = {row: place for place, row in enumerate(rows, start=1)}
        return cls(places, dict(zip(rows, made.ranked.scores[:DEPTH].tolist(), strict=True)))

    def place(self, row: int) -> int:
        return self.places.get(row, LOST)

    def lead(self, row: int, others: Sequence[int]) -> float:
        """Score above the mean of other items; -inf for an item that is not there."""
        if row not in self.scores:
            return -np.inf
        found = [self.scores[other] for other in others if other in self.scores]
        return self.scores[row] - sum(found) / max(1, len(found))


@dataclass(frozen=True)
class Influences:
    """Items of the history that hold up each item of a list."""

    by_row: Mapping[int, Influence]
    num_left_out: int
    """Those that were left out, one at a time."""


def influences(
    make: Make, item_rows: Sequence[int], item_weights: Mapping[str, ItemWeights]
) -> Influences:
    """Measure what of the history holds up each item of a list.

    Makes at most ``1 + MAX_LATEST + MAX_STRONGEST + MAX_JOINT`` lists, and begins none after
    ``MAX_SECONDS``.

    Args:
        make: Makes the list, at least ``DEPTH`` long where there are as many candidates.
        item_rows: Items of the list.
        item_weights: Models that say which older items of the history may matter.
    """
    return _Removal(make, item_weights).of(item_rows)


class _Removal:
    """Lists without items of one history, each made once."""

    def __init__(self, make: Make, item_weights: Mapping[str, ItemWeights]) -> None:
        self._make, self._item_weights = make, item_weights
        self._end = time.perf_counter() + MAX_SECONDS
        self._made = make(np.empty(0, np.int64))
        self._whole = _Ranking.of(self._made)
        self._without: dict[int, _Ranking] = {}
        self._joint: dict[frozenset[int], _Ranking] = {}

    def of(self, item_rows: Sequence[int]) -> Influences:
        query = self._made.query
        history = [] if query.item_row else list(dict.fromkeys(query.history[::-1].tolist()))
        for row in self._tried(history, item_rows):
            if time.perf_counter() > self._end:
                break
            self._without[row] = _Ranking.of(self._make(np.array([row], np.int64)))
        listed = [row for row in item_rows if row in self._whole.places]
        found = {row: self._influence(row, listed) for row in listed}
        return Influences(found, len(self._without))

    def _influence(self, row: int, listed: Sequence[int]) -> Influence:
        place = self._whole.places[row]
        named = self._worst(row) or self._nearest(row, listed)
        # Several may push it up together where one alone holds it: then that one is named.
        for rows in (named, named[:1]):
            after = self._place_without(row, rows)
            if after is not None and after > place:
                because = tuple(Mattered(one, self._without[one].place(row)) for one in rows)
                return Influence(place, because, after)
        return Influence(place)

    def _place_without(self, row: int, rows: Sequence[int]) -> int | None:
        """Return the place without several items; None for none, or where that is too much work."""
        if len(rows) < 2:
            return self._without[rows[0]].place(row) if rows else None
        key = frozenset(rows)
        if key not in self._joint:
            if len(self._joint) >= MAX_JOINT or time.perf_counter() > self._end:
                return None
            self._joint[key] = _Ranking.of(self._make(np.array(sorted(key), np.int64)))
        return self._joint[key].place(row)

    def _tried(self, history: Sequence[int], item_rows: Sequence[int]) -> list[int]:
        """Choose the latest items, and older ones that similar-item models weigh most."""
        latest, rows = list(history[:MAX_LATEST]), np.unique(np.array(item_rows, np.int64))
        seeds: list[int] = []
        for name, model in self._item_weights.items():
            if name in self._made.listed.candidates.lists:
                seeds += model.strongest_seeds(rows, self._made.query.positive.history).tolist()
        older = set(history) - set(latest)
        return latest + [row for row in dict.fromkeys(seeds) if row in older][:MAX_STRONGEST]

    def _worst(self, row: int) -> list[int]:
        """List the items without which an item's place is worse, the worst first."""
        places = {one: found.place(row) for one, found in self._without.items() if one != row}
        worse = [one for one, place in places.items() if place > self._whole.places[row]]
        return sorted(worse, key=lambda one: -places[one])[:MAX_NAMED]

    def _nearest(self, row: int, listed: Sequence[int]) -> list[int]:
        """List the items without which its lead over the list shrinks most; no place moves."""
        others = [other for other in listed if other != row]
        lead = self._whole.lead(row, others)
        falls = {one: lead - found.lead(row, others) for one, found in self._without.items()}
        falling = [one for one, fall in falls.items() if fall > 0 and one != row]
        return sorted(falling, key=lambda one: -falls[one])[:MAX_NAMED]
