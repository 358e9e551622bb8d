"""Keys of clients: a TOML file that holds their hashes, never the keys.

    [[keys]]
    name = "shop"                  # in logs and audit lines
    sha256 = "9f86d0818..."        # of the key, as `recsys keys add` writes it
    scopes = ["read"]
    tenant = "shop"                # label of the owner, by default the name
    rate = 100.0                   # requests a second; without it no limit
    burst = 200                    # requests at once, by default two seconds' worth

A key is 256 random bits, so its plain hash cannot be reversed and no guess can be hurried along.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import tomllib
from collections import Counter
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serving.schemas import Scope

KEY_PREFIX = "rk_"
MAX_KEYS = 10_000
_NO_DIGEST = "0" * 64
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\w.-]+$")]


class ClientKey(BaseModel):
    """Scopes and limit of one key; the key itself is not stored."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    scopes: frozenset[Scope] = Field(min_length=1)
    tenant: Name | None = None
    """Label of the owner in listings and audit lines; it separates no data."""
    rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    burst: int | None = Field(default=None, ge=1)

    @property
    def owner(self) -> str:
        """The tenant, by default the key's name."""
        return self.tenant or self.name

    def capacity(self, rate: float) -> int:
        """Requests that may come at once."""
        return self.burst or math.ceil(2 * rate)


class _KeyFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: list[ClientKey] = Field(max_length=MAX_KEYS)


class KeyRing:
    """The keys of one file."""

    def __init__(self, keys: list[ClientKey]) -> None:
        self.keys = tuple(keys)
        self._by_digest = {key.sha256: key for key in keys}

    def find(self, secret: str) -> ClientKey | None:
        """Find whose key this is, in a time that does not depend on how much of it is right."""
        digest = digest_of(secret)
        key = self._by_digest.get(digest)
        known = hmac.compare_digest(digest, _NO_DIGEST if key is None else key.sha256)
        return key if known else None


def new_secret() -> str:
    """Make a key; only its hash is ever stored."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """Hash a key as files hold it."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def read_keys(path: Path, *, named: Path | None = None) -> KeyRing:
    """Read a file of keys.

    Args:
        named: What messages call it, by default its path.
    """
    try:
        if path.stat().st_mode & 0o022:
            raise ValueError(
                f"{path} can be written by others than its owner, who could then add keys; "
                f"run chmod go-w {path}"
            )
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"key file {path} cannot be read: {error}") from error
    path = named or path
    try:
        keys = _KeyFile.model_validate(document).keys
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise ValueError(
            f"key file {path}: {where}: {first['msg']}; make keys with recsys keys add"
        ) from None
    for field in ("name", "sha256"):
        (most, times), *_ = Counter(getattr(key, field) for key in keys).most_common(1) or [("", 1)]
        if times > 1:
            raise ValueError(f"key file {path} has {field} {most!r} twice; keep one of them")
    return KeyRing(keys)
