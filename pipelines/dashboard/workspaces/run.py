"""A run as the dashboard knows it: that of a workspace, or a released bundle; its settings."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from sys import intern
from typing import Any, Literal

from pipelines.pages.document import Origin
from pipelines.publishing.released import shop_workspace

Kind = Literal["workspace", "bundle"]
Status = Literal["complete", "unfinished", "unreadable"]


@lru_cache(512)
def flat_settings(text: str) -> dict[str, str]:
    """Parse a configuration by dotted name; runs of equal files share it."""
    return flat(tomllib.loads(text))


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
            written = value if isinstance(value, str) else json.dumps(value, default=str)
            values[intern(key)] = intern(written)
    return values


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
    """Return the name of a run's data: the data set, or the file of events."""
    if named := config.get("data.dataset"):
        return named
    place = Path((config.get("data.partitions") or config.get("data.events", "")).strip('[]"'))
    return f"{place.parent.name}/{place.stem}".strip("/") or None


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run: the newest of a workspace, or a released bundle."""

    key: str
    """12 hexadecimal digits that name it in addresses; of its place, so that it stays."""
    name: str
    """For people: the workspace's name or the bundle's version."""
    kind: Kind
    status: Status
    time: datetime | None = None
    """When it ended, or last changed (UTC)."""
    path: Path
    metrics: Mapping[str, float] = field(default_factory=dict)
    """By ``<split>/<model>/<metric>``, such as ``test/blend_fast/ndcg@10``; finite values only.
    Models have the names of `pipelines.pages.wording`; the served list is `Run.served`."""
    config: Mapping[str, str] = field(default_factory=dict)
    settings: str = ""
    """Text of the configuration of a workspace."""
    known_digest: str | None = None
    """Digest of the configuration of a bundle, as its manifest has it."""
    data_digest: str | None = None
    dataset: str | None = None
    seconds: float | None = None
    """Time of all stages together."""
    peak_memory: int | None = None
    """Bytes, of the largest stage."""
    tags: Mapping[str, str] = field(default_factory=dict)
    served: str | None = None
    """Model whose list is served, if the run says."""
    bundles: Sequence[str] = ()
    """Versions that the run released, the newest first."""
    made_by: str | None = None
    """Key of the workspace that released a bundle, if that is there."""
    problems: Sequence[str] = ()
    """Problems in words, such as a file that cannot be read."""

    @property
    def config_digest(self) -> str | None:
        """Digest of the configuration, computed when it is needed; None if it is not known."""
        return self.known_digest or (digest_of_settings(self.settings) if self.settings else None)

    @property
    def bundles_folder(self) -> Path:
        """Folder of bundles that a run releases into, or that a bundle is in."""
        above = self.path.parent
        if self.kind == "bundle":
            return above.parent if above.name == "refused" else above
        named = self.config.get("release.bundles", "null")
        return shop_workspace(self.path) / "bundles" if named == "null" else Path(named)

    @property
    def origin(self) -> Origin:
        """Origin of a block's numbers."""
        return Origin(
            run=self.key,
            name=self.name,
            config_digest=self.config_digest,
            data_digest=self.data_digest,
        )
