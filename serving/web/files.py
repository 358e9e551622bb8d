"""The files of the try-it page, and the list of routes: what needs no worker.

``GET /`` is the page for a browser and links in JSON for anything else; ``/pages/{name}`` are its
files. A server's front answers them itself, so that a busy server still has its page.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from serving.routes import ROUTES
from serving.schemas import to_json
from serving.web.http import JSON, HttpAnswer, RefusedError

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
QUERIES = {"search": "?q=", "items": "?id=", "users": "?prefix="}
LINKS = {
    **{
        route.name: f"{route.method} {route.path}{QUERIES.get(route.name, '')}"
        for route in ROUTES
        if route.path.startswith("/v1/")
    },
    "health": [route.path for route in ROUTES if route.kind == "health"],
    "schema": "/openapi.json",
    "page": "GET / with accept: text/html",
}
PAGES = "/pages/"


class Files:
    """The files, in memory."""

    def __init__(self) -> None:
        self._files = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.is_file()}
        self._tags = {
            name: f'"{hashlib.sha256(body).hexdigest()[:16]}"' for name, body in self._files.items()
        }

    def answer(self, path: str, headers: Mapping[bytes, bytes], bundle: str) -> HttpAnswer:
        """Answer a GET of ``/`` or of a file; links name the served ``bundle``.

        Raises:
            RefusedError: 404, there is no such file.
        """
        etag = headers.get(b"if-none-match", b"").decode("latin-1")
        if path == "/" and b"text/html" in headers.get(b"accept", b""):
            return self._sent("index.html", etag)
        if path == "/":
            links = to_json({"bundle": bundle, **LINKS})
            return HttpAnswer(200, links, {}, (*JSON, (b"vary", b"accept")))
        name = path.removeprefix(PAGES)
        if name not in self._files:
            raise RefusedError(404, "no_such_file", "no such file; GET / lists the routes")
        return self._sent(name, etag)

    def _sent(self, name: str, etag: str) -> HttpAnswer:
        kind = MEDIA_TYPES[Path(name).suffix]
        more = {"etag": self._tags[name], "vary": "accept", "content-type": kind}
        headers = [(one.encode(), text.encode()) for one, text in {**HEADERS, **more}.items()]
        if etag == self._tags[name]:
            return HttpAnswer(304, b"", {}, headers[:-1])
        return HttpAnswer(200, self._files[name], {}, headers)
