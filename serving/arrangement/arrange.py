"""Arrange one list by rules, diversity, caps and exploration.

    ranked -> boost, bury -> diversity -> caps, exploration -> pins -> shown

Each step takes what the one before left, best first. Every list says how likely each of its slots
was, given those before it, if anything in it was drawn; and why each item is in it, if requested.

Axes: N item rows, n candidates, D width of item vectors, k list length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from recsys.data.top_k import ItemMask
from recsys.models.names import CONTENT, MODELS, TWO_TOWER
from recsys.reranking.lists import (
    Caps,
    Group,
    Policy,
    Slate,
    capped,
    chances_of_list,
    draw_slate,
    epsilon_policy,
    mmr,
    plackett_luce_policy,
)
from recsys.retrieval.ranked import RankedItems
from serving.arrangement.rules import Moved, Pins, Rows, RuleRows, pins_by_slot
from serving.bundle.load import Bundle
from serving.bundle.properties import ListColumn, TextColumn
from serving.configuration.resolve import Resolved
from serving.items import ItemCards
from serving.query import Query
from serving.schemas import RecommendedItem, Request
from serving.surfaces import RULES, SEARCH, Exploration, Surface

NO_ROWS: Rows = np.empty(0, np.int64)
CATEGORY = "category"
MAX_POOL = 500
"""Candidates that diversity chooses from."""
EXPLORED = 100
"""Candidates that exploration draws from."""


@dataclass(eq=False)
class Arranged:
    """The list that is shown."""

    ranked: RankedItems | None
    propensities: tuple[float, ...] | None = None
    """Chance of each slot's item, given those before it; None if nothing was drawn."""
    rules: tuple[tuple[str, ...], ...] | None = None
    """Names of the rules that put each item where it is; None where none did."""

    @cached_property
    def sources(self) -> list[str]:
        """The source that contributed most to each item."""
        return [] if self.ranked is None else self.ranked.leading(RULES)


class ItemChances(NamedTuple):
    """Chances of the items in one slot of a given list."""

    chance: float
    """Chance of the item that the list has there."""
    item_rows: Rows
    """Items that it may show there, [m]."""
    chances: NDArray[np.float64]
    """Chance of each item, [m]."""


class Arranger:
    """Arranges lists of one bundle."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle, self.rule_rows = bundle, RuleRows(bundle)

    @staticmethod
    def arranges(resolved: Resolved, request: Request) -> bool:
        """Return whether a list may differ from the ranked items."""
        surface = resolved.surface
        return bool(
            request.diversity
            or any(rule.kind != "hide" for rule in resolved.rules)
            or surface.diversity.method != "none"
            or surface.caps
            or surface.exploration is not None
        )

    def length(self, resolved: Resolved, request: Request) -> int:
        """Number of ranked items that the list of a request needs."""
        if not self.arranges(resolved, request):
            return request.k
        return max(request.k, resolved.surface.num_candidates)

    def arrange(
        self,
        ranked: RankedItems | None,
        resolved: Resolved,
        query: Query,
        eligible: ItemMask,
        seed: int,
    ) -> Arranged:
        """Make the list of ``query.request.k`` from the ranked items."""
        k = query.request.k
        if ranked is None or not self.arranges(resolved, query.request):
            return Arranged(ranked)
        surface = resolved.surface
        pins, moved, order, scores = self._ordered(ranked, resolved, query, eligible)
        caps = self._caps(ranked, pins, surface)
        number = k - len(pins.slots)
        propensities: list[float] | None = None
        if surface.exploration is None:
            order = capped(order, caps, number) if caps is not None else order[:number]
        else:
            slate = self._explored(order, scores, surface.exploration, number, seed, caps)
            order, propensities = slate.places, slate.propensities.tolist()
        return _shown(ranked, order, propensities, pins, moved)

    def slot_chances(
        self,
        item_rows: Sequence[int],
        ranked: RankedItems | None,
        resolved: Resolved,
        query: Query,
        eligible: ItemMask,
    ) -> list[ItemChances]:
        """Compute how likely `arrange` is to show a given list: each slot, given those above it.

        Args:
            item_rows: Of the list, 0 for an item that the bundle does not know, [k].
            ranked: What was ranked for a request of the same length; see `arrange`.
        """
        if ranked is None:
            return [ItemChances(0.0, NO_ROWS, np.zeros(0)) for _ in item_rows]
        surface, caps = resolved.surface, None
        pins = Pins({}, {}, {})
        if self.arranges(resolved, query.request):
            pins, _, order, scores = self._ordered(ranked, resolved, query, eligible)
            caps = self._caps(ranked, pins, surface)
        else:
            order, scores = np.arange(len(ranked.item_rows)), ranked.scores
        pinned = pins_by_slot(pins, len(item_rows))
        free = [row for slot, row in enumerate(item_rows, start=1) if slot not in pinned]
        if surface.exploration is None:
            policy = epsilon_policy(0.0)
        else:
            order = order[: max(EXPLORED, query.request.k - len(pins.slots))]
            policy = self._policy(scores[: len(order)], surface.exploration)
        rows = ranked.item_rows[order]
        place_of = {row: place for place, row in enumerate(rows.tolist())}
        listed = np.array([place_of.get(row, -1) for row in free], np.int64)
        local = None if caps is None else caps.among(order.tolist())
        drawn = chances_of_list(len(order), listed, policy, local)
        found = []
        for slot, row in enumerate(item_rows, start=1):
            if slot in pinned:
                alone = np.array([pins.slots[pinned[slot]]], np.int64)
                found.append(ItemChances(float(row == alone[0]), alone, np.ones(1)))
            else:
                chance, left, chances = next(drawn)
                found.append(ItemChances(chance, rows[left], chances))
        return found

    def _ordered(
        self, ranked: RankedItems, resolved: Resolved, query: Query, eligible: ItemMask
    ) -> tuple[Pins, Moved, Rows, NDArray[np.float32]]:
        """Find the pins, and order the other items by rules, the user's mix and diversity."""
        k = query.request.k
        pins = self.rule_rows.pins(ranked, resolved.rules, eligible, k)
        moved = self.rule_rows.moved(ranked, resolved.rules)
        order = np.array([place for place in moved.order if place not in pins.taken], np.int64)
        scores = ranked.scores[order]
        if moved.by_place:
            scores = -np.arange(len(order), dtype=np.float32)
        number = k - len(pins.slots)
        order, scores = self._chosen(ranked, order, scores, resolved.surface, query, number)
        return pins, moved, order, scores

    @staticmethod
    def _policy(scores: NDArray[np.float32], exploration: Exploration) -> Policy:
        """Return the chances of each candidate that is left."""
        if exploration.method == "epsilon":
            return epsilon_policy(exploration.epsilon or 0.0)
        return plackett_luce_policy(scores, exploration.temperature or 1.0)

    def _chosen(
        self,
        ranked: RankedItems,
        order: Rows,
        scores: NDArray[np.float32],
        surface: Surface,
        query: Query,
        number: int,
    ) -> tuple[Rows, NDArray[np.float32]]:
        """Choose by the user's own mix and by diversity; the other items follow."""
        strength = query.request.diversity
        method = surface.diversity.method
        if strength is None:
            strength = 0.0 if method == "none" else surface.diversity.strength
        pool = min(len(order), MAX_POOL)
        if surface.caps or surface.exploration is not None:
            # Caps and draws leave some of those chosen out.
            number = 2 * number
        if strength > 0:
            vectors = self.vectors(ranked.item_rows[order[:pool]])
            places = mmr(scores[:pool], vectors, number, strength)
            order, scores = _first(order, places)
        return order, scores

    def _explored(
        self,
        order: Rows,
        scores: NDArray[np.float32],
        exploration: Exploration,
        number: int,
        seed: int,
        caps: Caps | None,
    ) -> Slate:
        length = max(EXPLORED, number)
        order, scores = order[:length], scores[:length]
        local = None if caps is None else caps.among(order.tolist())
        policy = self._policy(scores, exploration)
        slate = draw_slate(len(order), number, policy, np.random.default_rng(seed), local)
        return Slate(order[slate.places], slate.propensities)

    def _caps(self, ranked: RankedItems, pins: Pins, surface: Surface) -> Caps | None:
        """Count the caps' values of the pinned items."""
        if not surface.caps:
            return None
        pinned = np.array(list(pins.slots.values()), np.int64)
        rows = np.concatenate([ranked.item_rows, pinned])
        groups: list[list[Group]] = [[] for _ in range(len(rows))]
        for number, name in enumerate(surface.caps):
            values, owners = self._values(name, rows)
            for value, owner in zip(values.tolist(), owners.tolist(), strict=True):
                groups[owner].append((number, value))
        caps = Caps(groups, list(surface.caps.values()))
        for place in range(len(ranked.item_rows), len(rows)):
            caps.take(place)
        return caps

    def _values(self, name: str, rows: Rows) -> tuple[Rows, Rows]:
        """Rows of the items' values of a property, and for each the place of its item, [V]."""
        bundle = self._bundle
        column = bundle.properties.columns.get(name)
        if name == CATEGORY:
            column = bundle.catalogue.categories
        places = np.arange(len(rows))
        if isinstance(column, TextColumn):
            values, owners = column.codes[rows], places
        elif isinstance(column, ListColumn):
            first = column.offsets[rows]
            counts = column.offsets[rows + 1] - first
            owners = np.repeat(places, counts)
            within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
            values = column.codes[first[owners] + within]
        else:
            return NO_ROWS, NO_ROWS
        known = values != 0
        return values[known], owners[known]

    def vectors(self, rows: Rows) -> NDArray[np.float32]:
        """Unit vectors of items: of what they are about, else of the two-tower, [n, D]."""
        content = self._bundle.items.content
        places = torch.from_numpy(rows)
        if content.shape[1]:
            found = content[places]
        elif self._bundle.retriever is not None:
            found = self._bundle.retriever.index.vectors(places)
        else:
            found = torch.zeros(len(rows), 1)
        return functional.normalize(found.float(), dim=1).numpy()


def _first(order: Rows, places: Rows) -> tuple[Rows, NDArray[np.float32]]:
    """Put chosen places first, and score all by their place from now on."""
    rest = np.ones(len(order), np.bool_)
    rest[places] = False
    order = np.concatenate([order[places], order[rest]])
    return order, -np.arange(len(order), dtype=np.float32)


def _shown(
    ranked: RankedItems, order: Rows, propensities: list[float] | None, pins: Pins, moved: Moved
) -> Arranged:
    """Put pins into their slots, and the rest around them."""
    number = len(order) + len(pins.slots)
    place_of = {slot: place for place, slot in pins.taken.items()}
    rest = iter(zip(order.tolist(), propensities or [1.0] * len(order), strict=True))
    rows, places, chances = [], [], []
    names: list[tuple[str, ...]] = []
    pinned_slots = pins_by_slot(pins, number)
    for slot in range(1, number + 1):
        if slot in pinned_slots:
            pinned = pinned_slots[slot]
            rows.append(pins.slots[pinned])
            places.append(place_of.get(pinned, -1))
            chances.append(1.0)
            names.append((pins.names[pinned],))
            continue
        place, chance = next(rest)
        rows.append(int(ranked.item_rows[place]))
        places.append(place)
        chances.append(chance)
        names.append((moved.names[place],) if place in moved.names else ())
    return Arranged(
        ranked.at(np.array(rows, np.int64), np.array(places, np.int64)),
        tuple(chances) if propensities is not None else None,
        tuple(names) if any(names) else None,
    )


BY_SOURCE = {
    **{one.name: one.reason for one in MODELS},
    RULES: "is put here by a rule",
    SEARCH: "is what was searched for",
}
"""Reason of each source, unless another one explains an item better."""


def build_items(
    shown: Arranged, query: Query, bundle: Bundle, cards: ItemCards, names_history: bool
) -> list[RecommendedItem]:
    """Build the items of a reply, with reasons if requested.

    Args:
        names_history: Whether a reason may name items of the user's stored history; without it,
            only items that the request itself sent are named.
    """
    if (ranked := shown.ranked) is None:
        return []
    rows, sources = ranked.item_rows.tolist(), shown.sources
    why: Sequence[str | None] = [None] * len(rows)
    shares: Sequence[dict[str, float] | None] = [None] * len(rows)
    if query.request.explain:
        why = _explain(rows, sources, query, bundle, names_history)
        shares = ranked.shares()
    return [
        RecommendedItem(card, score, source, reason, parts)
        for card, score, source, reason, parts in zip(
            map(cards.of, rows), ranked.scores.tolist(), sources, why, shares, strict=True
        )
    ]


def _explain(
    item_rows: Sequence[int],
    sources: Sequence[str],
    query: Query,
    bundle: Bundle,
    names_history: bool,
) -> list[str]:
    """Explain why each item is recommended, by the source that put it there."""
    rows = np.array(item_rows, np.int64)
    seeds = {
        name: model.strongest_seeds(rows, query.positive.history)
        for name, model in bundle.item_weights.items()
        if name in sources
    }
    title_of = bundle.catalogue.title_of
    sent = set(query.sent.tolist())
    found = []
    for place, (row, source) in enumerate(zip(item_rows, sources, strict=True)):
        seed = int(seeds[source][place]) if source in seeds else 0
        if seed == row:
            found.append("was taken before")
        elif seed:
            named = names_history or seed in sent
            found.append(f"goes with {title_of(seed) if named else 'the history'}")
        elif source == CONTENT.name:
            like = title_of(query.item_row) if query.item_row else "the history"
            new = not query.item_row and row >= bundle.num_released_rows
            found.append(f"is about the same as {like}{', and is new' if new else ''}")
        elif source == TWO_TOWER.name and query.item_row:
            found.append(f"is like {title_of(query.item_row)}")
        else:
            outside = bundle.outside.get(source)
            found.append(outside.names.reason if outside else BY_SOURCE[source])
    return found
