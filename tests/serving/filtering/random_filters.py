"""Random filters, the items that they let through by a slow reading, and requests with them."""

from dataclasses import dataclass, replace
from datetime import date
from random import Random

from recsys.data.filters import AllOf, AnyOf, Membership, Missing, Not, parse
from serving.bundle.load import Bundle
from serving.bundle.properties import Properties
from serving.schemas import Request

KINDS = {"price": "number", "brand": "text", "tags": "list", "new": "boolean", "since": "date"}
WORDS = {
    "price": ["0", "3", "10.5", "-1"],
    "brand": ["'brand 0'", "'brand 2'", "'?'"],
    "tags": ["'t0'", '"t3"', "'?'"],
    "category": ["'even'", "'tens'"],
    "since": ["'2026-01-03'", "'2026-01-20'"],
    "new": ["true", "false"],
    "item_id": ["'item-3'", "'item-8'", "'item-10'", "'?'"],
}


def with_properties(bundle: Bundle) -> Bundle:
    """Give items made-up properties; every seventh has nothing at all."""
    rows = [row if row % 7 else None for row in range(1, bundle.num_item_rows)]
    values = {
        "price": [row and row * 0.5 for row in rows],
        "brand": [row and f"brand {row % 3}" for row in rows],
        "tags": [row and [f"t{row % 4}", f"t{row % 5}"][: row % 3] for row in rows],
        "new": [row and row % 2 == 0 for row in rows],
        "since": [row and date(2026, 1, row % 28 + 1) for row in rows],
    }
    return replace(bundle, properties=Properties.of_values(KINDS, values))


def items_of(bundle: Bundle) -> list[dict]:
    """Each item as a plain dictionary, in the order of their rows."""
    return [
        {
            **bundle.properties.of(row),
            "category": bundle.catalogue.categories_of(row),
            "item_id": bundle.catalogue.item_ids[row],
        }
        for row in range(1, bundle.num_item_rows)
    ]


def truth(node, item):
    """Evaluate a filter for one item: True, False, or None for unknown."""
    if isinstance(node, Not):
        inner = truth(node.part, item)
        return None if inner is None else not inner
    if isinstance(node, AllOf | AnyOf):
        parts = [truth(part, item) for part in node.parts]
        decisive = isinstance(node, AnyOf)
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive
    value = item.get(node.name)
    if isinstance(node, Missing):
        return value is None
    if value is None:
        return None
    value = value if isinstance(value, list) else [value]
    if isinstance(node, Membership):
        return any(one in node.values for one in value)
    return {
        "=": node.value in value,
        "!=": node.value not in value,
        "<": value[0] < node.value,
        "<=": value[0] <= node.value,
        ">": value[0] > node.value,
        ">=": value[0] >= node.value,
    }[node.operator]


def let_through(where: str, items: list[dict]) -> set[str]:
    root = parse(where).root
    return {item["item_id"] for item in items if truth(root, item) is True}


def random_where(rng: Random, depth: int = 3) -> str:
    kind = rng.randrange(4) if depth else 0
    if kind == 1:
        return f"not ({random_where(rng, depth - 1)})"
    if kind > 1:
        parts = [random_where(rng, depth - 1) for _ in range(rng.randint(2, 3))]
        return f"({rng.choice([' and ', ' or ']).join(parts)})"
    return _random_test(rng)


def _random_test(rng: Random) -> str:
    name = rng.choice(sorted(WORDS))
    test = rng.choice(["=", "!=", "<", "<=", ">", ">=", "in", "not in", "is missing"])
    if test == "is missing":
        return f"{name} {test}"
    if "in" in test:
        return f"{name} {test} [{', '.join(rng.choices(WORDS[name], k=rng.randint(1, 3)))}]"
    if name not in ("price", "since"):
        test = rng.choice(["=", "!="])
    return f"{name} {test} {rng.choice(WORDS[name])}"


@dataclass(frozen=True)
class FilteredRequest:
    """A request, and the ids that its list may have."""

    request: Request
    allowed: set[str]


class RandomRequests:
    """Requests of every surface, each with a filter."""

    def __init__(self, bundle: Bundle, rng: Random, num_filters: int) -> None:
        self._rng = rng
        items = items_of(bundle)
        self._ids = [item["item_id"] for item in items]
        wheres = [random_where(rng) for _ in range(num_filters)]
        self._wheres = [(where, let_through(where, items)) for where in wheres]
        self._categories = {
            name: {item["item_id"] for item in items if name in item["category"]}
            for name in ("even", "odd", "tens", "?")
        }

    def next(self) -> FilteredRequest:
        rng, filter_, allowed = self._rng, {}, set(self._ids)
        if rng.random() < 0.9:
            filter_["where"], passing = rng.choice(self._wheres)
            allowed &= passing
        if rng.random() < 0.3 or not filter_:
            names = rng.choices(sorted(self._categories), k=rng.randint(1, 2))
            filter_["categories"] = names
            allowed &= set().union(*(self._categories[name] for name in names))
        fields = {"filter": filter_, "k": rng.choice([1, 5, 20, 200])}
        if rng.random() < 0.3:
            fields["exclude"] = rng.choices(self._ids, k=rng.randint(1, 10))
            allowed -= set(fields["exclude"])
        if rng.random() < 0.2:
            fields |= {"surface": "related", "item_id": rng.choice(self._ids)}
            allowed.discard(fields["item_id"])
        else:
            fields["user_id"] = rng.choice([None, "user-1", "user-2", "nobody"])
            fields["session"] = rng.choices(self._ids, k=rng.randint(0, 12))
        return FilteredRequest(Request.model_validate(fields), allowed)
