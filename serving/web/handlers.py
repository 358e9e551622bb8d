"""Answers of the routes that need a bundle: one method for each, under the route's name.

`Handlers.answer` reads the input by the table of routes and turns faults into refusals. The
same for the application in one process and for the server's workers.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import asdict, astuple
from functools import cached_property
from random import Random

from orjson import Fragment

from recsys.data.filters import FilterError
from serving.configuration.resolve import UnknownSurfaceError
from serving.exclusions import CursorError
from serving.explanation.served_list import explain_list
from serving.list_record import write_items, write_record
from serving.online.store import RequestRecord, StoreError
from serving.online.topics import TopicsRequest, said_topics
from serving.query import RequestError, UnknownItemError
from serving.recommend import Made, Recommender
from serving.refine import refine
from serving.replies import (
    ClarifyingQuestion,
    DescribedItem,
    HistoryReply,
    ItemsReply,
    TopicsReply,
    UserCard,
    UsersReply,
)
from serving.routes import BY_NAME
from serving.schemas import (
    ExplainParameters,
    HistoryParameters,
    ItemsParameters,
    RefineRequest,
    Request,
    SearchParameters,
    SimilarParameters,
    UsersParameters,
    reply_json,
    to_json,
)
from serving.web.descriptions import (
    UserIndex,
    describe_catalogue,
    document,
    list_history,
    list_topics,
)
from serving.web.http import NO_STORE, Head, HttpAnswer, RefusedError, read_input, validated

REQUEST_ID = re.compile("[0-9a-f]{32}")
MAX_READ = 1_000
"""Events since the release that topics are inferred from."""
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

    def __init__(self, recommender: Recommender) -> None:
        self._recommender, self._random = recommender, Random()

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
        """Make several lists, all from one release; gives way after each."""
        try:
            given = read_input(BY_NAME["recommend_batch"], head, body)
        except RefusedError as error:
            return error.answer()
        replies: list[bytes] = []
        records: list[bytes] = []
        for request in given.requests:
            try:
                arm = self._recommender.for_arm(request)
                made = arm.make(request, names_history=head["shown"])
                reply, own = self._written(made)
                replies.append(reply)
                records += own
            except FAULTS as error:
                replies.append(refusal(error).answer().body)
            yield
        whole = b'{"replies":[' + b",".join(replies) + b"]}"
        return HttpAnswer(200, whole, {"num_requests": len(replies)}, records=tuple(records))

    def recommend(self, given: Request, head: Head) -> HttpAnswer:
        made = self._recommender.for_arm(given).make(given, names_history=head["shown"])
        return self._listed(made)

    search_list = recommend

    def refine(self, given: RefineRequest, head: Head) -> HttpAnswer:
        arm = self._recommender.for_arm(given.request)
        made, request, split = refine(arm, given, names_history=head["shown"])
        answer = self._listed(made)
        question = split and ClarifyingQuestion(split.question, split.answers)
        parts = {"list": Fragment(answer.body), "request": request.model_dump(exclude_unset=True)}
        further = {} if question is None else {"question": question}
        return answer._replace(body=to_json(parts | further))

    def _listed(self, made: Made) -> HttpAnswer:
        reply, sources = made.head, made.listed.arranged.sources
        fields = {
            "request_id": reply.request_id,
            "bundle": reply.served_by.bundle,
            "num_items": len(sources),
            "degraded": [what.code for what in reply.degraded],
            "fallback": reply.fallback,
            "sources": sorted(set(sources)),
            "timings_ms": reply.timings_ms,
        }
        body, records = self._written(made)
        return HttpAnswer(200, body, fields, records=records)

    def similar(self, given: SimilarParameters, head: Head) -> HttpAnswer:
        body = {"surface": "related", "item_id": head["value"], "k": given.k}
        return self.recommend(validated(Request, body), head)

    def _written(self, made: Made) -> tuple[bytes, tuple[bytes, ...]]:
        """Write a reply, and its record unless nothing keeps it or the request is a dry run."""
        maker = self._recommender.others.get(made.head.served_by.bundle, self._recommender)
        begun, items = write_items(maker.cards, made)
        body = reply_json(made.head, items)
        if not self._recommender.live.keeps_lists or made.query.request.dry_run:
            return body, ()
        return body, (write_record(maker, made, begun),)

    def explain(self, given: ExplainParameters, head: Head) -> HttpAnswer:
        record = self._record(head["value"])
        shown = head["shown"]
        found = explain_list(self._recommender, record, given.item_id, names_history=shown)
        # The caller's limit counts lists, and these were made.
        return HttpAnswer(200, to_json(found), {"num_requests": 1 + (found.num_left_out or 0)})

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
        try:
            keeps_events = self._recommender.live.store() is not None
        except StoreError:
            keeps_events = True
        described = describe_catalogue(
            self._recommender, shows_users=head["shown"], keeps_events=keeps_events
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
        bundle, card = self._recommender.bundle, self._recommender.cards.of
        found = [(*astuple(card(row)), bundle.properties.of(row) or None) for row in rows]
        items = [DescribedItem(*one) for one in found]
        reply = ItemsReply(bundle.version, items, corrected)
        return HttpAnswer(200, to_json(reply), {})

    @cached_property
    def _user_index(self) -> UserIndex:
        return UserIndex(self._recommender.bundle.users.user_ids)

    def users(self, given: UsersParameters, _: Head) -> HttpAnswer:
        bundle = self._recommender.bundle
        if given.random:
            rows = range(1, bundle.users.num_user_rows)
            chosen = self._random.sample(rows, min(given.k, len(rows)))
        else:
            near = self._user_index.beginning_with(given.prefix, given.k)
            chosen = [bundle.users.row_of(user_id) or 0 for user_id in near]
        ids, history = bundle.users.user_ids, bundle.users.history
        found = [UserCard(ids[row], len(history(row))) for row in chosen]
        return HttpAnswer(200, to_json(UsersReply(bundle.version, found)), {})

    def topics(self, _: None, head: Head) -> HttpAnswer:
        found, failed = self._recommender.live.visitor(Request(user_id=head["value"]), MAX_READ)
        if failed:
            raise RefusedError(503, "store_failed", "the online store did not answer in time")
        reply = TopicsReply(list_topics(self._recommender, head["value"], found))
        return HttpAnswer(200, to_json(reply), {})

    def put_topics(self, given: TopicsRequest, _: Head) -> HttpAnswer:
        """List what rules read of a wish, and names that a language model may find in the rest."""
        items, model = self._recommender.steering.items, self._recommender.configuration.wishes
        said = [one.words for one in said_topics(given.wish or "", 0.0)]
        read = [words for words in said if items.mask(words).any() and not items.ignored(words)]
        all_read = model is None or not given.wish or (said and read == said)
        names = [] if all_read else items.names(given.wish or "")
        unread = {"read": read, "names": names, "model": model and asdict(model)}
        return HttpAnswer(200, to_json(unread | {"wish": given.wish}), {})

    def history(self, given: HistoryParameters, head: Head) -> HttpAnswer:
        bundle, user_id = self._recommender.bundle, head["value"]
        row = bundle.users.row_of(user_id)
        if row is None:
            raise RefusedError(404, "unknown_user", "no user of the bundle has this id")
        items = list_history(self._recommender, row, given.k)
        reply = HistoryReply(bundle.version, user_id, len(bundle.users.history(row)), items)
        return HttpAnswer(200, to_json(reply), {})
