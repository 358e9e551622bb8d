"""Read small files that may be half written, hand made, or of another version."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, lru_cache
from pathlib import Path
from sys import intern
from typing import Any

import orjson


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
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries)
    except OSError:
        return []


def number(value: object) -> float | None:
    """Return a number as it is; None for anything else."""
    return float(value) if isinstance(value, (int, float)) else None


def place_key(place: str) -> str:
    """Hash a place to 12 hexadecimal digits."""
    return hashlib.sha256(place.encode()).hexdigest()[:12]


def released_order(orders: Mapping[str, Any]) -> str:
    """Return the order of tied times whose models are released."""
    return min(orders, key=lambda order: (order != "given", order))


def finite_metrics(splits: object) -> tuple[dict[str, float], list[str]]:
    """Return the finite values by ``<split>/<model>/<metric>``, and a sentence on others.

    Other shapes are passed over.
    """
    found, none = {}, []
    for split, models in splits.items() if isinstance(splits, Mapping) else ():
        for model, values in models.items() if isinstance(models, Mapping) else ():
            for metric, value in values.items() if isinstance(values, Mapping) else ():
                name = f"{split}/{model}/{metric}"
                if isinstance(value, (int, float)) and math.isfinite(value):
                    found[intern(name)] = float(value)
                else:
                    none.append(f"{name} ({value})")
    more = f" and {len(none) - 3} more" if len(none) > 3 else ""
    words = f"metrics that are no numbers are left out: {', '.join(none[:3])}{more}"
    return found, [words] if none else []


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


CONFIG = "config.toml"


def flat(table: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Write nested settings by dotted name; texts as they are, others as JSON.

    What has no value is left out, as TOML leaves it out.
    """
    values: dict[str, str] = {}
    for name, value in table.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping):
            values |= flat(value, f"{key}.")
        elif value is not None:
            values[intern(key)] = intern(_text(value))
    return values


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return json.dumps(value, default=str)
    return repr(value)


@dataclass(frozen=True)
class RunSettings:
    """The configuration of a run; runs of equal files share it."""

    table: Mapping[str, Any] = field(default_factory=dict)
    flat: Mapping[str, str] = field(default_factory=dict)
    text: str = ""


def read_settings(workspace: Path) -> RunSettings | None:
    """Read a run's resolved configuration; None if there is none."""
    try:
        return _parsed((workspace / CONFIG).read_text(encoding="utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableError(f"{CONFIG} cannot be read: {error}") from error


@lru_cache(512)
def _parsed(text: str) -> RunSettings:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UnreadableError(f"{CONFIG} is no TOML: {error}") from error
    return RunSettings(table, flat(table), text)


@lru_cache(512)
def digest_of_settings(text: str) -> str | None:
    """Hash a configuration as a release does; None if it is empty or of another version."""
    from pipelines.engine.workspace import digest_of_config

    try:
        encoded = json.dumps(tomllib.loads(text), default=str)
        return digest_of_config(_config_type().validate_json(encoded, strict=True))
    except (ValueError, TypeError):
        return None


@cache
def _config_type() -> Any:
    from pydantic import TypeAdapter

    from pipelines.config.run import RunConfig

    return TypeAdapter(RunConfig)


def dataset_name(config: Mapping[str, str]) -> str | None:
    """Return the name of a run's data: the data set, the report's title, or the file of events."""
    named = config.get("data.dataset") or config.get("report.title")
    if named:
        return named
    place = Path((config.get("data.partitions") or config.get("data.events", "")).strip('[]"'))
    return f"{place.parent.name}/{place.stem}".strip("/") or None
