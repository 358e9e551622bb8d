"""Look up what a page shows: items by title, users by prefix of their id, histories."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice
from random import Random

import numpy as np

from serving.bundle.load import Bundle
from serving.items.title_search import END
from serving.recommend import Recommender
from serving.replies import Category, PastItem, UserCard

MAX_CATEGORIES = 500
"""Categories on the page, largest first."""
MAX_PREFIX_USERS = 5_000
"""Users with a prefix, in order of text, among which the shortest ids are listed."""


def past_items(recommender: Recommender, user_row: int, k: int) -> list[PastItem]:
    """List a user's latest k events, newest first."""
    users = recommender.bundle.users
    rows, times = users.history(user_row), users.history_times(user_row)
    found = []
    for place in range(len(rows) - 1, max(len(rows) - 1 - k, -1), -1):
        card = recommender.cards.of(int(rows[place]))
        moment = None if times is None else int(times[place])
        found.append(PastItem(card.item_id, card.title, card.categories, card.semantic_id, moment))
    return found


def user_card(bundle: Bundle, user_row: int) -> UserCard:
    """Describe a user for a list."""
    return UserCard(bundle.users.user_ids[user_row], len(bundle.users.history(user_row)))


def random_users(bundle: Bundle, k: int, random: Random) -> list[UserCard]:
    """Draw k users, or all where there are fewer."""
    rows = range(1, bundle.users.num_user_rows)
    return [user_card(bundle, row) for row in random.sample(rows, min(k, len(rows)))]


def category_sizes(bundle: Bundle) -> list[Category]:
    """List the largest categories by name, with their numbers of items."""
    catalogue = bundle.catalogue
    counts = np.bincount(catalogue.category_values, minlength=catalogue.num_category_rows)
    counts[0] = 0
    largest = np.argsort(-counts, kind="stable")[:MAX_CATEGORIES].tolist()
    found = {catalogue.category_names[row]: int(counts[row]) for row in largest if counts[row]}
    return [Category(name, found[name]) for name in sorted(found, key=str.casefold)]


class UserIndex:
    """User ids in order of their folded text."""

    def __init__(self, user_ids: Iterable[str]) -> None:
        self._ids = sorted((user_id.casefold(), user_id) for user_id in islice(user_ids, 1, None))

    def beginning_with(self, prefix: str, k: int) -> list[str]:
        """List k user ids with a prefix, short ones first, whatever the case."""
        folded = prefix.casefold()
        first = bisect_left(self._ids, (folded,))
        last = bisect_left(self._ids, (folded + END,))
        near = self._ids[first : min(last, first + MAX_PREFIX_USERS)]
        shortest = heapq.nsmallest(k, near, key=lambda pair: (len(pair[0]), pair))
        return [user_id for _, user_id in shortest]
