"""Source of partitions: a folder, a glob or an object store, listed and fetched by fsspec.

A file's partition is the day in its path; files of hours belong to their day:

    events/2026-11-22.csv                 events/date=2026-11-22/part-0.parquet
    s3://shop/events/2026/11/22/a.jsonl   events/dt=2026-11-22/hour=13/part-0.parquet

fsspec is imported here only; a store's driver (s3fs, gcsfs) is installed by who needs it.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from features.reading.databases import DatabaseTable, is_database
from features.schema import EVENT_TIME, JSON_LINES, SEPARATED
from pipelines.config.run import DataConfig
from pipelines.partitions.manifest import SourceFile, parse_end
from recsys.data.durable import digest_of_file

ENDINGS = (".parquet", *SEPARATED, *JSON_LINES)
_DATE = re.compile(
    r"(?<!\d)(?P<year>\d{4})(?P<by>[-_/]?)(?P<month>\d{2})(?P=by)(?P<day>\d{2})(?!\d{3})"
)


@dataclass(frozen=True)
class DatabaseDays:
    """A table or query of a database, with a partition for each day of its times.

    A day is read again when its number of rows or its latest time changes.
    """

    place: str
    time: str
    """Column of dates, timestamps or ISO texts."""

    def partitions(self) -> dict[str, tuple[SourceFile, ...]]:
        """List each day as a file."""
        table = DatabaseTable.parse(self.place)
        return {
            day: (SourceFile(path=f"{day}.parquet", size=rows, mark=latest),)
            for day, rows, latest in table.days(self.time)
        }

    def fetch(self, file: SourceFile, to: Path) -> str:
        """Write a day's rows as a file."""
        day = Path(file.path).stem
        end, time = parse_end(day).date(), f'"{self.time}"'
        rows = DatabaseTable.parse(self.place).read(f"where {time} >= '{day}' and {time} < '{end}'")
        to.parent.mkdir(parents=True, exist_ok=True)
        rows.write_parquet(to)
        return digest_of_file(to)


@dataclass(frozen=True)
class PartitionSource:
    """A place with partitions."""

    place: str
    """A folder, a glob, or a URL of either."""

    def partitions(self) -> dict[str, tuple[SourceFile, ...]]:
        """List the files of each partition, by key (2026-11-22), in order."""
        filesystem, root = self._opened()
        try:
            # A listing that is kept from an earlier call would hide new partitions.
            filesystem.invalidate_cache()
            is_glob = any(sign in root for sign in "*?[")
            found = filesystem.glob(root, detail=True) if is_glob else self._below(filesystem, root)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"data.partitions: cannot list {self.place}: {error or type(error).__name__}; "
                "check the address, the network and the store's credentials"
            ) from error
        base = root[: re.search(r"[*?\[]|$", root).start()]  # type: ignore[union-attr]
        files: dict[str, list[SourceFile]] = defaultdict(list)
        for path, info in sorted(found.items()):
            relative = path.removeprefix(base.rpartition("/")[0] if is_glob else root)
            if info.get("type") != "file" or not _is_data(relative):
                continue
            files[read_key(relative, self.place)].append(_described(path, info))
        return {key: tuple(files[key]) for key in sorted(files)}

    def fetch(self, file: SourceFile, to: Path) -> str:
        """Copy a file here."""
        filesystem, _ = self._opened()
        digest = hashlib.sha256()
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            with filesystem.open(file.path, "rb") as source, to.open("wb") as target:
                while block := source.read(1 << 20):
                    digest.update(block)
                    target.write(block)
        except FileNotFoundError as error:
            raise ValueError(
                f"{file.path} is gone since it was listed; run it once more"
            ) from error
        return digest.hexdigest()

    def _opened(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        try:
            filesystem, root = url_to_fs(self.place)
        except ImportError as error:
            raise ValueError(
                f"data.partitions = {self.place!r} needs a driver: {error}. Install s3fs for "
                "s3://, gcsfs for gs://, adlfs for abfs://"
            ) from error
        except ValueError as error:
            raise ValueError(
                f"data.partitions = {self.place!r} is no address that can be read: {error}; name "
                "a folder, a glob such as events/date=*/*.parquet, or s3://bucket/events"
            ) from error
        return filesystem, root.rstrip("/")

    def _below(self, filesystem: Any, root: str) -> Mapping[str, Any]:
        if not filesystem.isdir(root):
            raise ValueError(f"there is no folder {root}")
        found: Mapping[str, Any] = filesystem.find(root, detail=True)
        return found


Source = PartitionSource | DatabaseDays


def open_source(data: DataConfig) -> Source:
    """Return the source of a run's partitions."""
    place = data.partitions or ""
    if is_database(place):
        return DatabaseDays(place, data.columns.get(EVENT_TIME) or EVENT_TIME)
    return PartitionSource(place)


def _is_data(relative: str) -> bool:
    """Leave out hidden files and markers such as _SUCCESS, and unfinished files."""
    parts = [part for part in relative.split("/") if part]
    if any(part[0] in "._" for part in parts):
        return False
    name = parts[-1].removesuffix(".gz")
    return name.endswith(ENDINGS)


def _described(path: str, info: Mapping[str, Any]) -> SourceFile:
    marks = (info.get("ETag"), info.get("etag"), info.get("LastModified"), info.get("mtime"))
    mark = next((str(one) for one in marks if one is not None), "")
    return SourceFile(path=path, size=int(info["size"] or 0), mark=mark)


def read_key(relative: str, place: str) -> str:
    """Read a partition's key from a path."""
    for found in _DATE.finditer(relative):
        with suppress(ValueError):
            return str(date(*(int(found[name]) for name in ("year", "month", "day"))))
    raise ValueError(
        f"data.partitions = {place!r}: {relative.lstrip('/')} has no date in its path; partitions "
        "are named by day, such as date=2026-11-22/part-0.parquet, 2026-11-22.csv or "
        "2026/11/22/a.jsonl"
    )
