"""Take forgotten users out of partitions that were read; the source's files stay as they are.

A partition with rows of them gets a new revision, so that a call that is killed leaves the old or
the new one. What it was checked against is noted, and a list that has not changed costs nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.forget_list import ForgetList
from features.people import NEVER, ForgottenUsers
from features.schema import CLEAN, EVENT_TIME, QUARANTINE, USER_ID
from pipelines.engine.artifacts import digest_of_json
from pipelines.engine.errors import WorkspaceBusyError
from pipelines.engine.workspace import DailyState
from pipelines.partitions.manifest import Partition, PartitionsManifest
from recsys.data.durable import PARTIAL, fsync, fsync_tree, locked


def leave_out_forgotten(
    workspace: Path, manifest: PartitionsManifest, until: ForgetList, columns: Mapping[str, str]
) -> tuple[PartitionsManifest, int]:
    """Rewrite the partitions that hold rows of forgotten users, and let them count."""
    if not until:
        return manifest, 0
    users, digest, removed = ForgottenUsers(until), digest_of_json(dict(until.moments)), 0
    state = DailyState(workspace)
    theirs = columns.get(USER_ID) or USER_ID
    for key, partition in manifest.partitions.items():
        if partition.left_out == digest:
            continue
        rewritten, gone = _rewritten(state, key, partition, users, theirs)
        manifest = manifest.with_partition(key, replace(rewritten, left_out=digest))
        if gone:
            manifest.write(workspace)
            shutil.rmtree(state.partition(key, partition.revision), ignore_errors=True)
            removed += gone
    manifest.write(workspace)
    return manifest, removed


def forget_in_partitions(workspace: Path, until: ForgetList, columns: Mapping[str, str]) -> int:
    """Take forgotten users out of a workspace's partitions; returns how many rows went."""
    state = DailyState(workspace)
    if not state.partitions_manifest.exists():
        return 0
    with locked(state.partitions_lock, wait=False) as held:
        manifest = PartitionsManifest.read(workspace)
        if not held or manifest is None:
            raise WorkspaceBusyError(
                f"another process reads partitions into {state.partitions.absolute()}; wait for it"
            )
        return leave_out_forgotten(workspace, manifest, until, columns)[1]


def _rewritten(
    state: DailyState, key: str, partition: Partition, users: ForgottenUsers, theirs: str
) -> tuple[Partition, int]:
    """Write a revision without the rows of forgotten users, where there are any."""
    folder = state.partition(key, partition.revision)
    marked = {path: _marked(path, users) for path in sorted(folder.glob(CLEAN))}
    aside = {
        path: _marked_aside(path, users, theirs)
        for path in sorted((folder / QUARANTINE).glob("*.parquet"))
    }
    gone = sum(int(np.count_nonzero(one)) for one in marked.values())
    gone_aside = sum(int(np.count_nonzero(one)) for one in aside.values())
    if not gone + gone_aside:
        return partition, 0
    final = state.partition(key, partition.revision + 1)
    partial = final.with_name(PARTIAL + final.name)
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(folder, partial)
    for path, rows in {**marked, **aside}.items():
        kept = pl.read_parquet(path, hive_partitioning=False).filter(~rows)
        copied = partial / path.relative_to(folder)
        copied.unlink()
        if kept.height:
            kept.write_parquet(copied)
    fsync_tree(partial)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    fsync(final.parent)
    rewritten = replace(partition, revision=partition.revision + 1, rows=partition.rows - gone)
    return rewritten, gone + gone_aside


def _marked(path: Path, users: ForgottenUsers) -> NDArray[np.bool_]:
    """Mark events of forgotten users that happened until then, [E]."""
    names = pl.read_parquet_schema(path)
    table = pl.read_parquet(path, columns=[n for n in (USER_ID, EVENT_TIME) if n in names])
    ids = table[USER_ID].unique()
    until = users.moments(ids)
    if (until == NEVER).all():
        return np.zeros(table.height, np.bool_)
    moments = dict(zip(ids.to_list(), until.tolist(), strict=True))
    of_rows = table[USER_ID].replace_strict(moments, return_dtype=pl.Int64).to_numpy()
    gone: NDArray[np.bool_] = of_rows != NEVER
    if EVENT_TIME in names:
        gone &= table[EVENT_TIME].dt.epoch("ms").fill_null(0).to_numpy() <= of_rows
    return gone


def _marked_aside(path: Path, users: ForgottenUsers, theirs: str) -> NDArray[np.bool_]:
    """Mark quarantined rows of forgotten users, at any time, [E]."""
    raw = pl.read_parquet(path, columns=["raw"])["raw"].to_list()
    ids = [str(json.loads(row).get(theirs)) for row in raw]
    gone: NDArray[np.bool_] = users.moments(pl.Series(ids, dtype=pl.String)) != NEVER
    return gone
