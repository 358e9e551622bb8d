"""Item rows that the rules of a request are for.

Axes: N item rows, n ranked items.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving.bundle.load import Bundle
from serving.configuration.rules import Rule
from serving.filtering.compile import matching_rows

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
NO_ROWS: Rows = np.empty(0, np.int64)


class RuleRows:
    """The item rows of rules, for one bundle; made on first use."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._listed: dict[str, Rows] = {}
        self._hidden: dict[str, Rows] = {}

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
            found &= matching_rows(rows, rule.expression, self._bundle)
        return found

    def hidden(self, rule: Rule) -> Rows:
        """Rows that a rule of kind ``hide`` hides."""
        if rule.name not in self._hidden:
            every = np.arange(1, self._bundle.num_item_rows)
            self._hidden[rule.name] = every[self.holds_for(rule, every)]
        return self._hidden[rule.name]
