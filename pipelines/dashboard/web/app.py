"""The routes of the dashboard: pages as documents, windows of tables, suggestions, files.

All below ``/api`` answer JSON; a refusal is ``{"error": words}``.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.dashboard.web.access import COOKIE, AccessError, AccessRules
from pipelines.dashboard.workspaces.stores import Stores
from pipelines.pages.document import Page, Window
from pipelines.pages.encoding import encoded, for_script
from pipelines.pages.file import FIRST, LATER, SHELL, STYLES, assets, filled, version

log = logging.getLogger("recsys.dashboard")
MAX_LENGTH = 1_000
"""Rows of a window."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
TEXT = "text/plain; charset=utf-8"
TYPES = {
    **dict.fromkeys((".csv", ".jsonl", ".log", ".md", ".toml", ".txt"), TEXT),
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
}
SANDBOX = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; "
    "script-src 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""A report's own script runs, in an origin of its own from which nothing can be reached."""
T = TypeVar("T")
Check = Callable[["Site", Request], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Site:
    """One dashboard as it is served."""

    context: Context
    pages: Sequence[PageEntry]
    access: AccessRules

    @cached_property
    def by_name(self) -> Mapping[str, PageEntry]:
        return {page.name: page for page in self.pages}

    def page(self, request: Request) -> PageEntry:
        """Return the page that a request names."""
        return _named(self.by_name, request.path_params["name"], "page")


def _named(known: Mapping[str, T], name: str, what: str) -> T:
    if name not in known:
        raise NotFoundError(f"no {what} {name!r}; there are: {', '.join(sorted(known)) or 'none'}")
    return known[name]


def json_response(value: object, status: int = 200) -> Response:
    """Answer JSON."""
    return Response(encoded(value), status, media_type="application/json")


def refuse(error: Exception) -> Response:
    """Answer an error in words; of an unexpected one, only its reference in the log."""
    if isinstance(error, AccessError):
        return json_response({"error": str(error)}, error.status)
    if isinstance(error, (QueryError, NotFoundError)):
        status = 400 if isinstance(error, QueryError) else 404
        return json_response({"error": str(error)}, status)
    reference = secrets.token_hex(4)
    log.error("page failed, reference %s", reference, exc_info=error)
    words = f"This page could not be made; the dashboard's log says why under {reference}."
    return json_response({"error": words}, 500)


def read_query(request: Request) -> Query:
    """Read the parameters of an address."""
    values: dict[str, tuple[str, ...]] = {}
    for name, value in request.query_params.multi_items():
        values[name] = (*values.get(name, ()), value)
    return Query(values)


def read_window(query: Query) -> Window:
    """Read a window; its parameters begin with ``w.``, so that no parameter of a page is meant."""
    order = query.text("w.order")
    return Window(
        start=query.number("w.start", 0, least=0, most=10**12),
        length=query.number("w.length", 25, least=1, most=MAX_LENGTH),
        order_by=query.number("w.order", 0, least=0, most=1_000) if order else None,
        descending=query.choice("w.descending", ("0", "1"), "0") == "1",
        search=query.text("w.search")[:200],
    )


def navigation(pages: Sequence[PageEntry]) -> list[dict[str, object]]:
    """List the pages as the browser knows them."""
    shown = ("name", "title", "in_navigation", "keeps")
    return [{name: getattr(page, name) for name in shown} for page in pages]


def shell(site: Site, _: Request) -> Response:
    """Send the page into which the browser draws documents."""
    folder = f"/assets/{version()}"
    modules = sorted((name for name in assets() if name.endswith(".js")), key=LATER.__contains__)
    head = [f'<link rel="stylesheet" href="{folder}/{name}">' for name in STYLES]
    head += [f'<link rel="modulepreload" href="{folder}/{name}">' for name in modules]
    settings = {"pages": navigation(site.pages), "exported": None}
    text = filled(
        SHELL,
        policy="",
        title="Recsys dashboard",
        head="\n".join(head),
        settings=for_script(settings),
        scripts=f'<script type="module" src="{folder}/{FIRST}"></script>',
    )
    return Response(text, media_type="text/html")


def asset(_: Site, request: Request) -> Response:
    """Send an asset; its address changes with its content."""
    if request.path_params["version"] != version():
        raise NotFoundError("another version of the dashboard runs here; load the page again")
    found = _named(assets(), request.path_params["file"], "asset")
    headers = {"cache-control": "public, max-age=31536000, immutable"}
    return Response(found.body, media_type=found.media_type, headers=headers)


def built(context: Context, entry: PageEntry, query: Query) -> Page:
    """Build a page with the faults of the stores above all, each once."""
    made = entry.build(context, query)
    notices = dict.fromkeys([*context.stores.problems(), *made.notices])
    return replace(made, notices=tuple(notices))


def page(site: Site, request: Request) -> Response:
    """Make a page."""
    return json_response(built(site.context, site.page(request), read_query(request)))


def rows(site: Site, request: Request) -> Response:
    """Read a window of a long table."""
    find = _named(site.page(request).rows, request.path_params["source"], "table")
    query = read_query(request)
    return json_response(find(site.context, query, read_window(query)))


def suggest(site: Site, request: Request) -> Response:
    """Find options for what the reader typed."""
    find = _named(site.page(request).suggest, request.path_params["search"], "search")
    query = read_query(request)
    return json_response(find(site.context, query, query.text("w.text"))[:20])


def file_of_run(stores: Stores, key: str, path: str) -> Path:
    """Find a file of a run."""
    folder = stores.run(key).path
    missing = NotFoundError(f"no file {path!r} in that run; see its page for those it has")
    parts = Path(path).parts
    if folder is None or "\0" in path or any(part.startswith((".", "/")) for part in parts):
        raise missing
    if Path(path).suffix.lower() not in TYPES:
        shown = ", ".join(sorted(TYPES))
        raise NotFoundError(f"{path!r} is not shown here; files of these kinds are: {shown}")
    try:
        found = (folder / path).resolve(strict=True)
        inside = found.is_relative_to(folder.resolve(strict=True))
    except (OSError, RuntimeError):
        raise missing from None
    # A link may have another suffix than what it leads to.
    if not inside or not found.is_file() or found.suffix.lower() not in TYPES:
        raise missing
    return found


def file(site: Site, request: Request) -> Response:
    """Send a file of a run."""
    key, path = request.path_params["key"], request.path_params["path"]
    found = file_of_run(site.context.stores, key, path)
    headers = {"cache-control": "no-cache", "content-security-policy": SANDBOX}
    return FileResponse(found, media_type=TYPES[found.suffix.lower()], headers=headers)


def enter(site: Site, _: Request) -> Response:
    """Set the cookie of a reader for a request with the key."""
    found = json_response({"done": "welcome"})
    session = site.access.session
    found.set_cookie(COOKIE, session, httponly=True, samesite="strict", path="/")
    return found


async def _anyone(_: Site, __: Request) -> None:
    pass


async def _reader(site: Site, request: Request) -> None:
    site.access.check_reader(request)


async def _key_holder(site: Site, request: Request) -> None:
    await site.access.check_key(request)


def _route(site: Site, path: str, answer: Callable[..., Response], check: Check) -> Route:
    """Check a request, answer it in a thread, and turn errors into words."""

    @wraps(answer)
    async def endpoint(request: Request) -> Response:
        try:
            site.access.check_host(request)
            await check(site, request)
            response = await run_in_threadpool(answer, site, request)
        except Exception as error:
            response = refuse(error)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    methods = ["POST"] if check is _key_holder else ["GET"]
    return Route(path, endpoint, methods=methods)


def create_app(site: Site) -> Starlette:
    """Build the application."""
    routes: list[tuple[str, Callable[..., Response], Check]] = [
        ("/", shell, _anyone),
        ("/assets/{version}/{file}", asset, _anyone),
        ("/api/page/{name}", page, _reader),
        ("/api/rows/{name}/{source}", rows, _reader),
        ("/api/suggest/{name}/{search}", suggest, _reader),
        ("/files/{key}/{path:path}", file, _reader),
        ("/api/enter", enter, _key_holder),
    ]
    return Starlette(routes=[_route(site, *route) for route in routes])


def serve(context: Context, pages: Sequence[PageEntry], access: AccessRules, port: int) -> None:
    """Serve until a signal ends it."""
    # The chart library takes a second to put together; runs are read meanwhile too.
    for prepare in (version, context.stores.runs):
        threading.Thread(target=prepare, daemon=True).start()
    site = Site(context=context, pages=pages, access=access)
    uvicorn.run(
        create_app(site),
        host=access.host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
    )
