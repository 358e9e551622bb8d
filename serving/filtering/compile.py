"""Compile a filter into a mask over item rows.

Only items for which it is known to be true pass: a test of a missing value is neither true nor
false, and neither is its opposite, so a filter never lets through an unknown item. ``not`` is
pushed down to the tests, where "false" leaves out missing values.

Axes: N item rows (row 0 included).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from recsys.data.filters import (
    AllOf,
    AnyOf,
    Expression,
    FilterError,
    Membership,
    Missing,
    Node,
    Not,
    Relation,
    Test,
    Value,
    shown,
)
from serving.bundle.load import Bundle
from serving.bundle.manifest import PropertyKind
from serving.bundle.properties import Column, ListColumn, NumberColumn, TextColumn

Mask = NDArray[np.bool_]
CATEGORY = "category"
ITEM_ID = "item_id"
DOMAIN = "domain"
"""The property that a surface may hold its lists to."""
RESERVED: Mapping[str, PropertyKind] = {CATEGORY: "list", ITEM_ID: "text"}
"""Names that every catalogue has; no property is called so."""
DAY = 86_400
MAX_NAMED = 20
_ORDERED: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def matching(expression: Expression, bundle: Bundle) -> Mask:
    """Mask of the items that a filter lets through, [N]; row 0 never.

    Masks are kept by the filter's text, so only its first request scans the catalogue. The array
    cannot be written into.

    Raises:
        FilterError: A property that the bundle does not have, or a value of another kind.
    """
    key = (bundle.properties.generation, expression.text)
    return bundle.masks.get(key, lambda: _compiled(expression, bundle))


def known_properties(bundle: Bundle) -> dict[str, PropertyKind]:
    """List what a filter may name, with its kind."""
    return {**RESERVED, **dict(sorted(bundle.properties.kinds.items()))}


def in_categories(names: Sequence[str], bundle: Bundle) -> Mask:
    """Mask of the items that have at least one of these categories, [N]; unknown ones have none."""
    wanted = sorted(set(names))
    column = bundle.catalogue.categories
    return bundle.masks.get((CATEGORY, *wanted), lambda: column.with_any(wanted))


def in_domain(domain: str, bundle: Bundle) -> Mask:
    """Mask of the items of a domain, [N]; none where items have no such property."""
    column = bundle.properties.columns.get(DOMAIN)
    if not isinstance(column, TextColumn | ListColumn):
        return np.zeros(bundle.num_item_rows, np.bool_)
    return bundle.masks.get((DOMAIN, domain), lambda: column.with_any([domain]))


def _compiled(expression: Expression, bundle: Bundle) -> Mask:
    mask = _holds(expression.root, True, bundle)
    mask[0] = False
    return mask


def _holds(node: Node, wanted: bool, bundle: Bundle) -> Mask:
    """Mask of the items for which a node is known to be as wanted, true or false, [N]."""
    if isinstance(node, Not):
        return _holds(node.part, not wanted, bundle)
    if not isinstance(node, AllOf | AnyOf):
        return _tested(node, wanted, bundle)
    every = isinstance(node, AllOf) == wanted
    found = _holds(node.parts[0], wanted, bundle)
    for part in node.parts[1:]:
        more = _holds(part, wanted, bundle)
        if every:
            found &= more
        else:
            found |= more
    return found


def _tested(test: Test, wanted: bool, bundle: Bundle) -> Mask:
    if isinstance(test, Relation) and test.operator == "!=":
        test, wanted = Membership(test.name, (test.value,), test.position), not wanted
    if test.name == ITEM_ID:
        return _of_ids(test, wanted, bundle)
    column = _column(test, bundle)
    if isinstance(test, Missing):
        return ~column.known() if wanted else column.known()
    hits = _numbers(test, column) if isinstance(column, NumberColumn) else _texts(test, column)
    return hits if wanted else column.known() & ~hits


def _column(test: Test, bundle: Bundle) -> Column:
    if test.name == CATEGORY:
        return bundle.catalogue.categories
    found = bundle.properties.columns.get(test.name)
    if found is None:
        known = list(known_properties(bundle))
        more = f" and {len(known) - MAX_NAMED} more" if len(known) > MAX_NAMED else ""
        raise FilterError(
            "unknown_property",
            f"character {test.position}: items of bundle {bundle.version} have no property "
            f"{shown(test.name)}; they have {', '.join(known[:MAX_NAMED])}{more}",
            test.position,
        )
    return found


def _of_ids(test: Test, wanted: bool, bundle: Bundle) -> Mask:
    """Test the ids, which no item lacks."""
    if isinstance(test, Missing):
        return np.full(bundle.num_item_rows, not wanted)
    if isinstance(test, Relation) and test.operator != "=":
        _misfit(test, "a text", "=, !=, in and not in")
    found = np.full(bundle.num_item_rows, not wanted)
    for item_id in _text_values(test, "a text"):
        if (row := bundle.catalogue.row_of(item_id)) is not None:
            found[row] = wanted
    return found


def _texts(test: Relation | Membership, column: TextColumn | ListColumn) -> Mask:
    kind = "a list of texts" if isinstance(column, ListColumn) else "a text"
    if isinstance(test, Relation) and test.operator != "=":
        _misfit(test, kind, "=, !=, in and not in")
    return column.with_any(_text_values(test, kind))


def _text_values(test: Relation | Membership, kind: str) -> list[str]:
    values = _values(test)
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) < len(values):
        _misfit(test, kind, "texts between quotes")
    return texts


def _numbers(test: Relation | Membership, column: NumberColumn) -> Mask:
    values = column.values
    if column.kind == "date":
        # A date of the filter covers its whole day.
        values = np.floor_divide(values, DAY)
        requested = [_day(value, test) for value in _values(test)]
    else:
        wanted = bool if column.kind == "boolean" else float
        if not all(type(value) is wanted for value in _values(test)):
            takes = "true and false" if wanted is bool else "numbers without quotes"
            _misfit(test, f"a {column.kind}", takes)
        requested = [float(value) for value in _values(test)]
    if isinstance(test, Membership):
        found: Mask = np.isin(values, requested) if len(requested) > 1 else values == requested[0]
        return found
    if column.kind == "boolean" and test.operator != "=":
        _misfit(test, "a boolean", "=, !=, in and not in")
    compared: Mask = _ORDERED[test.operator](values, requested[0])
    return compared


def _values(test: Relation | Membership) -> Sequence[Value]:
    return test.values if isinstance(test, Membership) else (test.value,)


def _day(value: Value, test: Test) -> float:
    """Count the days of a date since 1970."""
    if isinstance(value, str) and len(value) == len("YYYY-MM-DD"):
        try:
            return float(date.fromisoformat(value).toordinal() - date(1970, 1, 1).toordinal())
        except ValueError:
            pass
    _misfit(test, "a date", "dates as 'YYYY-MM-DD'")


def _misfit(test: Test, kind: str, takes: str) -> NoReturn:
    raise FilterError(
        "invalid_filter",
        f"character {test.position}: {shown(test.name)} is {kind} and takes {takes}",
        test.position,
    )
