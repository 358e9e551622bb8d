"""Rows of an embedding table for users' ids: which user has one; row 0 is of unknown users.

A table of every user that ever came grows without end, and most of its rows are of users who came
once. A user has a row of their own from ``min_events`` training events on, the most active first
while rows are free, and gives it back when their last event is older than ``ttl_days`` before the
newest of all; the next build may assign it to another.

A row's owner is their user row, which stays theirs from build to build, so equal inputs give equal
rows.

Axes: U user rows, K rows of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from features.schema import FeaturesConfig, UserIdRows

Rows = NDArray[np.int64]
OWNERS = Path("vocabularies") / "user_id_owners.npy"
FEATURE = "id"
SECONDS_PER_DAY = 86_400


@dataclass(frozen=True)
class UserActivity:
    """Training events of each user."""

    counts: Rows
    """Events, [U]."""
    last_times: Rows | None
    """Unix seconds of the newest, [U]; of no meaning without events. None without times."""


class AssignedRows(NamedTuple):
    """Rows of every user."""

    features: dict[str, Rows]
    """Feature to row by user, each [U]; 0 is unknown."""
    cardinality: dict[str, int]
    owners: Rows
    """User row of each row of the table, [K + 1]; 0 is unowned."""
    counts: Mapping[str, int]
    """For the report."""


def assigned(
    settings: UserIdRows, users: UserActivity, previous: Rows | None = None
) -> AssignedRows | None:
    """Assign rows to users; None if they have none of their own."""
    if settings.rows == 0:
        return None
    size, counts = settings.rows + 1, users.counts
    if previous is not None and len(previous) != size:
        raise ValueError(
            f"features.user_ids.rows = {settings.rows}, and the bundle that is continued has "
            f"{len(previous) - 1}; restore the setting, or train again with recsys run"
        )
    owners = np.zeros(size, np.int64) if previous is None else previous.copy()
    stays = _recent(settings, users) & (counts > 0)
    kept = stays[np.minimum(owners, len(stays) - 1)] & (owners < len(stays)) & (owners > 0)
    evicted = int(np.count_nonzero((owners > 0) & ~kept))
    owners[~kept] = 0
    has_row = np.zeros(len(counts), bool)
    has_row[owners[owners > 0]] = True
    wants = stays & (counts >= settings.min_events) & ~has_row
    wants[0] = False
    waiting = np.flatnonzero(wants)
    # The most active first; among equals the earlier user row.
    waiting = waiting[np.argsort(-counts[waiting], kind="stable")]
    free = np.flatnonzero(owners == 0)[1:]
    number = min(len(free), len(waiting))
    owners[free[:number]] = waiting[:number]
    rows = np.zeros(len(counts), np.int64)
    places = np.flatnonzero(owners)
    rows[owners[places]] = places
    return AssignedRows(
        {FEATURE: rows},
        {FEATURE: size},
        owners,
        {
            "rows": settings.rows,
            "owned": len(places),
            "admitted": number,
            "evicted": evicted,
            "without room": len(waiting) - number,
            "unknown": len(counts) - 1 - len(places),
        },
    )


def _recent(settings: UserIdRows, users: UserActivity) -> NDArray[np.bool_]:
    if settings.ttl_days is None:
        return np.ones(len(users.counts), bool)
    if users.last_times is None:
        raise ValueError(
            "features.user_ids.ttl_days needs event_time, which the events do not have; leave "
            "ttl_days out"
        )
    seen = users.counts > 0
    newest = int(users.last_times[seen].max()) if seen.any() else 0
    recent: NDArray[np.bool_] = users.last_times >= newest - settings.ttl_days * SECONDS_PER_DAY
    return recent


def renewed(owners: Rows, before: Rows) -> Rows:
    """List rows that have another owner, or none, since weights were trained."""
    return np.flatnonzero(owners[: len(before)] != before[: len(owners)])


def read_owners(features: Path) -> Rows | None:
    """Read the owners of a build; None where users have no rows of their own."""
    path = features / OWNERS
    if not path.exists():
        return None
    owners: Rows = np.load(path, allow_pickle=False)
    return owners


def write_user_ids(
    config: FeaturesConfig, sequences: Path, out: Path, counted: dict[str, int]
) -> dict[str, int]:
    """Write rows for users' ids, where they are to have any."""
    settings = config.user_ids
    if settings.rows == 0:
        return {}
    if FEATURE in config.user_features:
        raise ValueError(
            f"features.user_features = {list(config.user_features)} and features.user_ids both "
            f"name {FEATURE!r}; rename the column in data.user_columns"
        )
    ends = np.load(sequences / "train_end.npy")
    counts, times = ends - np.load(sequences / "offsets.npy")[:-1], sequences / "times.npy"
    last_times = None
    if times.exists():
        newest = np.load(times, mmap_mode="r")[np.maximum(ends - 1, 0)]
        last_times = np.where(counts > 0, newest, 0)
    previous = read_owners(config.previous) if config.previous else None
    found = assigned(settings, UserActivity(counts, last_times), previous)
    assert found is not None
    (out / "user_features").mkdir(exist_ok=True)
    for name, rows in found.features.items():
        np.save(out / "user_features" / f"{name}.npy", rows)
    np.save(out / OWNERS, found.owners)
    counted.update(found.counts)
    return found.cardinality
