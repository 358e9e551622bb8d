"""Forgotten users by keyed hashes of their ids, so that a list of them has no names.

An entry is ``<key name>:<HMAC-SHA256 of the id in hex>``. The hash has a secret key, since all
numeric ids can be tried: RECSYS_USER_KEY, the file that RECSYS_USER_KEY_FILE names, or else a
random one in the file ``user.keys`` in the folder of the list. That file has a key a line: all are
read, and the first hashes new entries. Entries without a key name, plain SHA-256, are those of
earlier versions; they are read too.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

KEY, KEY_FILE = "RECSYS_USER_KEY", "RECSYS_USER_KEY_FILE"
KEYS = "user.keys"
MIN_KEY_BYTES = 16
APPLIED = "forgotten.json"
"""In prepared features: the users that they leave out."""


def secret(variable: str, file_variable: str, purpose: str) -> bytes | None:
    """Read a secret from a variable of the environment, or from the file that another one names."""
    text = os.environ.get(variable, "")
    source = variable
    if not text and (path := os.environ.get(file_variable, "")):
        source = path
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"cannot read the {purpose} {path} ({type(error).__name__}); correct "
                f"{file_variable}"
            ) from None
    key = text.strip().encode()
    if key and len(key) < MIN_KEY_BYTES:
        raise ValueError(
            f"the {purpose} of {source} has {len(key)} bytes, it needs at least {MIN_KEY_BYTES}; "
            "make one with: openssl rand -hex 32"
        )
    return key or None


@dataclass(frozen=True)
class UserKeys:
    """Secret keys that users' ids are hashed with."""

    keys: tuple[bytes, ...] = field(default=(), repr=False)
    """The first is that of new entries."""

    @classmethod
    def read(cls, folder: Path | None = None) -> UserKeys:
        """Read the key of the environment and those of a folder; empty if there are none."""
        of_environment = secret(KEY, KEY_FILE, "key of users' ids")
        keys = [] if of_environment is None else [of_environment]
        if folder is not None and (folder / KEYS).exists():
            try:
                keys += filter(None, (folder / KEYS).read_bytes().splitlines())
            except OSError as error:
                raise ValueError(
                    f"cannot read {folder / KEYS}, which holds the keys of forgotten users "
                    f"({error.strerror}); let this user read it"
                ) from error
        return cls(tuple(dict.fromkeys(keys)))

    @classmethod
    def make(cls, folder: Path) -> UserKeys:
        """Read keys, and make one in the folder if there are none."""
        if not (found := cls.read(folder)).keys:
            # Of two processes that make it at once, one wins and both use its key.
            with suppress(FileExistsError):
                _write(folder, [new_key()], os.link)
            found = cls.read(folder)
        return found

    def save(self, folder: Path) -> None:
        """Add these keys to a folder's file, but for that of the environment."""
        known = UserKeys.read(folder)
        if missing := [key for key in self.keys if key not in known.keys]:
            of_file = [key for key in known.keys if key not in UserKeys.read().keys]
            _write(folder, [*of_file, *missing], os.replace)

    def __or__(self, other: UserKeys) -> UserKeys:
        return UserKeys(tuple(dict.fromkeys(self.keys + other.keys)))

    def hashes(self, user_id: str) -> list[str]:
        """Hash an id with each key, then without one, as entries of every age have it."""
        data = user_id.encode("utf-8", "surrogatepass")
        keyed = [f"{key_name(key)}:{hmac.digest(key, data, 'sha256').hex()}" for key in self.keys]
        return [*keyed, hashlib.sha256(data).hexdigest()]

    def check(self, entries: Iterable[str], where: Path | str) -> None:
        """Check that the key of every entry is there."""
        named = {entry.partition(":")[0] for entry in entries if ":" in entry}
        if missing := sorted(named - {key_name(key) for key in self.keys}):
            raise ValueError(
                f"{where} has forgotten users under the key {missing[0]}, which is neither in "
                f"{KEY}, {KEY_FILE} nor in the file {KEYS} beside it; restore the key or add it to "
                f"{KEYS} as a line: without it these users would come back"
            )


def _write(folder: Path, keys: Iterable[bytes], put: Callable[[Path, Path], None]) -> None:
    """Write a folder's file for this user alone, whole and on disk before it gets its name."""
    partial = folder / f".partial-{os.getpid()}-{KEYS}"
    partial.touch(mode=0o600)
    try:
        with partial.open("wb") as file:
            file.writelines(key + b"\n" for key in keys)
            file.flush()
            os.fsync(file.fileno())
        put(partial, folder / KEYS)
    finally:
        partial.unlink(missing_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def new_key() -> bytes:
    """Make a random key."""
    return os.urandom(32).hex().encode()


def key_name(key: bytes) -> str:
    """Return a short name of a key that does not reveal it."""
    return hashlib.sha256(b"recsys user key:" + key).hexdigest()[:8]


@dataclass(frozen=True)
class ForgetList:
    """When users were forgotten."""

    moments: Mapping[str, int] = field(default_factory=dict)
    """Unix ms by the hash of the user's id."""
    keys: UserKeys = UserKeys()

    @classmethod
    def of(cls, user_ids: Iterable[str], now_ms: int, keys: UserKeys) -> ForgetList:
        """List users who are forgotten now."""
        return cls({keys.hashes(user_id)[0]: now_ms for user_id in user_ids}, keys)

    def __bool__(self) -> bool:
        return bool(self.moments)

    def __or__(self, other: ForgetList) -> ForgetList:
        """Join two lists; of two moments of a hash the later one counts."""
        later = {user: at for user, at in other.moments.items() if self.moments.get(user, -1) < at}
        return ForgetList({**self.moments, **later}, self.keys | other.keys)

    def moment(self, user_id: str) -> int | None:
        """Return when a user was forgotten; None if never."""
        if not self.moments:
            return None
        found = [self.moments.get(entry) for entry in self.keys.hashes(user_id)]
        return max((at for at in found if at is not None), default=None)


NOBODY = ForgetList()
"""The empty list."""
