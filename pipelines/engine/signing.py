"""Sign documents with a key that operators set, so that no decision is edited unseen.

HMAC-SHA256 over the document's JSON with sorted keys. The key is the variable RECSYS_SIGNING_KEY,
or the content of the file that RECSYS_SIGNING_KEY_FILE names. It is never printed nor written; a
signature names it by the first digits of its own hash.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from features.forget_list import secret

KEY, KEY_FILE = "RECSYS_SIGNING_KEY", "RECSYS_SIGNING_KEY_FILE"
ALGORITHM = "hmac-sha256"
SIGNATURE = "signature"


class TamperedError(ValueError):
    """A signed document was altered."""


def signing_key() -> bytes | None:
    """Read the key; None where none is set."""
    return secret(KEY, KEY_FILE, "signing key")


def signed(document: Mapping[str, Any], key: bytes | None) -> dict[str, Any]:
    """Add the signature; null where there is no key."""
    body = {name: value for name, value in document.items() if name != SIGNATURE}
    if key is None:
        return {**body, SIGNATURE: None}
    value = _code(body, key)
    return {**body, SIGNATURE: {"algorithm": ALGORITHM, "key": key_name(key), "value": value}}


def check_signature(document: Mapping[str, Any], key: bytes | None, where: Path | str) -> str:
    """Verify a document; return ``unsigned``, ``not verified`` or ``signed``."""
    found = document.get(SIGNATURE)
    if found is None:
        return "unsigned"
    if key is None:
        return "not verified"
    value = found.get("value") if isinstance(found, dict) else None
    body = {name: one for name, one in document.items() if name != SIGNATURE}
    if isinstance(value, str) and hmac.compare_digest(value, _code(body, key)):
        return "signed"
    named = str(found.get("key", "?")) if isinstance(found, dict) else "?"
    if named != key_name(key):
        raise TamperedError(
            f"{where} was signed with key {named}, the one that is set is {key_name(key)}; set "
            f"{KEY} to that key, or decide again with --force"
        )
    raise TamperedError(
        f"{where} was altered after it was signed; restore it from a backup and find out who "
        "changed it"
    )


def key_name(key: bytes) -> str:
    """Return a short name of a key that does not reveal it."""
    return hashlib.sha256(b"recsys signing key:" + key).hexdigest()[:8]


def _code(body: Mapping[str, Any], key: bytes) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
