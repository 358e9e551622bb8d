"""A bundle's users: ids, categorical features and histories by user row, memory-mapped.

    users/user_ids              text by user row, row 0 (unknown user) empty
    users/feature.<name>        categorical row by user row, [U]
    histories/item_rows         all users' items, oldest first, [E]
    histories/offsets           user u owns item_rows[offsets[u]:offsets[u + 1]], [U + 1]
    histories/times             unix seconds, [E], absent where the data has only an order
    histories/types             rows of the events' types, [E], absent where all are of one type
    histories/negative          1 for events that say no to their item, [E], absent without any

Axes: U user rows (row 0 included), E events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from features.point_in_time import FEATURES
from recsys.data.dataset import PastEvents, types_of_negative
from recsys.data.string_table import StringTable
from recsys.retrieval.blend.demand import item_demand
from serving.bundle.arrays import StoredArrays, check_distinct, check_ragged, check_rows, load_rows

Rows = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Users(StoredArrays):
    """User table: ids, features and histories as of the release."""

    FILES: ClassVar = {
        "user_ids": "/users/user_ids",
        "item_rows": "/histories/item_rows",
        "offsets": "/histories/offsets",
        "times": "/histories/times",
        "types": "/histories/types",
        "negative": "/histories/negative",
    }

    user_ids: StringTable
    features: Mapping[str, Rows]
    """Categorical row by user row, each [U]; row 0 holds what an unknown user gets."""
    item_rows: Rows
    offsets: Rows
    times: Rows | None = None
    types: Rows | None = None
    negative: Rows | None = None

    @classmethod
    def from_lists(cls, *, user_ids: Sequence[str], **others: Any) -> Users:
        """Take users 1 .. U - 1 in row order; row 0 is added to the ids only."""
        return cls(user_ids=StringTable.from_strings(["", *user_ids]), **others)

    @classmethod
    def load(cls, bundle: Path, feature_names: Sequence[str]) -> Users:
        files = {name: bundle / "users" / f"feature.{name}.npy" for name in feature_names}
        return cls.read(bundle, features={name: load_rows(path) for name, path in files.items()})

    def save(self, bundle: Path) -> None:
        self.write(bundle)
        for name, rows in self.features.items():
            np.save(bundle / "users" / f"feature.{name}.npy", np.asarray(rows, np.int64))

    @property
    def num_user_rows(self) -> int:
        return len(self.user_ids)

    @cached_property
    def newest_time(self) -> int | None:
        """Unix seconds of the newest event; None without times or events."""
        return None if self.times is None or len(self.times) == 0 else int(self.times.max())

    def row_of(self, user_id: str) -> int | None:
        """Find a user's row; None for an unknown user."""
        return self.user_ids.row_of(user_id) or None

    def history(self, user_row: int) -> Rows:
        """List a user's item rows, oldest first."""
        return self.events(user_row).rows

    def events(self, user_row: int) -> PastEvents:
        """List a user's events, oldest first."""
        places = slice(self.offsets[user_row], self.offsets[user_row + 1])
        return PastEvents(self.item_rows, self.times, self.types).take(places)

    @cached_property
    def counted(self) -> PastEvents:
        """All events that models count: those that are not negative."""
        return PastEvents(self.item_rows, self.times, None).take(
            slice(None) if self.negative is None else np.asarray(self.negative) == 0
        )

    @cached_property
    def negative_types(self) -> Rows | None:
        """Rows of the types of negative events; None without any."""
        return types_of_negative(self.types, self.negative)

    def measure_demand(self, num_item_rows: int) -> Tensor | None:
        """Measure items' demand by all counted events, [N, D]; None without times."""
        rows, times, _ = self.counted
        return None if times is None else item_demand(rows, times, num_item_rows)

    def check(self, directory: Path, num_item_rows: int, cardinalities: Mapping[str, int]) -> None:
        """Check that the parts fit each other and the catalogue."""
        histories = directory / "histories"
        check_ragged(histories, self.item_rows, self.offsets, self.num_user_rows, num_item_rows)
        columns = {"times": self.times, "types": self.types, "negative": self.negative}
        for name, values in columns.items():
            if values is not None and len(values) != len(self.item_rows):
                raise ValueError(
                    f"{histories} has {len(values)} {name} for {len(self.item_rows)} item_rows; "
                    "release the bundle again"
                )
        if self.times is not None and not _ascending_within(self.times, self.offsets):
            raise ValueError(
                f"{histories} has times that fall within a user's events; build the features and "
                "release the bundle again"
            )
        for name, rows in self.features.items():
            path = directory / "users" / f"feature.{name}.npy"
            check_rows(path, rows.shape, (self.num_user_rows,))
            check_ragged(path, rows, np.array([0, len(rows)]), 1, cardinalities[name])
        check_distinct(directory / "users" / "user_ids", self.user_ids)


def _ascending_within(times: Rows, offsets: Rows) -> bool:
    """True if times never fall from one event to the next of the same user."""
    falls = np.flatnonzero(np.diff(times) < 0) + 1
    return bool((offsets[np.searchsorted(offsets, falls)] == falls).all())


def check_context_features(path: Path, cardinalities: Mapping[str, int]) -> None:
    """Check that this version of the platform can compute what a bundle's model reads."""
    for name, cardinality in cardinalities.items():
        known = FEATURES[name].cardinality if name in FEATURES else None
        if cardinality != known:
            raise ValueError(
                f"{path} needs context feature {name!r} with {cardinality} categories, here it has "
                f"{known} (known: {sorted(FEATURES)}); serve it with the version that released it"
            )
