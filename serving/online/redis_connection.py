"""Commands to Redis or Valkey within a time limit, and a pause after one that was not met.

A call takes an idle connection of its process, or makes one; what goes wrong is a `StoreError`. The
limit holds for a call as a whole: connecting, sending, and every part of the replies. (The name in
the URL is looked up by the system, which has a limit of its own; an address needs no looking up.)
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import redis
from redis.connection import Connection, DefaultParser, parse_url

from features.forget_list import UserKeys, new_key
from serving.online.redis_scripts import DIGESTS, SCRIPTS
from serving.online.store import StoreError

SCHEMA = b"1"
PAUSE_SECONDS = 1.0
"""Pause after a failure; then one call tries again, and the rest if it works."""
DEFAULT_PORT = 6379
DEFAULT_PREFIX = "recsys:"

Argument = bytes | str | int
Command = Sequence[Argument]

_call = threading.local()


class StoreUnreachableError(StoreError):
    """Redis does not answer; waiting may help."""


class _Parser(DefaultParser):  # type: ignore[misc]
    """Reads replies until the deadline of the call, in however many parts they come."""

    def read_from_socket(self, timeout: object = None, raise_on_timeout: bool = True) -> Any:
        left = max(1e-3, _call.deadline - time.monotonic())
        return super().read_from_socket(timeout=left, raise_on_timeout=raise_on_timeout)


class Breaker:
    """Refuses calls for a pause after one has failed: a frozen Redis costs one wait a pause.

    The first call after the pause is a trial; the others are refused until it has worked.
    """

    def __init__(self, pause_seconds: float) -> None:
        self._pause = pause_seconds
        self._until: float | None = None
        self._reason = ""
        self._lock = threading.Lock()

    def admit(self) -> None:
        """Admit a call.

        Raises:
            StoreUnreachableError: Another one has failed a short time ago.
        """
        if self._until is None:
            return
        with self._lock:
            now = time.monotonic()
            if self._until is not None:
                if now < self._until:
                    left = self._until - now
                    raise StoreUnreachableError(f"{self._reason} (tried again in {left:.1f} s)")
                self._until = now + self._pause

    def failed(self, reason: str) -> None:
        with self._lock:
            self._reason = reason
            self._until = time.monotonic() + self._pause

    def worked(self) -> None:
        self._until = None


class RedisConnections:
    """Runs commands on connections of the calling process; safe for threads and after a fork."""

    def __init__(self, url: str, *, timeout_ms: float, slow_timeout_ms: float) -> None:
        settings = parse_url(url)
        self._make = settings.pop("connection_class", Connection)
        # Each step of a handshake costs a round trip: no HELLO, no names.
        settings |= {"protocol": 2, "driver_info": None, "parser_class": _Parser}
        self._settings: dict[str, Any] = settings
        self.prefix: str = settings.pop("prefix", DEFAULT_PREFIX)
        """Prefix of all keys; ``?prefix=shop:`` in the URL."""
        self._prefix = self.prefix.encode()
        self._timeout_ms = timeout_ms
        self._slow_timeout_ms = slow_timeout_ms
        host = settings.get("path") or (
            f"{settings.get('host', 'localhost')}:{settings.get('port', DEFAULT_PORT)}"
        )
        self.where = f"Redis at {host}, database {settings.get('db', 0)}"
        """Without the password that the URL may hold."""
        self._user_keys: UserKeys | None = None
        self._start()
        # Settings that a connection does not know show here, not at the first request.
        try:
            self._connection(timeout_ms)
        except TypeError as error:
            raise ValueError(f"a setting in the URL of {self.where} is unknown: {error}") from None

    def _start(self) -> None:
        self._pid = os.getpid()
        self._idle: deque[Connection] = deque()
        self._breaker = Breaker(PAUSE_SECONDS)

    def command(self, name: str, *arguments: Argument) -> Command:
        """Make the command that runs a script."""
        return (b"EVALSHA", DIGESTS[name], 0, self._prefix, *arguments)

    def script(self, name: str, *arguments: Argument, slow: bool = False) -> Any:
        """Run a script; see `run`."""
        return self.run([self.command(name, *arguments)], slow=slow)[0]

    def user_keys(self) -> UserKeys:
        """Return the keys of users' ids, as the latest connection found them.

        Raises:
            StoreError: As `run`.
        """
        if self._user_keys is None:
            self.run([(b"PING",)])
        assert self._user_keys is not None
        return self._user_keys

    def run(self, commands: Sequence[Command], *, slow: bool = False) -> list[Any]:
        """Send commands at once and read their replies.

        Args:
            slow: Whether this may take as long as a write, not only as long as a request's read.

        Raises:
            StoreUnreachableError: No answer in time, or none for a short time before.
            StoreError: Redis refuses a command; those before and after it may have been run.
        """
        if self._pid != os.getpid():
            # Connections that came with a fork stay the parent's.
            self._start()
        self._breaker.admit()
        limit_ms = self._slow_timeout_ms if slow else self._timeout_ms
        _call.deadline = time.monotonic() + limit_ms / 1_000
        try:
            replies = self._replies(commands, limit_ms)
        except (redis.ConnectionError, redis.TimeoutError, StoreError) as error:
            self._drop_idle()
            failure = self._failure(error, limit_ms)
            self._breaker.failed(str(failure))
            raise failure from None
        except (redis.RedisError, UnicodeError) as error:
            self._breaker.worked()
            raise self._failure(error, limit_ms) from None
        self._breaker.worked()
        return replies

    def _replies(self, commands: Sequence[Command], limit_ms: float) -> list[Any]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._opened(limit_ms)
        else:
            try:
                return self._exchange(connection, commands)
            except (redis.AuthenticationError, redis.exceptions.BusyLoadingError):
                raise
            except (redis.ConnectionError, redis.exceptions.NoScriptError):
                # Redis has restarted meanwhile, or forgot its scripts. Every call may be
                # repeated: what has been stored is not stored twice.
                self._drop_idle()
                connection = self._opened(limit_ms)
        return self._exchange(connection, commands)

    def _exchange(self, connection: Connection, commands: Sequence[Command]) -> list[Any]:
        """Send, read every reply, and keep the connection for the next call."""
        replies: list[Any] = []
        refused: redis.ResponseError | None = None
        connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        for _ in commands:
            try:
                replies.append(connection.read_response())
            except redis.ResponseError as error:
                refused = refused or error
        self._idle.append(connection)
        if refused is not None:
            raise refused
        return replies

    def _connection(self, limit_ms: float) -> Connection:
        made: Connection = self._make(
            **self._settings,
            socket_timeout=self._slow_timeout_ms / 1_000,
            socket_connect_timeout=limit_ms / 1_000,
        )
        return made

    def _opened(self, limit_ms: float) -> Connection:
        """Connect, see that the layout is ours, bring the scripts, and read the users' keys."""
        key, user_key = self._prefix + b"schema", self._prefix + b"user_key"
        reading: list[Command] = [(b"GET", key), (b"GET", user_key)]
        named = (b"SMEMBERS", self._prefix + b"user_key_names")
        load = [(b"SCRIPT", b"LOAD", text) for text in SCRIPTS.values()]
        connection = self._connection(limit_ms)
        found, stored, names, *_ = self._exchange(connection, [*reading, named, *load])
        if found not in (None, SCHEMA):
            raise StoreError(
                f"{self.where} holds a store of version {found.decode(errors='replace')} under the "
                f"prefix {self.prefix!r}, and this program reads version "
                f"{SCHEMA.decode()}: use the program that wrote it, another database or another "
                "prefix"
            )
        try:
            keys = UserKeys.read()
            if found is None or (stored is None and not keys.keys):
                # Places grow even beyond those of a store that was lost.
                first: list[Command] = [(b"SET", self._prefix + b"place", int(1_000 * time.time()))]
                first.append((b"SET", key, SCHEMA))
                if not keys.keys:
                    first.append((b"SET", user_key, new_key()))
                once = [(*command, b"NX") for command in first]
                *_, stored = self._exchange(self._idle.pop(), [*once, *reading])
            self._user_keys = keys | UserKeys(() if stored is None else (stored,))
            self._user_keys.check([f"{name.decode()}:" for name in names], self.where)
        except ValueError as error:
            raise StoreError(str(error)) from None
        return self._idle.pop()

    def _drop_idle(self) -> None:
        while self._idle:
            try:
                self._idle.pop().disconnect()
            except IndexError:
                return

    def _failure(self, error: Exception, limit_ms: float) -> StoreError:
        """Describe what went wrong and the remedy."""
        said = str(error)
        if isinstance(error, StoreError):
            return error
        if isinstance(error, redis.AuthenticationError):
            return StoreError(f"{self.where} refuses the name and password in the URL: {said}")
        if isinstance(error, redis.TimeoutError):
            waited = f"did not answer within {limit_ms:.0f} ms"
            return StoreUnreachableError(f"{self.where} {waited}: is it frozen or overloaded?")
        if isinstance(error, redis.exceptions.BusyLoadingError):
            return StoreUnreachableError(f"{self.where} is still reading its data: {said}")
        if isinstance(error, redis.ConnectionError):
            return StoreUnreachableError(f"{self.where} cannot be reached, is it running? {said}")
        if isinstance(error, UnicodeError):
            return StoreError(f"{self.where}: an id is no Unicode text: {said}")
        if "OOM" in said or isinstance(error, redis.exceptions.OutOfMemoryError):
            return StoreError(
                f"{self.where} is full: raise its maxmemory, or keep events and served lists for "
                f"fewer days ({said})"
            )
        return StoreError(f"{self.where} refuses a command: {said}")

    def close(self) -> None:
        if self._pid == os.getpid():
            self._drop_idle()
