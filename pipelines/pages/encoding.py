"""Documents as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import orjson

OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def encoded(value: object) -> bytes:
    """Encode a document; numbers that JSON does not have become null."""
    try:
        return orjson.dumps(value, default=_plain, option=OPTIONS)
    except orjson.JSONEncodeError:
        # A title may hold half of a surrogate pair, which UTF-8 cannot.
        return orjson.dumps(_mended(value), default=_plain, option=OPTIONS)


def for_script(value: object) -> str:
    """Encode as JSON for a script element."""
    return encoded(value).decode().replace("<", "\\u003c")


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence | set | frozenset):
        return list(value)
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a document holds a {type(value).__name__}, which JSON does not have")


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _mended(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {_mended(key): _mended(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_mended(one) for one in value]
    return value
