"""The settings of a run by dotted name, and their digest."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from sys import intern
from typing import Any

from pipelines.dashboard.runs.documents import UnreadableError

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
class Settings:
    """The configuration of a run; runs of equal files share it."""

    table: Mapping[str, Any] = field(default_factory=dict)
    flat: Mapping[str, str] = field(default_factory=dict)
    text: str = ""

    @property
    def digest(self) -> str | None:
        """The digest that a release would have; None where it is of another version."""
        return digest_of_text(self.text) if self.table else None


@lru_cache(512)
def parsed(text: str) -> Settings:
    """Parse a configuration.

    Raises:
        UnreadableError: It is no TOML.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UnreadableError(f"{CONFIG} is no TOML: {error}") from error
    return Settings(table, flat(table), text)


def read_settings(workspace: Path) -> Settings | None:
    """Read a run's resolved configuration; None where there is none.

    Raises:
        UnreadableError: It is no TOML.
    """
    try:
        text = (workspace / CONFIG).read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableError(f"{CONFIG} cannot be read: {error}") from error
    return parsed(text)


@cache
def _config_type() -> Any:
    from pydantic import TypeAdapter

    from pipelines.config.run import RunConfig

    return TypeAdapter(RunConfig)


@lru_cache(512)
def digest_of_text(text: str) -> str | None:
    """Hash settings as a release does; None where they are of another version."""
    from pipelines.engine.workspace import digest_of_config

    try:
        encoded = json.dumps(parsed(text).table, default=str)
        return digest_of_config(_config_type().validate_json(encoded, strict=True))
    except (ValueError, TypeError):
        return None


def dataset_of(config: Mapping[str, str]) -> str | None:
    """Name the data of a run: a known data set, the report's title, or the file of events."""
    named = config.get("data.dataset") or config.get("report.title")
    if named:
        return named
    place = Path((config.get("data.partitions") or config.get("data.events", "")).strip('[]"'))
    return f"{place.parent.name}/{place.stem}".strip("/") or None
