"""The events between the steps of a build: as they were read, and as they are kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.counts import Core
from features.preparation.ids import CodesOfAll, Ids, TextColumns
from features.preparation.prepare import Prepared
from features.preparation.ranges import OrderedEvents, RowFiles
from features.records import Rows


@dataclass
class Ingested:
    """Prepared partitions, in order, and what became of their rows."""

    parts: list[Prepared]
    texts: TextColumns
    codes: list[CodesOfAll]
    """Changes of codes, one per partition."""
    min_time: int
    """Earliest time in microseconds; 0 without times."""

    @property
    def has_time(self) -> bool:
        return "time" in self.parts[0].fields


@dataclass
class DenseRows:
    """Dense row of each rank, 0 if it was dropped, and the ids by row."""

    of_rank: NDArray[np.uint32]
    """Also of ids without events that an earlier vocabulary had."""
    ids: pl.Series

    @classmethod
    def of(cls, ids: Ids, kept: NDArray[np.bool_]) -> DenseRows:
        """Number kept ids from 1; an earlier vocabulary's ids keep their rows regardless."""
        stays = kept.copy()
        stays[: ids.num_previous] = True
        rows = np.cumsum(stays).astype(np.uint32)
        rows[~stays] = 0
        return cls(rows, ids.ids.filter(stays))


class KeptEvents:
    """The ordered events that the k-core left, with dense rows."""

    def __init__(
        self, ordered: OrderedEvents, core: Core, users: DenseRows, items: DenseRows, scratch: Path
    ) -> None:
        self.ordered = ordered
        self.core = core
        self.users = users
        self.items = items
        counts = np.zeros(len(users.ids) + 1, np.int64)
        counts[users.of_rank[core.users]] = core.user_counts[core.users]
        self.offsets: Rows = np.concatenate([[0], np.cumsum(counts)])
        self.rows = RowFiles(users=scratch / "user_rows.npy", items=scratch / "item_rows.npy")
        np.save(self.rows.users, np.where(core.users, users.of_rank, 0))
        np.save(self.rows.items, np.where(core.items, items.of_rank, 0))

    def places(self) -> list[int]:
        """Return where the kept events of each range of users begin."""
        kept = np.where(self.core.users, self.core.user_counts, 0)
        before = np.concatenate([[0], np.cumsum(kept)])
        return [int(before[one.first_user]) for one in self.ordered.ranges]
