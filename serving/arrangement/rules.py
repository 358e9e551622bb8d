"""What rules do to a list: their items' rows, pins to slots, moves up and down.

Axes: N item rows, n requested rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.data.top_k import ItemMask
from recsys.retrieval.ranked import RankedItems
from serving.bundle.load import Bundle
from serving.configuration.rules import Rule
from serving.filtering.compile import matching

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Pins(NamedTuple):
    """Rows and rules by slot, and the slots of those that are ranked by their place."""

    slots: dict[int, int]
    names: dict[int, str]
    taken: dict[int, int]


class Moved(NamedTuple):
    """Places in their new order, and the rules that moved them."""

    order: list[int]
    names: dict[int, str]
    by_place: bool


class RuleRows:
    """The item rows of rules, for one bundle; made on first use."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._listed: dict[str, Rows] = {}
        self._hidden: dict[tuple[int, str], Rows] = {}

    def listed(self, rule: Rule) -> Rows:
        """Rows of the items that a rule names, in its order; unknown ones are left out."""
        if rule.name not in self._listed:
            found = map(self._bundle.catalogue.row_of, rule.items)
            self._listed[rule.name] = np.array([row for row in found if row], np.int64)
        return self._listed[rule.name]

    def holds_for(self, rule: Rule, rows: Rows) -> Mask:
        """Mask of the rows that a rule is for, [n]."""
        found = np.ones(len(rows), np.bool_)
        if rule.items:
            found &= np.isin(rows, self.listed(rule))
        if rule.expression is not None:
            found &= matching(rule.expression, self._bundle)[rows]
        return found

    def hidden(self, rule: Rule) -> Rows:
        """Rows that a rule of kind ``hide`` hides."""
        key = (self._bundle.properties.generation, rule.name)
        if key not in self._hidden:
            self._hidden = {one: rows for one, rows in self._hidden.items() if one[0] == key[0]}
            every = np.arange(1, self._bundle.num_item_rows)
            self._hidden[key] = every[self.holds_for(rule, every)]
        return self._hidden[key]

    def pins(self, ranked: RankedItems, rules: Sequence[Rule], eligible: ItemMask, k: int) -> Pins:
        """Find the item of each pin: the best ranked that it holds for, or the first it names."""
        pins = Pins({}, {}, {})
        for rule in rules:
            if rule.kind != "pin" or rule.slot is None or rule.slot > k or rule.slot in pins.slots:
                continue
            listed = self.listed(rule)
            named = listed if rule.items else ranked.item_rows
            fits = eligible.allows(named) & self.holds_for(rule, named)
            free = [row for row in named[fits].tolist() if row not in pins.slots.values()]
            if free:
                pins.slots[rule.slot] = free[0]
                pins.names[rule.slot] = rule.name
                for place in np.flatnonzero(ranked.item_rows == free[0]).tolist():
                    pins.taken[place] = rule.slot
        return pins

    def moved(self, ranked: RankedItems, rules: Sequence[Rule]) -> Moved:
        """Move items up and down by the rule of the highest priority that is for them."""
        number = len(ranked.item_rows)
        keys = np.arange(number, dtype=np.float64)
        names: dict[int, str] = {}
        for rule in rules:
            if rule.kind not in ("boost", "bury"):
                continue
            places = rule.places or 0
            # Half a place, so that who was moved stands before, or behind, who was there.
            shift = -places - 0.5 if rule.kind == "boost" else places + 0.5
            for place in np.flatnonzero(self.holds_for(rule, ranked.item_rows)).tolist():
                if place not in names:
                    names[place] = rule.name
                    keys[place] += shift
        order = np.argsort(keys, kind="stable") if names else np.arange(number)
        return Moved(order.tolist(), names, bool(names))


def pins_by_slot(pins: Pins, number: int) -> dict[int, int]:
    """Find the pin of each slot of a list; one after a short list's end moves up."""
    waiting = sorted(pins.slots)
    found: dict[int, int] = {}
    for slot in range(1, number + 1):
        if waiting and (waiting[0] <= slot or number - slot + 1 <= len(waiting)):
            found[slot] = waiting.pop(0)
    return found
