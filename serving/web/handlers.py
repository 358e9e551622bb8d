"""Answers of the routes that need a bundle: one method for each, under the route's name.

`Handlers.answer` reads the input by the table of routes and turns faults into refusals. The
same for the application in one process and for the server's workers.
"""

from __future__ import annotations

import heapq
import re
import time
from bisect import bisect_left
from collections.abc import Generator, Iterable, Sequence
from functools import cached_property
from itertools import islice
from random import Random

import numpy as np

from serving.bundle.load import Bundle
from serving.configuration.check import deed
from serving.configuration.file import ServingConfiguration
from serving.configuration.resolve import UnknownSurfaceError
from serving.configuration.rules import holds
from serving.cursor import CursorError
from serving.explanation.phrasing import Phraser
from serving.explanation.served_list import explain_list
from serving.filtering.compile import known_properties
from serving.filtering.expression import FilterError
from serving.items import END
from serving.list_record import write_record
from serving.online.store import RequestRecord, StoreError
from serving.query import RequestError, UnknownItemError
from serving.recommend import Made, Recommender
from serving.replies import (
    CatalogueReply,
    Category,
    HistoryReply,
    ItemsReply,
    PastItem,
    RuleCard,
    SurfaceCard,
    UserCard,
    UsersReply,
)
from serving.routes import BY_NAME
from serving.schemas import (
    ExplainParameters,
    HistoryParameters,
    ItemsParameters,
    RankRequest,
    Request,
    SearchParameters,
    SimilarParameters,
    UsersParameters,
    to_json,
)
from serving.settings import Settings
from serving.web.http import Head, HttpAnswer, RefusedError, read_input, validated
from serving.web.openapi import document
from serving.web.writes import NO_STORE

REQUEST_ID = re.compile("[0-9a-f]{32}")
MAX_CATEGORIES = 500
"""Categories on the page, largest first."""
MAX_PREFIX_USERS = 5_000
"""Users with a prefix, in order of text, among which the shortest ids are listed."""
FAULTS = (CursorError, FilterError, RequestError, UnknownItemError, UnknownSurfaceError)
"""Faults of a request that fits its schema."""


def refusal(error: Exception) -> RefusedError:
    """Build the refusal for one of `FAULTS`."""
    if isinstance(error, UnknownItemError):
        return RefusedError(404, "unknown_item", str(error))
    if isinstance(error, FilterError):
        fields = [{"field": "filter.where", "message": str(error)}]
        return RefusedError(422, error.code, f"filter.where: {error}", fields)
    return RefusedError(422, "invalid_request", str(error))


class Handlers:
    """Answers over one recommender; safe to share between threads."""

    def __init__(self, recommender: Recommender, settings: Settings) -> None:
        self._recommender, self._settings, self._random = recommender, settings, Random()

    def answer(self, head: Head, body: bytes) -> HttpAnswer:
        """Answer a request to any route but a batch."""
        try:
            given = read_input(BY_NAME[head["route"]], head, body)
            found: HttpAnswer = getattr(self, head["route"])(given, head)
        except RefusedError as error:
            return error.answer()
        except FAULTS as error:
            return refusal(error).answer()
        return found

    def batch(self, head: Head, body: bytes) -> Generator[None, None, HttpAnswer]:
        """Make several lists, all from one bundle; gives way after each."""
        try:
            given = read_input(BY_NAME["recommend_batch"], head, body)
        except RefusedError as error:
            return error.answer()
        replies: list[bytes] = []
        records: list[bytes] = []
        for request in given.requests:
            try:
                made = self._recommender.make(request, names_history=head["shown"])
                replies.append(to_json(made.reply))
                records += self._records(made)
            except FAULTS as error:
                replies.append(refusal(error).answer().body)
            yield
        whole = b'{"replies":[' + b",".join(replies) + b"]}"
        return HttpAnswer(200, whole, {"num_requests": len(replies)}, records=tuple(records))

    def recommend(self, given: Request, head: Head) -> HttpAnswer:
        made = self._recommender.make(given, names_history=head["shown"])
        reply = made.reply
        fields = {
            "request_id": reply.request_id,
            "bundle": reply.served_by.bundle,
            "num_items": len(reply.items),
            "degraded": [what.code for what in reply.degraded],
            "fallback": reply.fallback,
            "sources": sorted({item.source for item in reply.items}),
            "timings_ms": reply.timings_ms,
        }
        return HttpAnswer(200, to_json(reply), fields, records=self._records(made))

    search_list = recommend

    def rank(self, given: RankRequest, head: Head) -> HttpAnswer:
        return self.recommend(given.request(), head)

    def similar(self, given: SimilarParameters, head: Head) -> HttpAnswer:
        body = {"surface": "similar", "item_id": head["value"], "k": given.k}
        return self.recommend(validated(Request, body), head)

    def _records(self, made: Made) -> tuple[bytes, ...]:
        """Write the record of a list; none if nothing keeps it or the request is a dry run."""
        if not self._recommender.live.keeps_lists or made.query.request.dry_run:
            return ()
        return (write_record(self._recommender, made),)

    def explain(self, given: ExplainParameters, head: Head) -> HttpAnswer:
        record = self._record(head["value"])
        phraser = self._phraser if given.phrase else None
        found = explain_list(
            self._recommender, record, given.item_id, names_history=head["shown"], phraser=phraser
        )
        # The caller's limit counts lists, and these were made.
        return HttpAnswer(200, to_json(found), {"num_requests": 1 + (found.num_left_out or 0)})

    @cached_property
    def _phraser(self) -> Phraser:
        """The endpoint that rewords sentences; refuses if the server has none."""
        settings = self._settings
        if settings.phrasing_url is None or settings.phrasing_model is None:
            message = (
                "this server rewords no sentences: phrasing_url and phrasing_model are not set"
            )
            raise RefusedError(422, "invalid_request", f"phrase: {message}")
        key, seconds = settings.phrasing_key_variable, settings.phrasing_timeout_seconds
        try:
            return Phraser.at(settings.phrasing_url, settings.phrasing_model, key, seconds)
        except ValueError as error:
            raise RefusedError(422, "invalid_request", f"phrase: {error}") from error

    def _record(self, request_id: str) -> RequestRecord:
        """Find a served list, or refuse with 404 or 503."""
        if not REQUEST_ID.fullmatch(request_id):
            raise RefusedError(404, "unknown_request", "a request_id has 32 digits of 0-9a-f")
        try:
            store = self._recommender.live.store()
            if store is None:
                raise RefusedError(503, "no_store", NO_STORE)
            found = store.request(request_id)
        except StoreError as error:
            raise RefusedError(503, "store_failed", str(error)) from None
        if found is None:
            message = (
                "no list with this request_id is kept; lists are kept within a tenth of a second, "
                "for the days that --log-days says, and dry runs never"
            )
            raise RefusedError(404, "unknown_request", message)
        return found

    def schema(self, _: None, __: Head) -> HttpAnswer:
        return HttpAnswer(200, to_json(document()), {})

    def catalogue(self, _: None, head: Head) -> HttpAnswer:
        bundle = self._recommender.bundle
        try:
            keeps_events = self._recommender.live.store() is not None
        except StoreError:
            keeps_events = True
        described = CatalogueReply(
            bundle=bundle.version,
            profile=self._recommender.profile,
            num_items=bundle.num_item_rows - 1,
            shows_users=head["shown"],
            categories=_category_sizes(bundle),
            properties=known_properties(bundle),
            surfaces=_surfaces(self._recommender.configuration, time.time()),
            keeps_events=keeps_events,
            num_users=bundle.users.num_user_rows - 1 if head["shown"] else None,
        )
        return HttpAnswer(200, to_json(described), {})

    def search(self, given: SearchParameters, _: Head) -> HttpAnswer:
        found = self._recommender.search.find(given.q)
        rows = list(found.item_rows[: given.k])
        corrected = [note.detail for note in found.notes if note.code == "corrected_query"]
        return self._cards(rows, corrected[0] if rows and corrected else None)

    def items(self, given: ItemsParameters, _: Head) -> HttpAnswer:
        rows = (self._recommender.bundle.catalogue.row_of(item_id) for item_id in given.id)
        return self._cards([row for row in rows if row])

    def _cards(self, rows: Sequence[int], corrected: str | None = None) -> HttpAnswer:
        items = [self._recommender.cards.of(row) for row in rows]
        reply = ItemsReply(self._recommender.bundle.version, items, corrected)
        return HttpAnswer(200, to_json(reply), {})

    @cached_property
    def _user_index(self) -> UserIndex:
        return UserIndex(self._recommender.bundle.users.user_ids)

    def users(self, given: UsersParameters, _: Head) -> HttpAnswer:
        bundle = self._recommender.bundle
        if given.random:
            found = _random_users(bundle, given.k, self._random)
        else:
            ids = self._user_index.beginning_with(given.prefix, given.k)
            found = [_user_card(bundle, bundle.users.row_of(user_id) or 0) for user_id in ids]
        return HttpAnswer(200, to_json(UsersReply(bundle.version, found)), {})

    def history(self, given: HistoryParameters, head: Head) -> HttpAnswer:
        bundle, user_id = self._recommender.bundle, head["value"]
        row = bundle.users.row_of(user_id)
        if row is None:
            raise RefusedError(404, "unknown_user", "no user of the bundle has this id")
        items = _past_items(self._recommender, row, given.k)
        reply = HistoryReply(bundle.version, user_id, len(bundle.users.history(row)), items)
        return HttpAnswer(200, to_json(reply), {})


def _surfaces(configuration: ServingConfiguration, now: float) -> list[SurfaceCard]:
    """Describe the surfaces with the rules and the experiment in force at a time."""
    cards = []
    for name, surface in configuration.surfaces.items():
        rules = [
            RuleCard(rule.name, deed(rule))
            for rule in configuration.rules
            if rule.on(name) and holds(rule.span, now)
        ]
        running = (
            one.name for one in configuration.experiments if one.on(name) and holds(one.span, now)
        )
        cards.append(SurfaceCard(name, surface.kind, rules, next(running, None)))
    return cards


def _past_items(recommender: Recommender, user_row: int, k: int) -> list[PastItem]:
    """List a user's latest k events, newest first."""
    users = recommender.bundle.users
    rows, times = users.history(user_row), users.history_times(user_row)
    found = []
    for place in range(len(rows) - 1, max(len(rows) - 1 - k, -1), -1):
        card = recommender.cards.of(int(rows[place]))
        moment = None if times is None else int(times[place])
        found.append(PastItem(card.item_id, card.title, card.categories, card.semantic_id, moment))
    return found


def _user_card(bundle: Bundle, user_row: int) -> UserCard:
    """Describe a user for a list."""
    return UserCard(bundle.users.user_ids[user_row], len(bundle.users.history(user_row)))


def _random_users(bundle: Bundle, k: int, random: Random) -> list[UserCard]:
    """Draw k users, or all where there are fewer."""
    rows = range(1, bundle.users.num_user_rows)
    return [_user_card(bundle, row) for row in random.sample(rows, min(k, len(rows)))]


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
