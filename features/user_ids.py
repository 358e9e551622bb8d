"""Rows of an embedding table for users' ids: who has one, who shares one, who is unknown (row 0).

A table of every user that ever came grows without end, and most of its rows are of users who came
once. ``admitted``: a user has a row of their own from ``min_events`` training events on, the most
active first while rows are free, and gives it back when their last one is older than ``ttl_days``
before the newest of all; the next build may give it to another. ``hashed``: users from
``min_events`` on share rows by a hash of their user row. ``hashed_twice``: they add up rows of two
tables, by two hashes, so that few share both.

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

from features.encoding import hashed
from features.schema import FeaturesConfig, UserIdRows

Rows = NDArray[np.int64]
OWNERS = Path("vocabularies") / "user_id_owners.npy"
FEATURE, SECOND = "id", "id_second"
SECONDS_PER_DAY = 86_400


@dataclass(frozen=True)
class UserActivity:
    """What training may see of each user."""

    counts: Rows
    """Events, [U]."""
    last_times: Rows | None
    """Unix seconds of the newest, [U]; of no meaning without events. None without times."""


class Assigned(NamedTuple):
    """Rows of every user."""

    features: dict[str, Rows]
    """Feature to row by user, each [U]; 0 is unknown."""
    cardinality: dict[str, int]
    owners: Rows
    """User row of each row of the table, [K + 1]; 0 is nobody. Empty where rows are shared."""
    counts: Mapping[str, int]
    """For the report."""


def assigned(
    settings: UserIdRows, users: UserActivity, previous: Rows | None = None
) -> Assigned | None:
    """Give users rows; None where they have none of their own."""
    if settings.rows == 0:
        return None
    if settings.kind == "admitted":
        return _admitted(settings, users, previous)
    return _shared(settings, users)


def _admitted(settings: UserIdRows, users: UserActivity, previous: Rows | None) -> Assigned:
    size, counts = settings.rows + 1, users.counts
    if previous is not None and len(previous) != size:
        raise ValueError(
            f"features.user_ids.rows = {settings.rows}, and the bundle that is continued has "
            f"{len(previous) - 1}; restore the setting, or train anew with recsys run"
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
    return Assigned(
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


def _shared(settings: UserIdRows, users: UserActivity) -> Assigned:
    known = (users.counts >= settings.min_events) & _recent(settings, users)
    known[0] = False
    people = np.arange(len(users.counts))
    names = (FEATURE,) if settings.kind == "hashed" else (FEATURE, SECOND)
    size = settings.rows // len(names)
    features = {
        name: np.where(known, 1 + (hashed(people, seed) % np.uint64(size)).astype(np.int64), 0)
        for seed, name in enumerate(names)
    }
    keys = np.stack([rows[known] for rows in features.values()], axis=1)
    _, sharers = np.unique(keys, axis=0, return_counts=True)
    alone = int(np.count_nonzero(sharers == 1))
    num_known = int(np.count_nonzero(known))
    return Assigned(
        features,
        dict.fromkeys(names, size + 1),
        np.zeros(0, np.int64),
        {
            "rows": size * len(names),
            "owned": num_known,
            "share all rows with another": num_known - alone,
            "unknown": len(people) - 1 - num_known,
        },
    )


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
    if {FEATURE, SECOND} & set(config.user_columns):
        raise ValueError(
            f"features.user_columns = {list(config.user_columns)} and features.user_ids both name "
            f"{FEATURE!r} or {SECOND!r}; rename the column in data.user_columns"
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
    if len(found.owners):
        np.save(out / OWNERS, found.owners)
    counted.update(found.counts)
    return found.cardinality
