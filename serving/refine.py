"""Refine a list over several turns: a wish, a list, a correction, a question with two answers.

Nothing is kept between turns: each reply has the request of the next one.
"""

from __future__ import annotations

import torch
from pydantic import ValidationError

from recsys.data.filters import AnyOf, parse
from recsys.models.text_search.turns import NumberTest, Split, best_split, change_texts, read_turn
from recsys.models.text_search.wishes import parse_wish
from serving.bundle.load import Bundle
from serving.bundle.properties import NumberColumn
from serving.filtering.compile import CATEGORY
from serving.query import RequestError
from serving.recommend import Made, Recommender
from serving.schemas import MAX_EXCLUDE, Degraded, RefineRequest, Request

SEARCHED = ("home", "search")
"""Surfaces whose lists become those of a text search as soon as something is wanted."""
MAX_SPLIT = 100
"""Next items that a question is about."""


def refine(
    recommender: Recommender, given: RefineRequest, *, names_history: bool
) -> tuple[Made, Request, Split | None]:
    """Change a request by what is said, and make its list.

    Returns:
        The list, the request of the next turn, and what to ask: which of two readings is meant, or
        what splits the next items.

    Raises:
        RequestError: Its filter has grown too long.
    """
    bundle, before = recommender.bundle, given.request
    numbers = {
        name: one
        for name, one in bundle.properties.columns.items()
        if isinstance(one, NumberColumn) and one.kind != "boolean"
    }
    turn = read_turn(given.say, numbers)
    searches = before.surface in SEARCHED and bundle.text_search is not None
    spelt = recommender.steering.items.spelt
    topics = [
        one._replace(words=spelt(one.words)) if one.direction == "more" else one
        for one in turn.topics
    ]
    turn = turn._replace(topics=topics)
    said_before = {one.words for one in parse_wish(before.steer or "")}
    new = (one for one in topics if one.words not in said_before)
    reading = next(filter(None, map(recommender.steering.items.read_twice, new)), None)
    texts = change_texts(before.query or "", before.steer or "", turn, searches=searches)
    changes = {"query": texts[0] or None, "steer": texts[1] or None}
    if searches:
        changes["surface"] = "search" if texts[0] else "home"
    where = before.filter.where
    if where is not None and isinstance(parse(where).root, AnyOf):
        where = f"({where})"
    tests = [_tested(one, numbers[one.name], before, bundle) for one in turn.tests]
    where = " and ".join(dict.fromkeys(filter(None, (where, *tests)))) or None
    filters = before.filter.model_dump(exclude_unset=True) | {"where": where}
    sent = before.model_dump(exclude_unset=True) | changes | {"filter": filters}
    try:
        request = Request.model_validate(sent)
    except ValidationError:
        raise RequestError(
            "the filter has grown too long; begin again with a shorter one"
        ) from None
    made = recommender.make(request, names_history=names_history)
    if not (turn.topics or turn.tests):
        made.head.degraded.append(Degraded("unknown_wish"))
    exclude = [*request.exclude, *(item.item_id for item in made.reply.items)]
    following = request.model_copy(update={"exclude": exclude[-MAX_EXCLUDE:]})
    shown = [bundle.catalogue.row_of(item.item_id) for item in made.reply.items]
    parts = (made.query, made.wishes, made.eligible.mask, len(shown) + MAX_SPLIT)
    with torch.inference_mode():
        later = recommender.steering.rank(made.listed.candidates, *parts).items
    rows = [] if later is None else later.item_rows.tolist()
    rows = [row for row in rows if row not in shown][:MAX_SPLIT]
    columns = {CATEGORY: bundle.catalogue.categories, **bundle.properties.columns}
    values = {name: [one.value_of(row) for row in rows] for name, one in columns.items()}
    return made, following, reading or best_split(values, numbers, " ".join(texts))


def _tested(test: NumberTest, column: NumberColumn, before: Request, bundle: Bundle) -> str | None:
    """Write a test as a filter; None if it compares with items that have no value."""
    value = test.value
    if value is None:
        # The items of the list before are the latest that are left out.
        rows = (bundle.catalogue.row_of(item_id) for item_id in before.exclude[-before.k :])
        known = [row for row in rows if row and column.value_of(row) is not None]
        if not known:
            return None
        known.sort(key=lambda row: float(column.values[row]))
        value = str(column.value_of(known[len(known) // 2])).removesuffix(".0")
    return f"`{test.name}` {test.operator} " + (f"'{value}'" if column.kind == "date" else value)
