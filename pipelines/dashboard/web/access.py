"""Access to the dashboard, which only reads."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.requests import Request

from serving.security import is_loopback

COOKIE = "recsys_dashboard"
WRONG_KEY_SECONDS = 1.0
"""That a wrong key waits, one after the other."""


class AccessError(Exception):
    """A request that gets an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class AccessRules:
    """The rules of one dashboard."""

    host: str = "127.0.0.1"
    key: str | None = None
    """That readers give once where other machines reach it and it is not public."""
    public: bool = False
    """Everyone who reaches it may read."""
    names: Sequence[str] = ()
    """Host names by which it is reached, besides the machine's own."""
    _session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    _wrong: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    def __post_init__(self) -> None:
        if not is_loopback(self.host) and self.key is None and not self.public:
            raise ValueError(
                f"on {self.host} other machines could read users and their histories; give a key "
                "(--key-file), say --public, or listen on 127.0.0.1"
            )

    @property
    def needs_key(self) -> bool:
        """Return whether a reader has to give the key first."""
        return not is_loopback(self.host) and not self.public

    def check_host(self, request: Request) -> None:
        """Refuse a request for another host.

        A page elsewhere may let its own name resolve to this machine (DNS rebinding); an address in
        digits cannot be rebound.
        """
        given = request.headers.getlist("host")
        name = (urlsplit(f"//{given[0]}").hostname or "") if len(given) == 1 else ""
        if is_loopback(self.host):
            known = is_loopback(name) or name in self.names
        else:
            own = {"localhost", self.host, socket.gethostname().lower(), *self.names}
            known = _is_address(name) or name in own
        if not known:
            raise AccessError(
                421, f"this dashboard is not at {name[:80]!r}; --name makes a host name its own"
            )

    def check_reader(self, request: Request) -> None:
        """Refuse a reader who has not given the key."""
        given = request.cookies.get(COOKIE, "")
        if self.needs_key and not hmac.compare_digest(given.encode(), self._session.encode()):
            raise AccessError(401, "this dashboard needs a key")

    @property
    def session(self) -> str:
        """Value of the cookie of a reader who gave the key; another one after a restart."""
        return self._session

    async def check_key(self, request: Request) -> None:
        """Refuse a request without the key, or from another site's page."""
        self._check_origin(request)
        if self.key is None:
            raise AccessError(403, "this dashboard has no key; start it with --key-file")
        given = request.headers.get("x-api-key", "")
        if not hmac.compare_digest(given.encode(), self.key.encode()):
            async with self._wrong:
                await asyncio.sleep(WRONG_KEY_SECONDS)
            raise AccessError(401, "the key is wrong")

    @staticmethod
    def _check_origin(request: Request) -> None:
        site = request.headers.get("sec-fetch-site", "same-origin")
        origin = request.headers.get("origin")
        own = request.headers.get("host", "")
        if site != "same-origin" or (origin is not None and urlsplit(origin).netloc != own):
            raise AccessError(403, "another site's page may not have anything done here")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise AccessError(403, "send JSON, with content-type application/json")
