"""Access: let a request pass as a caller, or refuse it, before any other work is done for it.

`Access.authorize` knows the key's scopes and limit and what the route demands, and nothing else: it
reads no body and touches no bundle. A route that it does not know demands the scope ``read``.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from serving.log import log
from serving.metrics import counted_route
from serving.routes import find
from serving.schemas import Scope
from serving.security import USERS_NOT_SHOWN, is_loopback
from serving.security.keys import ClientKey, KeyRing, read_keys
from serving.settings import Settings

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case, as ASGI has them."""
WITHOUT_KEYS: frozenset[Scope] = frozenset(("read", "events", "metrics"))
"""Scopes of every caller of a server without keys."""
AUDITED: frozenset[Scope] = frozenset(("admin", "users"))
"""Scopes whose use by a key is an audit line."""
AUDIT_LINES_PER_SECOND = 10.0


@dataclass(frozen=True, slots=True)
class Caller:
    """Caller of a request, and its right to see users."""

    name: str
    """The key's name; ``anonymous`` without one."""
    shows_users: bool
    """True if it may list users and read histories, those in reasons too."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a request that does not pass."""

    status: int
    code: str
    message: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


NO_KEY = ((b"www-authenticate", b"Bearer"),)
ANONYMOUS = Caller("anonymous", shows_users=False)
ANONYMOUS_SHOWN = Caller("anonymous", shows_users=True)


class TokenBucket:
    """Lets ``rate`` requests a second pass, and after a pause up to ``capacity`` at once."""

    def __init__(self, rate: float, capacity: float, now: float) -> None:
        self.rate, self.capacity = rate, capacity
        self._tokens, self._at = capacity, now

    def wait(self, now: float) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        self._tokens = min(self.capacity, self._tokens + self.rate * max(0.0, now - self._at))
        self._at = now
        if self._tokens < 1:
            return (1 - self._tokens) / self.rate
        self._tokens -= 1
        return 0.0

    def charge(self, tokens: float) -> None:
        """Take tokens that are only known afterwards; requests then wait until they are back."""
        self._tokens -= tokens


class Audit:
    """Writes who was refused, and who used a key for private data.

    Refusals are at most ten lines a second; the next line says how many were left out. Of a peer
    only the network is written.
    """

    def __init__(self) -> None:
        self._lines = TokenBucket(AUDIT_LINES_PER_SECOND, AUDIT_LINES_PER_SECOND, 0.0)
        self._left_out = 0

    def refused(
        self, refusal: Refusal, key: ClientKey | None, route: str, peer: str | None, now: float
    ) -> None:
        """Write that a request did not pass."""
        if self._lines.wait(now):
            self._left_out += 1
            return
        left_out, self._left_out = self._left_out, 0
        outcome = {"status": refusal.status, "code": refusal.code, "left_out": left_out}
        log("audit", {"outcome": "refused", **outcome, **_of_whom(key, route, peer)})

    def used(self, key: ClientKey, scope: Scope, route: str, peer: str | None) -> None:
        """Write that a key was used."""
        log("audit", {"outcome": "passed", "scope": scope, **_of_whom(key, route, peer)})


class Access:
    """Decides on requests; one for a server, called from one thread, since it holds the limits."""

    def __init__(self, settings: Settings) -> None:
        """Read the keys of the settings."""
        self._settings, self._audit = settings, Audit()
        self._is_local = is_loopback(settings.host)
        self._buckets: dict[str, TokenBucket] = {}
        self._stamp = _stamp(settings)
        self.ring: KeyRing | None = None
        """None without a key file: everyone is anonymous."""
        if settings.keys is not None:
            self.ring = read_keys(settings.keys)
        elif not self._is_local and not settings.allow_anonymous:
            raise ValueError(
                f"host {settings.host} can be reached from other machines and no keys are set, so "
                "anyone could use this server; name a key file (--keys, RECSYS_KEYS; recsys keys "
                "add makes one), listen on 127.0.0.1, or say that anyone may (--allow-anonymous, "
                "RECSYS_ALLOW_ANONYMOUS=true)"
            )

    def poll(self) -> None:
        """Take over a key file that has changed; a faulty one is logged, the keys before stay."""
        path, stamp = self._settings.keys, _stamp(self._settings)
        if path is None or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.ring = read_keys(path)
        except ValueError as error:
            log("keys_refused", {"error": str(error)})
            return
        self._buckets.clear()
        log("keys_loaded", {"num_keys": len(self.ring.keys)})

    def authorize(
        self, headers: Headers, path: str, method: str, peer: str | None, now: float | None = None
    ) -> Caller | Refusal:
        """Decide whether a request passes.

        Args:
            path: Decoded, as the router matches it.
            peer: Address of the other end of the connection.
            now: Seconds of a clock that never goes back, by default the monotonic one.
        """
        if (known := find(method, path)) is None:
            scope = required_scope(path, method)
        elif known.scope is None:
            return ANONYMOUS
        else:
            scope = known.scope
        now = time.monotonic() if now is None else now
        key: ClientKey | None = None
        if self.ring is None:
            found = self._without_keys(headers, scope)
        else:
            sent = _bearer(headers)
            key = None if sent is None else self.ring.find(sent)
            found = self._by_key(key, scope, now) if key else _unknown(sent)
        if isinstance(found, Refusal):
            self._audit.refused(found, key, f"{method} {counted_route(path)}", peer, now)
        elif key is not None and scope in AUDITED:
            self._audit.used(key, scope, f"{method} {counted_route(path)}", peer)
        return found

    def charge(self, caller: Caller, num_lists: int) -> None:
        """Count the lists of an answered batch against the caller's limit; one is counted."""
        if (bucket := self._buckets.get(caller.name)) is not None:
            bucket.charge(num_lists - 1)

    def _without_keys(self, headers: Headers, scope: Scope) -> Caller | Refusal:
        shown = self._settings.expose_users and self._addressed_here(headers)
        allowed = self._settings.allow_admin and self._addressed_here(headers)
        if scope in WITHOUT_KEYS or (scope == "users" and shown) or (scope == "admin" and allowed):
            return ANONYMOUS_SHOWN if shown else ANONYMOUS
        if scope == "users":
            return Refusal(404, "users_not_shown", USERS_NOT_SHOWN)
        message = f"this route needs a key with the scope {scope}"
        if scope == "admin":
            message += "; for a trial on this machine start the server with --allow-admin"
        return Refusal(403, "no_keys", message)

    def _by_key(self, key: ClientKey, scope: Scope, now: float) -> Caller | Refusal:
        if key.rate is not None:
            bucket = self._buckets.get(key.name)
            if bucket is None:
                bucket = TokenBucket(key.rate, key.capacity(key.rate), now)
                self._buckets[key.name] = bucket
            if wait := bucket.wait(now):
                seconds = math.ceil(wait)
                message = f"key {key.name} may send {key.rate:g} requests a second"
                retry = ((b"retry-after", str(seconds).encode()),)
                return Refusal(429, "rate_limited", f"{message}; wait {seconds} s", retry)
        shown = "users" in key.scopes or (self._settings.expose_users and "read" in key.scopes)
        if scope not in key.scopes and not (scope == "users" and shown):
            message = f"key {key.name} has no scope {scope}, which this route needs"
            return Refusal(403, "scope_missing", message)
        return Caller(key.name, shows_users=shown)

    def _addressed_here(self, headers: Headers) -> bool:
        """True if a server on loopback was addressed so.

        A foreign site whose name resolves to 127.0.0.1 brings a browser that sends its own name.
        Only ever a reason to say no: a proxy on this machine may address it as it likes.
        """
        if not self._is_local:
            return True
        return all(_names_loopback(value) for name, value in headers if name == b"host")


@lru_cache(maxsize=100)
def _names_loopback(host: bytes) -> bool:
    """Return whether a header ``host`` names this machine."""
    try:
        return is_loopback(urlsplit(f"//{host.decode()}").hostname or "")
    except ValueError:
        return False


def required_scope(path: str, method: str = "GET") -> Scope:
    """Return the scope that a route demands, or that a path without a route would."""
    if find(method, path) is None and (method == "DELETE" or path.startswith("/v1/admin/")):
        return "admin"
    for one in (method, "GET", "POST"):
        if (known := find(one, path)) is not None:
            return known.scope or "read"
    return "users" if path.startswith("/v1/users/") else "read"


def _bearer(headers: Headers) -> str | None:
    """Read ``authorization: Bearer <key>``; None without, or with more than one."""
    sent = [value for name, value in headers if name == b"authorization"]
    kind, _, secret = (sent[0] if len(sent) == 1 else b"").decode("latin-1").partition(" ")
    return secret.strip() if kind.lower() == "bearer" and secret.strip() else None


def _unknown(sent: str | None) -> Refusal:
    if sent is None:
        message = "send your key once, as authorization: Bearer <key>"
        return Refusal(401, "key_missing", message, NO_KEY)
    return Refusal(401, "key_unknown", "no such key; ask who runs this server for one", NO_KEY)


def _stamp(settings: Settings) -> tuple[int, ...] | None:
    """Return the key file's identity on disk; None without a file."""
    try:
        found = None if settings.keys is None else settings.keys.stat()
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)


def _of_whom(key: ClientKey | None, route: str, peer: str | None) -> dict[str, object]:
    owner = {"key": None} if key is None else {"key": key.name, "tenant": key.owner}
    return {**owner, "route": route, "network": _network(peer)}


def _network(peer: str | None) -> str | None:
    """Cut an address to its network of 256, or in IPv6 to its site's."""
    try:
        address = ipaddress.ip_address(peer or "")
    except ValueError:
        return None
    return str(ipaddress.ip_network((address, 24 if address.version == 4 else 48), strict=False))
