"""Routes of the try-it page: its files, and what it reads beside the recommendations.

``GET /`` is the page for a browser and links in JSON for anything else; ``/pages/{name}`` are its
files. ``/v1/catalogue``, ``/v1/search`` and ``/v1/items`` tell of items, ``/v1/users`` and
``/v1/users/{user_id}/history`` of users, where users are shown (`Settings.expose_users`).
"""

from __future__ import annotations

import hashlib
import ipaddress
from pathlib import Path
from random import Random
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import orjson
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from serving.body import RefusedError, validated
from serving.hot_swap import BundleWatcher
from serving.pages.lookup import (
    Lookup,
    category_sizes,
    item_card,
    past_items,
    random_users,
    user_card,
)
from serving.settings import Settings

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
LINKS = {
    "recommend": "POST /v1/recommend",
    "recommend_batch": "POST /v1/recommend:batch",
    "similar": "GET /v1/similar/{item_id}",
    "search": "GET /v1/search?q=",
    "items": "GET /v1/items?id=",
    "catalogue": "GET /v1/catalogue",
    "users": "GET /v1/users?prefix=",
    "history": "GET /v1/users/{user_id}/history",
    "health": ["/healthz", "/readyz"],
    "schema": "/openapi.json",
    "page": "GET / with accept: text/html",
}


class _Parameters(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SearchParameters(_Parameters):
    """Of ``/v1/search``."""

    q: str = Field(default="", max_length=200)
    """Words of a title, or their beginnings; empty lists the most popular items."""
    k: int = Field(default=10, ge=1, le=50)


class ItemsParameters(_Parameters):
    """Of ``/v1/items``."""

    id: list[Annotated[str, Field(min_length=1, max_length=512)]] = Field(
        min_length=1, max_length=100
    )
    """Repeat it for more than one item."""


class UsersParameters(_Parameters):
    """Of ``/v1/users``."""

    prefix: str = Field(default="", max_length=512)
    k: int = Field(default=10, ge=1, le=50)
    random: bool = False
    """Whether to draw users; ``prefix`` is not looked at then."""


class HistoryParameters(_Parameters):
    """Of ``/v1/users/{user_id}/history``."""

    k: int = Field(default=50, ge=1, le=500)


Schema = TypeVar("Schema", bound=_Parameters)


def add_pages(app: FastAPI, watcher: BundleWatcher, settings: Settings) -> None:
    """Add every route of this file."""
    lookup = Lookup()
    _add_files(app, watcher)
    _add_items(app, watcher, settings, lookup)
    _add_users(app, watcher, settings, lookup)


def _add_files(app: FastAPI, watcher: BundleWatcher) -> None:
    files = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.is_file()}
    tags = {name: f'"{hashlib.sha256(body).hexdigest()[:16]}"' for name, body in files.items()}

    def sent(http: HttpRequest, name: str) -> Response:
        headers = {**HEADERS, "etag": tags[name], "vary": "accept"}
        if http.headers.get("if-none-match") == tags[name]:
            return Response(status_code=304, headers=headers)
        kind = MEDIA_TYPES[Path(name).suffix]
        return Response(files[name], headers=headers, media_type=kind)

    @app.get("/")
    async def page(http: HttpRequest) -> Response:
        """Give a browser the try-it page and anything else a list of what is here."""
        if "text/html" in http.headers.get("accept", ""):
            return sent(http, "index.html")
        response = _json({"bundle": watcher.recommender.bundle.version, **LINKS})
        response.headers["vary"] = "accept"
        return response

    @app.get("/pages/{name}", include_in_schema=False)
    async def file(http: HttpRequest, name: str) -> Response:
        if name not in files:
            raise RefusedError(404, "no_such_file", "the page has no such file; see GET /")
        return sent(http, name)


def _add_items(app: FastAPI, watcher: BundleWatcher, settings: Settings, lookup: Lookup) -> None:
    @app.get("/v1/catalogue")
    def catalogue(http: HttpRequest) -> Response:
        """Tell how much there is, which categories, and what answers."""
        recommender = watcher.recommender
        bundle = recommender.bundle
        shown = shows_users(http, settings)
        return _json(
            {
                "bundle": bundle.version,
                "profile": recommender.profile,
                "num_items": bundle.num_item_rows - 1,
                "num_users": bundle.users.num_user_rows - 1 if shown else None,
                "shows_users": shown,
                "categories": category_sizes(bundle),
            }
        )

    # Handlers that may make an index are not async: they run in a thread, beside other requests.
    @app.get("/v1/search", openapi_extra=_takes(SearchParameters))
    def search(http: HttpRequest) -> Response:
        """Find items by title."""
        asked, bundle = _read(SearchParameters, http), watcher.recommender.bundle
        rows = lookup.titles(bundle).search(asked.q, asked.k)
        return _json({"bundle": bundle.version, "items": [item_card(bundle, row) for row in rows]})

    @app.get("/v1/items", openapi_extra=_takes(ItemsParameters))
    def items(http: HttpRequest) -> Response:
        """Describe items; those that are not in the catalogue are left out."""
        asked, bundle = _read(ItemsParameters, http), watcher.recommender.bundle
        rows = [bundle.catalogue.row_of(item_id) for item_id in asked.id]
        return _json(
            {"bundle": bundle.version, "items": [item_card(bundle, row) for row in rows if row]}
        )


def _add_users(app: FastAPI, watcher: BundleWatcher, settings: Settings, lookup: Lookup) -> None:
    random = Random()

    @app.get("/v1/users", openapi_extra=_takes(UsersParameters))
    def users(http: HttpRequest) -> Response:
        """List users by the beginning of their id, or some at random."""
        _check_shown(http, settings)
        asked, bundle = _read(UsersParameters, http), watcher.recommender.bundle
        if asked.random:
            found = random_users(bundle, asked.k, random)
        else:
            ids = lookup.users(bundle).beginning_with(asked.prefix, asked.k)
            found = [user_card(bundle, bundle.users.row_of(user_id) or 0) for user_id in ids]
        return _json({"bundle": bundle.version, "users": found})

    @app.get("/v1/users/{user_id:path}/history", openapi_extra=_takes(HistoryParameters))
    def history(http: HttpRequest, user_id: str) -> Response:
        """List what a user did, newest first."""
        _check_shown(http, settings)
        asked, bundle = _read(HistoryParameters, http), watcher.recommender.bundle
        row = bundle.users.row_of(user_id)
        if row is None:
            raise RefusedError(404, "unknown_user", "no user of the bundle has this id")
        return _json(
            {
                "bundle": bundle.version,
                "user_id": user_id,
                "num_events": len(bundle.users.history(row)),
                "items": past_items(bundle, row, asked.k),
            }
        )


def shows_users(http: HttpRequest, settings: Settings) -> bool:
    """Whether this request may list users and read histories (`Settings.expose_users`).

    Unless it is set, only a browser on the server's own machine may: the server listens on
    loopback, was addressed so (a foreign site whose name resolves to 127.0.0.1 sends its own
    name), and no proxy says that it passes the request on.
    """
    if settings.expose_users is not None:
        return settings.expose_users
    if any(name in http.headers for name in FORWARDED):
        return False
    try:
        addressed = urlsplit(f"//{http.headers.get('host', '')}").hostname or ""
    except ValueError:
        return False
    return _is_loopback(settings.host) and _is_loopback(addressed)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_shown(http: HttpRequest, settings: Settings) -> None:
    if not shows_users(http, settings):
        raise RefusedError(
            404,
            "users_not_shown",
            "this server does not show its users; RECSYS_EXPOSE_USERS=true shows every user's "
            "history to everyone who can reach it (by default only to its own machine)",
        )


def _read(schema: type[Schema], http: HttpRequest) -> Schema:
    """Check the parameters of a request's address; a list takes all of a name's values."""
    many = {name for name, field in schema.model_fields.items() if field.is_required()}
    given = http.query_params
    values: dict[str, object] = {
        name: given.getlist(name) if name in many else given[name] for name in given
    }
    return validated(schema, values)


def _takes(schema: type[_Parameters]) -> dict[str, Any]:
    """Describe parameters that FastAPI does not parse itself."""
    document = schema.model_json_schema()
    required = document.get("required", [])
    parameters = [
        {"name": name, "in": "query", "required": name in required, "schema": described}
        for name, described in document.get("properties", {}).items()
    ]
    return {"parameters": parameters}


def _json(content: dict[str, object]) -> Response:
    """Answer with JSON that no cache keeps: a bundle may be swapped at any time."""
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return Response(orjson.dumps(content), headers=headers, media_type="application/json")
