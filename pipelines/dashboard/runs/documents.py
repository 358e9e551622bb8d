"""Read small files that may be half written, hand made, or of another version."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from sys import intern
from typing import Any

import orjson


class UnreadableError(ValueError):
    """A file is there but is not what it should be; says which and why."""


def read_table(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None where there is no file.

    Raises:
        UnreadableError: It cannot be read, or is none.
    """
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UnreadableError(f"{path.name} cannot be read: {error.strerror}") from error
    try:
        try:
            found = orjson.loads(data)
        except orjson.JSONDecodeError:
            # NaN and Infinity, which Python writes and orjson refuses.
            found = json.loads(data)
    except (ValueError, RecursionError) as error:
        where = f"{path.parent.name}/{path.name}"
        raise UnreadableError(f"{where} is no JSON: {str(error)[:120]}") from error
    if not isinstance(found, dict):
        raise UnreadableError(f"{path.parent.name}/{path.name} is no JSON object")
    return found


def names_in(folder: Path) -> list[str]:
    """List the names in a folder, in their order; none where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries)
    except OSError:
        return []


def key_of(place: str) -> str:
    """Name a place in 12 hexadecimal digits."""
    return hashlib.sha256(place.encode()).hexdigest()[:12]


def released_order(orders: Mapping[str, Any]) -> str:
    """Name the order of tied times whose models are released."""
    return min(orders, key=lambda order: (order != "given", order))


def named_values(splits: object) -> Iterator[tuple[str, object]]:
    """List values by ``<split>/<model>/<metric>``; other shapes are passed over."""
    for split, models in splits.items() if isinstance(splits, Mapping) else ():
        for model, values in models.items() if isinstance(models, Mapping) else ():
            for name, value in values.items() if isinstance(values, Mapping) else ():
                yield f"{split}/{model}/{name}", value


def finite(values: Iterator[tuple[str, object]]) -> tuple[dict[str, float], list[str]]:
    """Part numbers from what is none, and name the latter in a sentence."""
    found, none = {}, []
    for name, value in values:
        if isinstance(value, (int, float)) and math.isfinite(value):
            found[intern(name)] = float(value)
        else:
            none.append(f"{name} ({value})")
    more = f" and {len(none) - 3} more" if len(none) > 3 else ""
    words = f"metrics that are no numbers are left out: {', '.join(none[:3])}{more}"
    return found, [words] if none else []


def changed_at(path: Path) -> datetime | None:
    """When a file last changed (UTC); None where it is gone."""
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:
        return None


def time_of(text: object) -> datetime | None:
    """Read a time as our files write it."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
