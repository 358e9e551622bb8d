"""One partition of the event files to records, ids and bad rows on disk.

    FOLDER/
        records                     integer records, ids as codes of this partition
        shown/part-*.parquet        impressions, if there are any
        texts/user.ipc ...          the text of each code
        user_counts.npy             records of each user code
        quarantine/part-*.parquet

A partition is some files of the events, whole ones, in their order. Partitions are prepared apart
from each other.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl

from features.forget_list import NOBODY, ForgetList
from features.ingest import RECORDS, EventReader, record_dtype
from features.parallel import num_cores
from features.people import ForgottenUsers
from features.records import RecordFile, Rows
from features.report import Quarantine
from features.schema import FilterConfig, SourceConfig

OPTIONAL_TEXTS = ("domain", "session", "request")
SMALL_BYTES = 32 << 20
"""Files of fewer bytes in all are one partition."""
MEMORY_PER_FILE_BYTE = 4
"""Bytes of a partition's ids: a compressed event takes 7 bytes, one in four has a new id, and that
takes 100 bytes of memory."""


@dataclass(frozen=True, kw_only=True)
class PrepareTask:
    """A partition to prepare."""

    source: SourceConfig
    """Its files."""
    filters: FilterConfig
    fields: tuple[str, ...]
    """Optional fields that the records of all partitions have."""
    folder: Path
    now: datetime
    """Events more than a day later are in the future."""
    online: bool = False
    """True if a server collected the events."""
    known_items: Path | None = None
    """Item ids (read_texts) of which online events may be."""
    forgotten: ForgetList = NOBODY
    """Users whose events are left out, as in FeaturesConfig."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Contents of a partition's folder, and counts of its rows."""

    folder: Path
    fields: tuple[str, ...]
    num_records: int
    num_texts: dict[str, int]
    """Codes of each text field."""
    rows_in: int
    num_bad: int
    dropped: Counter[str]
    quarantine: Quarantine
    min_time: int | None
    """Earliest time in microseconds; None without times or records."""

    def texts(self, field: str) -> Path:
        return self.folder / "texts" / f"{field}.ipc"

    def records(self) -> RecordFile:
        """Open the records."""
        file = RecordFile.existing(self.folder / RECORDS, record_dtype(self.fields))
        file.length = self.num_records
        return file

    def user_counts(self) -> Rows:
        """Read the records of each user code."""
        counts: Rows = np.load(self.folder / "user_counts.npy")
        return counts


def write_texts(texts: pl.Series, path: Path) -> None:
    """Write texts by code, to be read back without parsing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts.alias("id").to_frame().write_ipc(path, compression="uncompressed")


def read_texts(path: Path) -> pl.Series:
    """Read the texts by code."""
    return pl.read_ipc(path)["id"]


def number_of_partitions(source: SourceConfig, memory: int) -> int:
    """Choose how many partitions to make of a source.

    Threads share one, which needs no merging of ids, as long as its ids fit.
    """
    size = sum(path.stat().st_size for path in source.paths)
    needed = 2 * size * MEMORY_PER_FILE_BYTE
    if size < SMALL_BYTES or needed <= memory:
        return 1
    return -(-num_cores() * needed // memory)


def divide_files(source: SourceConfig, number: int) -> list[SourceConfig]:
    """Divide a source into at most ``number`` partitions of neighbouring files, equal in bytes."""
    ends = np.cumsum([path.stat().st_size for path in source.paths])
    if number < 2:
        return [source]
    parts = np.minimum((ends - 1) * number // max(1, int(ends[-1])), number - 1)
    groups = [
        tuple(path for path, part in zip(source.paths, parts, strict=True) if part == place)
        for place in range(number)
    ]
    return [replace(source, paths=paths) for paths in groups if paths]


def prepare_partition(task: PrepareTask) -> Prepared:
    """Read the files of a partition."""
    # What a killed attempt left is made again.
    shutil.rmtree(task.folder, ignore_errors=True)
    task.folder.mkdir(parents=True)
    reader = EventReader(task.folder, task.filters, task.fields, task.now)
    reader.online, reader.forgotten = task.online, ForgottenUsers(task.forgotten)
    if task.known_items is not None:
        reader.known_items = read_texts(task.known_items)
    for path in task.source.paths:
        reader.read(path, task.source)
    prepared = Prepared(
        folder=task.folder,
        fields=task.fields,
        num_records=reader.records.length,
        num_texts={name: one.size for name, one in reader.texts.items()},
        rows_in=reader.rows_in,
        num_bad=reader.num_bad,
        dropped=reader.dropped,
        quarantine=reader.quarantine,
        min_time=reader.min_time,
    )
    for name, dictionary in reader.texts.items():
        write_texts(dictionary.texts(), prepared.texts(name))
    missing = reader.texts["user"].size - len(reader.user_counts)
    np.save(task.folder / "user_counts.npy", np.pad(reader.user_counts, (0, missing)))
    reader.records.close()
    return prepared


def known_items(parts: Sequence[Prepared], catalogue: pl.Series, path: Path) -> None:
    """Write the item ids of the catalogue and of partitions."""
    found = [catalogue.alias("id"), *(read_texts(part.texts("item")) for part in parts)]
    write_texts(pl.concat(found).unique(), path)
