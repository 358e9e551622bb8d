"""Manifest of the partitions that a workspace holds, with their digests.

days/2026-11-22~1/events-00000.parquet  clean rows of a partition's first version
days/2026-11-22~1/quarantine/           rows that cannot be used, with their reasons
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from features.schema import CLEAN
from pipelines.engine.artifacts import digest_of_json, write_json
from pipelines.engine.workspace import SCHEMA, DailyState

WATERMARK_DAYS = 3
"""Days after the newest partition until an earlier one counts as missing."""


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One file of a partition, as the store lists it."""

    path: str
    size: int
    mark: str
    """Mark of a version of the file: its ETag, or its time of writing."""


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition whose events count."""

    files: tuple[SourceFile, ...]
    digests: tuple[str, ...]
    """SHA-256 of each file."""
    revision: int = 1
    """How many versions of it have arrived."""
    rows: int
    quarantined: Mapping[str, int] = field(default_factory=dict)
    """Rows that cannot be used, by reason."""
    first_time: int | None = None
    """Unix seconds."""
    last_time: int | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    arrived: str
    """When it was read (UTC)."""
    left_out: str = ""
    """Digest of the list of forgotten users that its rows were held against."""

    @property
    def digest(self) -> str:
        """Digest of its files' contents."""
        return digest_of_json(sorted(self.digests))


@dataclass(frozen=True, kw_only=True)
class SetAside:
    """A version of a partition that does not count; an earlier version does, if there was one."""

    files: tuple[SourceFile, ...]
    """As they were listed; it is read once more when they change. None where reading failed on
    the way, which is tried at each call."""
    reason: str
    since: str
    schema_changed: bool = False


@dataclass(frozen=True, kw_only=True)
class PartitionsManifest:
    """All partitions of a workspace."""

    source: str
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    """By key, in order."""
    set_aside: Mapping[str, SetAside] = field(default_factory=dict)

    @classmethod
    def read(cls, workspace: Path) -> PartitionsManifest | None:
        """Read a workspace's manifest; None where no partition was read."""
        path = DailyState(workspace).partitions_manifest
        if not path.exists():
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["format"] != SCHEMA:
                raise ValueError(f"format {found['format']}, this version reads {SCHEMA}")
            if hours := [key for key in found["partitions"] if "T" in key]:
                raise ValueError(f"{hours[0]} is of an hour, this version reads days")
            return cls(
                source=found["source"],
                partitions={
                    key: Partition(**_with_files(one)) for key, one in found["partitions"].items()
                },
                set_aside={
                    key: SetAside(**_with_files(one)) for key, one in found["set_aside"].items()
                },
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} cannot be read ({error}); delete {path.parent}: the next recsys ingest "
                "reads all partitions from their source"
            ) from error

    def write(self, workspace: Path) -> None:
        """Write the manifest, durably."""
        document = {
            "format": SCHEMA,
            "source": self.source,
            "partitions": {key: asdict(one) for key, one in sorted(self.partitions.items())},
            "set_aside": {key: asdict(one) for key, one in sorted(self.set_aside.items())},
            "missing": self.missing,
        }
        write_json(DailyState(workspace).partitions_manifest, document)

    def with_partition(self, key: str, partition: Partition) -> PartitionsManifest:
        """Return a manifest with a version of a partition."""
        others = {one: value for one, value in self.set_aside.items() if one != key}
        return replace(self, partitions={**self.partitions, key: partition}, set_aside=others)

    @property
    def newest(self) -> str | None:
        """Key of the latest partition."""
        return max(self.partitions, default=None)

    @property
    def missing(self) -> list[str]:
        """Keys between the first and the latest partition that never came."""
        if not self.partitions:
            return []
        expected = keys_between(min(self.partitions), max(self.partitions))
        return [key for key in expected if key not in self.partitions]

    def is_behind_watermark(self, key: str) -> bool:
        """Check whether a partition is older than the watermark."""
        if self.newest is None:
            return False
        age = parse_begin(self.newest) - parse_end(key)
        return age.days >= WATERMARK_DAYS

    def digests(self) -> dict[str, str]:
        """Digest of each partition that counts, by key."""
        return {key: one.digest for key, one in self.partitions.items()}

    def files(self, workspace: Path) -> list[Path]:
        """List the clean files of all partitions, in the order of their keys."""
        paths: list[Path] = []
        state = DailyState(workspace)
        for key, partition in sorted(self.partitions.items()):
            folder = state.partition(key, partition.revision)
            found = sorted(folder.glob(CLEAN))
            if partition.rows and not found:
                raise ValueError(
                    f"{folder} is missing; delete {state.partitions}: the next recsys "
                    "ingest reads all partitions from their source"
                )
            paths += found
        return paths


def _with_files(table: Mapping[str, Any]) -> dict[str, Any]:
    """Read lists as tuples, without fields of earlier versions."""
    found = {name: value for name, value in table.items() if name not in ("gone", "late")}
    if "digests" in found:
        found["digests"] = tuple(found["digests"])
    return {**found, "files": tuple(SourceFile(**one) for one in table["files"])}


def parse_begin(key: str) -> datetime:
    """Return when a partition begins (UTC)."""
    return datetime.fromisoformat(key).replace(tzinfo=UTC)


def parse_end(key: str) -> datetime:
    """Return when a partition ends (UTC)."""
    return parse_begin(key) + timedelta(days=1)


def keys_between(first: str, last: str) -> list[str]:
    """List the keys from one partition to another, both included."""
    begin, end = date.fromisoformat(first), date.fromisoformat(last)
    return [str(begin + timedelta(days=place)) for place in range((end - begin).days + 1)]
