"""Recall and NDCG of one kept-back item a user. Needs the standard library alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

K = 10


def recall_and_ndcg(
    lists: Mapping[str, Sequence[str]], target: Mapping[str, str]
) -> tuple[float, float]:
    """Mean over the targets' users of R@10 and N@10; a user without a list has 0."""
    places = [
        list(lists.get(user, ()))[:K].index(item)
        for user, item in target.items()
        if item in list(lists.get(user, ()))[:K]
    ]
    gains = sum(1 / math.log2(place + 2) for place in places)
    count = max(len(target), 1)
    return len(places) / count, gains / count


def without(lists: Mapping[str, Sequence[str]], history: Mapping[str, Sequence[str]]) -> dict:
    """Leave each user's history out of the user's list."""
    seen = {user: set(items) for user, items in history.items()}
    return {
        user: [item for item in items if item not in seen.get(user, ())]
        for user, items in lists.items()
    }
