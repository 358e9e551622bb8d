"""Read small files that may be half written, hand made, or of another version."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

Stamp = tuple[tuple[str, int, int], ...]


class UnreadableError(ValueError):
    """A file is there but is not what it should be; says which and why."""


def read_table(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if there is no file."""
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UnreadableError(f"{path.name} cannot be read: {error.strerror}") from error
    where = f"{path.parent.name}/{path.name}"
    try:
        # NaN and Infinity, which Python writes, orjson refuses.
        found = json.loads(data) if b"NaN" in data or b"Infinity" in data else orjson.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{where} is no JSON: {str(error)[:120]}") from error
    if not isinstance(found, dict):
        raise UnreadableError(f"{where} is no JSON object")
    return found


def read_or_empty(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is none or it cannot be read."""
    try:
        return read_table(path) or {}
    except UnreadableError:
        return {}


def names_in(folder: Path) -> list[str]:
    """List the names in a folder, in their order; none if it cannot be read."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def number(value: object) -> float | None:
    """Return a number as it is; None for anything else."""
    return float(value) if isinstance(value, (int, float)) else None


def place_key(place: str) -> str:
    """Hash a place to 12 hexadecimal digits."""
    return hashlib.sha256(place.encode()).hexdigest()[:12]


def file_stamp(paths: Iterable[Path]) -> Stamp:
    """Return name, time of change and size of each file; 0 if it is gone."""
    found = []
    for path in paths:
        try:
            stat = path.stat()
            found.append((str(path), stat.st_mtime_ns, stat.st_size))
        except OSError:
            found.append((str(path), 0, 0))
    return tuple(found)


def changed_at(path: Path) -> datetime | None:
    """When a file last changed (UTC); None if it is gone."""
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:
        return None


def parse_time(text: object) -> datetime | None:
    """Read a time as our files write it."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
