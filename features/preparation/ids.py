"""Ids of all partitions: one vocabulary, and each partition's codes in terms of it.

Axes: C codes of a partition, U ranks (an id's place in the vocabulary before anything is dropped).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.encoding import MISSING, extended, find_rows
from features.preparation.prepare import OPTIONAL_TEXTS, Prepared, read_texts, write_texts
from features.records import Records, Rows

Ranks = NDArray[np.uint32]


@dataclass(frozen=True)
class Ids:
    """Ids by rank: those of an earlier vocabulary as they were, then the others ascending."""

    ids: pl.Series
    num_previous: int
    path: Path
    """File of the ids for tasks."""


def merge_ids(parts: Sequence[Prepared], field: str, previous: pl.Series | None, path: Path) -> Ids:
    """Put the ids of all partitions into one order."""
    found = read_texts(parts[0].texts(field))
    for part in parts[1:]:
        # One at a time, so that never all partitions' ids are in memory.
        found = pl.concat([found, read_texts(part.texts(field))]).unique()
    ids = extended(found, previous)
    write_texts(ids, path)
    return Ids(ids, 0 if previous is None else len(previous), path)


def read_ranks(part: Prepared, field: str) -> Ranks:
    """Read the rank of each code, [C]."""
    ranks: Ranks = np.load(part.folder / f"{field}_ranks.npy", mmap_mode="r")
    return ranks


def rank_partition(part: Prepared, ids: dict[str, Path]) -> None:
    """Write the rank of each code of a partition; ``ids`` are files by field."""
    for field, path in ids.items():
        ranks = find_rows(read_texts(part.texts(field)), read_texts(path)) - 1
        np.save(part.folder / f"{field}_ranks.npy", ranks.astype(np.uint32))


def counts_by_rank(part: Prepared, num_users: int) -> Rows:
    """Count a partition's records of each user, [U]."""
    counts = np.zeros(num_users, np.int64)
    counts[read_ranks(part, "user")] = part.user_counts()
    return counts


@dataclass(frozen=True, kw_only=True)
class TextColumns:
    """Texts of event types and of the optional columns, by code of all partitions."""

    types: tuple[str, ...]
    files: dict[str, tuple[Path, ...]]
    """By optional field; a code counts through the files."""

    def of(self, field: str) -> pl.Series:
        """Read the texts of an optional field."""
        return _read_all_texts(self.files[field])


@lru_cache(maxsize=len(OPTIONAL_TEXTS))
def _read_all_texts(paths: tuple[Path, ...]) -> pl.Series:
    return pl.concat([read_texts(path) for path in paths])


def forget_texts() -> None:
    """Free the memory of TextColumns."""
    _read_all_texts.cache_clear()


@dataclass(frozen=True, kw_only=True)
class CodesOfAll:
    """Map from a partition's codes of texts other than ids to those of all partitions."""

    types: NDArray[np.uint32]
    """By code of the partition."""
    offsets: dict[str, int]
    """Added to the codes of an optional field."""

    def apply(self, records: Records) -> None:
        """Change records in place."""
        records["type"] = self.types[records["type"]]
        for field, offset in self.offsets.items():
            if field in (records.dtype.names or ()) and offset:
                codes = records[field]
                records[field] = np.where(codes == MISSING, codes, codes + np.uint32(offset))


def merge_texts(parts: Sequence[Prepared]) -> tuple[TextColumns, list[CodesOfAll]]:
    """Number event types once; line up the texts of the optional columns, which may repeat."""
    numbers: dict[str, int] = {}
    of_parts, ends = [], dict.fromkeys(OPTIONAL_TEXTS, 0)
    for part in parts:
        names = read_texts(part.texts("type")).to_list()
        types = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.uint32)
        of_parts.append(CodesOfAll(types=types, offsets=dict(ends)))
        for field in ends:
            ends[field] += part.num_texts[field]
            if ends[field] >= int(MISSING):
                raise ValueError(
                    f"more than {int(MISSING):,} different {field} ids; leave the column out by "
                    f'{field}_id = "" under [data.columns]'
                )
    files = {field: tuple(part.texts(field) for part in parts) for field in ends}
    return TextColumns(types=tuple(numbers), files=files), of_parts
