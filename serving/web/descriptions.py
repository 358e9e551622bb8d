"""Describe the catalogue, surfaces and users of a bundle, as the pages show them."""

from __future__ import annotations

import heapq
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from recsys.models.text_search.wishes import value_key
from recsys.reranking.lists import clearest_categories
from serving.bundle.load import Bundle
from serving.configuration.file import ServingConfiguration
from serving.configuration.rules import Rule, holds
from serving.filtering.compile import known_properties
from serving.items import END
from serving.online.store import Visitor
from serving.online.topics import in_time, read_topics
from serving.query import Query, hydrate
from serving.recommend import Recommender
from serving.replies import CatalogueReply, Category, PastItem, RuleCard, SurfaceCard, TopicCard
from serving.schemas import Request
from serving.surfaces import HOME

MAX_CATEGORIES = 500
"""Categories on the page, largest first."""
MAX_NAMED_ITEMS = 5
"""Items of a rule that its description names."""
MAX_PREFIX_USERS = 5_000
"""Users with a prefix, in order of text, among which the shortest ids are listed."""


def describe_catalogue(
    recommender: Recommender, *, shows_users: bool, keeps_events: bool
) -> CatalogueReply:
    """Count items and users, and list categories, properties and surfaces."""
    bundle = recommender.bundle
    return CatalogueReply(
        bundle=bundle.version,
        profile=recommender.profile,
        num_items=bundle.num_item_rows - 1,
        shows_users=shows_users,
        categories=_category_sizes(bundle),
        properties=known_properties(bundle),
        surfaces=_surfaces(recommender.configuration, time.time()),
        keeps_events=keeps_events,
        num_users=bundle.users.num_user_rows - 1 if shows_users else None,
    )


def _surfaces(configuration: ServingConfiguration, now: float) -> list[SurfaceCard]:
    """Describe the surfaces with the rules and the experiment in force at a time."""
    cards = []
    for name, surface in configuration.surfaces.items():
        rules = [
            RuleCard(rule.name, _deed(rule))
            for rule in configuration.rules
            if rule.on(name) and holds(rule.span, now)
        ]
        running = (
            one.name for one in configuration.experiments if one.on(name) and holds(one.span, now)
        )
        cards.append(SurfaceCard(name, surface.kind, rules, next(running, None)))
    return cards


def _deed(rule: Rule) -> str:
    """Describe what a rule does, and to whose lists."""
    named, rest = rule.items[:MAX_NAMED_ITEMS], len(rule.items) - MAX_NAMED_ITEMS
    what = ", ".join(named) + (f" and {rest} more" if rest > 0 else "")
    if rule.where is not None:
        what = f"{what} where {rule.where}".lstrip()
    deeds = {"pin": f"pins {what} to slot {rule.slot}", "hide": f"hides {what}"}
    way = "up" if rule.kind == "boost" else "down"
    deed = deeds.get(rule.kind, f"moves {what} {way} by {rule.places} places")
    visitors = "" if rule.users.visitors == "all" else f" for {rule.users.visitors} visitors"
    domains = "" if rule.users.domains is None else f" in {', '.join(rule.users.domains)}"
    return deed + visitors + domains


def list_history(recommender: Recommender, user_row: int, k: int) -> list[PastItem]:
    """List a user's latest k events, newest first."""
    users = recommender.bundle.users
    rows, times, _ = users.events(user_row)
    found = []
    for place in range(len(rows) - 1, max(len(rows) - 1 - k, -1), -1):
        card = recommender.cards.of(int(rows[place]))
        moment = None if times is None else int(times[place])
        found.append(PastItem(card.item_id, card.title, card.categories, card.semantic_id, moment))
    return found


def list_topics(recommender: Recommender, user_id: str, visitor: Visitor) -> list[TopicCard]:
    """List what a user said, then what the categories of the history say."""
    now, items = time.time(), recommender.steering.items
    said = in_time(read_topics(visitor.topics), now)
    cards = [
        TopicCard(*one.wanted, "said", one.until, int(np.count_nonzero(items.mask(one.words))))
        for one in said
    ]
    query = hydrate(Request(user_id=user_id), recommender.bundle, HOME, visitor, int(now))
    known = {value_key(one.words) for one in said}
    inferred = _inferred(query, recommender)
    return cards + [card for card in inferred if value_key(card.words) not in known]


def _inferred(query: Query, recommender: Recommender) -> Iterator[TopicCard]:
    """Find categories that the history has far more of than the catalogue, the clearest first."""
    catalogue = recommender.bundle.catalogue
    rows, offsets = np.unique(query.seen), catalogue.category_offsets
    own = [catalogue.category_values[offsets[row] : offsets[row + 1]] for row in rows]
    every = np.bincount(catalogue.category_values, minlength=catalogue.num_category_rows)
    for row, share in clearest_categories(own, every, catalogue.num_item_rows - 1):
        name, strength = catalogue.category_names[row], round(min(1.0, share), 2)
        yield TopicCard(name, "more", strength, "inferred", None, int(every[row]))


def _category_sizes(bundle: Bundle) -> list[Category]:
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
        """List k user ids with a prefix, short ones first; case does not matter."""
        folded = prefix.casefold()
        first = bisect_left(self._ids, (folded,))
        last = bisect_left(self._ids, (folded + END,))
        near = self._ids[first : min(last, first + MAX_PREFIX_USERS)]
        shortest = heapq.nsmallest(k, near, key=lambda pair: (len(pair[0]), pair))
        return [user_id for _, user_id in shortest]
