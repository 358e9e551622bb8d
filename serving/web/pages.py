"""Routes of the try-it page: its files, items, users and histories.

``GET /`` is the page for a browser and links in JSON for anything else; ``/pages/{name}`` are its
files. ``/v1/catalogue``, ``/v1/search`` and ``/v1/items`` describe items, ``/v1/users`` and
``/v1/users/{user_id}/history`` users, where users are shown (`Access.authorize`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from random import Random

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import Response

from serving.configuration.check import deed
from serving.configuration.file import ServingConfiguration
from serving.configuration.periods import holds
from serving.filtering.compile import known_properties
from serving.online.store import StoreError
from serving.recommend import Recommender
from serving.replies import (
    CatalogueReply,
    HistoryReply,
    ItemsReply,
    RuleCard,
    SurfaceCard,
    UsersReply,
)
from serving.schemas import (
    HistoryParameters,
    ItemsParameters,
    SearchParameters,
    UsersParameters,
)
from serving.security import USERS_NOT_SHOWN
from serving.settings import Settings
from serving.web.files import Files
from serving.web.http import (
    JsonResponse,
    RefusedError,
    at,
    read_parameters,
    shows_users,
)
from serving.web.lookup import (
    UserIndex,
    category_sizes,
    past_items,
    random_users,
    user_card,
)
from serving.web.openapi import document


def add_pages(app: FastAPI, recommender: Recommender, settings: Settings) -> None:
    """Add every route of this file."""
    _add_files(app, recommender)
    _add_items(app, recommender, settings)
    _add_users(app, recommender, settings)


def _add_files(app: FastAPI, recommender: Recommender) -> None:
    files = Files()

    def sent(http: HttpRequest) -> Response:
        accept, etag = http.headers.get("accept", ""), http.headers.get("if-none-match")
        answer = files.answer(http.url.path, accept, etag, recommender.bundle.version)
        assert answer is not None
        if answer.headers is None:
            return JsonResponse(answer.body, answer.status)
        return Response(answer.body, answer.status, dict(answer.headers))

    @at(app, "page")
    async def page(http: HttpRequest) -> Response:
        """Send a browser the try-it page, and anything else the list of routes."""
        return sent(http)

    @at(app, "schema")
    async def schema() -> Response:
        return JsonResponse(document())

    @at(app, "file")
    async def file(http: HttpRequest, name: str) -> Response:
        return sent(http)


def _add_items(app: FastAPI, recommender: Recommender, settings: Settings) -> None:
    @at(app, "catalogue")
    def catalogue(http: HttpRequest) -> Response:
        """Count items and users, list categories, and name the bundle and profile."""
        bundle = recommender.bundle
        shown = shows_users(http, settings)
        described = CatalogueReply(
            bundle=bundle.version,
            profile=recommender.profile,
            num_items=bundle.num_item_rows - 1,
            shows_users=shown,
            categories=category_sizes(bundle),
            properties=known_properties(bundle),
            surfaces=_surfaces(recommender.configuration, time.time()),
            keeps_events=_keeps_events(recommender),
            num_users=bundle.users.num_user_rows - 1 if shown else None,
        )
        return JsonResponse(described)

    # Handlers that may make an index are not async: they run in a thread, beside other requests.
    @at(app, "search")
    def search(http: HttpRequest) -> Response:
        """Find items by title."""
        given = read_parameters(SearchParameters, http)
        found = recommender.search.find(given.q)
        rows = list(found.item_rows[: given.k])
        corrected = [note.detail for note in found.notes if note.code == "corrected_query"]
        return _cards(recommender, rows, corrected[0] if rows and corrected else None)

    @at(app, "items")
    def items(http: HttpRequest) -> Response:
        """Describe items; those that are not in the catalogue are left out."""
        given = read_parameters(ItemsParameters, http)
        rows = (recommender.bundle.catalogue.row_of(item_id) for item_id in given.id)
        return _cards(recommender, [row for row in rows if row])


def _surfaces(configuration: ServingConfiguration, now: float) -> list[SurfaceCard]:
    """Describe the surfaces and what holds on them at a time."""
    cards = []
    for name, surface in configuration.surfaces.items():
        rules = [
            RuleCard(rule.name, deed(rule))
            for rule in configuration.rules
            if rule.on(name) and holds(rule.span, now)
        ]
        running = [
            one.name for one in configuration.experiments if one.on(name) and holds(one.span, now)
        ]
        cards.append(SurfaceCard(name, surface.kind, rules, next(iter(running), None)))
    return cards


def _keeps_events(recommender: Recommender) -> bool:
    try:
        return recommender.live.store() is not None
    except StoreError:
        return True


def _cards(recommender: Recommender, rows: Sequence[int], corrected: str | None = None) -> Response:
    items = [recommender.cards.of(row) for row in rows]
    return JsonResponse(ItemsReply(recommender.bundle.version, items, corrected))


def _add_users(app: FastAPI, recommender: Recommender, settings: Settings) -> None:
    random = Random()
    index = cache(lambda: UserIndex(recommender.bundle.users.user_ids))

    @at(app, "users")
    def users(http: HttpRequest) -> Response:
        """List users by the beginning of their id, or some at random."""
        _check_shown(http, settings)
        given, bundle = read_parameters(UsersParameters, http), recommender.bundle
        if given.random:
            found = random_users(bundle, given.k, random)
        else:
            ids = index().beginning_with(given.prefix, given.k)
            found = [user_card(bundle, bundle.users.row_of(user_id) or 0) for user_id in ids]
        return JsonResponse(UsersReply(bundle.version, found))

    @at(app, "history")
    def history(http: HttpRequest, user_id: str) -> Response:
        """List a user's history, newest first."""
        _check_shown(http, settings)
        given, bundle = read_parameters(HistoryParameters, http), recommender.bundle
        row = bundle.users.row_of(user_id)
        if row is None:
            raise RefusedError(404, "unknown_user", "no user of the bundle has this id")
        events = len(bundle.users.history(row))
        items = past_items(recommender, row, given.k)
        return JsonResponse(HistoryReply(bundle.version, user_id, events, items))


def _check_shown(http: HttpRequest, settings: Settings) -> None:
    if not shows_users(http, settings):
        raise RefusedError(404, "users_not_shown", USERS_NOT_SHOWN)
