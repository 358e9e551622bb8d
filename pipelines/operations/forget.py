"""Forget users everywhere that a run can reach, and say which files still hold them.

The online store, exports and partitions lose their rows, and a list keeps them out of every later
preparation. Raw files belong to their owner and are named with their rows. Artefacts and bundles
are named: the next run makes others, and a published bundle is never rewritten.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from features.encoding import read_vocabulary
from features.forget_list import ForgetList, UserKeys
from features.people import count_rows
from features.reading.databases import is_address
from features.schema import USER_ID, SourceConfig
from pipelines.config.run import RunConfig
from pipelines.engine.forgotten import add_to_list, list_path, read_list
from pipelines.engine.workspace import DailyState, bundles_dir
from pipelines.inputs.exported import EXPORTED, RECORDS, REQUESTS, exporting
from pipelines.inputs.online_events import find_store, forget_in_store
from pipelines.inputs.snapshots import snapshots
from pipelines.partitions.forget import forget_in_partitions
from pipelines.partitions.source import PartitionSource
from recsys.data.string_table import StringTable

FEATURES = "build_features"
ANSWERS = "answers-*.parquet"
NEXT_RUN = "the next recsys run makes it without them"
COLLECTED = "stays until recsys gc, or you, delete it"
RAW = "left out of every run; delete the rows yourself (docs/erase-a-user.md)"
PUBLIC = "not looked into: it is fetched as others published it; left out of every run"
FAR = "not looked into: it is not on this machine; left out of every run"


@dataclass(frozen=True, kw_only=True)
class HeldRows:
    """A place that still holds somebody."""

    path: str
    rows: int | None = None
    note: str = ""


@dataclass(kw_only=True)
class ForgetReport:
    """Removed rows, and places that still hold users."""

    removed: dict[str, int] = field(default_factory=dict)
    """Rows by where they were."""
    held: list[HeldRows] = field(default_factory=list)
    list_path: str = ""
    store: str | None = None
    """Address of the online store that forgot them; None where there is none."""


def forget_users(
    config: RunConfig, user_ids: Sequence[str], now_ms: int, *, store: str | None = None
) -> ForgetReport:
    """Forget users.

    Args:
        now_ms: Unix milliseconds: what happens later is of new users.
        store: Address of the online store; by default that of ``data.online_events``, else the
            folder ``online`` next to the bundles.
    """
    report, path = ForgetReport(), list_path(config)
    # The list first: whatever fails after it, no later run has them.
    report.list_path = str(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    until = ForgetList.of(user_ids, now_ms, UserKeys.make(path.parent))
    add_to_list(path, until)
    report.store = store or find_store(config)
    if report.store is not None:
        report.removed |= forget_in_store(report.store, user_ids, now_ms)
    for folder in _exports(config):
        with exporting(folder) as exported:
            report.removed[str(folder)] = exported.forget(folder, exported.forgotten | until)
            exported.write(folder)
    everyone = read_list(path)
    rows = forget_in_partitions(config.workspace, everyone, config.data.columns)
    if rows:
        report.removed["partitions of the workspace"] = rows
    shutil.rmtree(snapshots(config), ignore_errors=True)
    for raw, source in _raw_files(config, report):
        if found := count_rows(raw, source, user_ids):
            report.held.append(HeldRows(path=str(raw), rows=found, note=RAW))
    report.held += _artefacts(config, user_ids)
    return report


def _exports(config: RunConfig) -> Iterator[Path]:
    """List folders of recsys data export that belong to a run."""
    places = [DailyState(config.workspace).online_events, config.monitoring.served]
    online = config.data.online_events
    if online is not None and online != find_store(config):
        places.append(Path(online))
    for place in dict.fromkeys(one.absolute() for one in places if one is not None):
        for folder in (place, place / REQUESTS, place / RECORDS):
            if (folder / EXPORTED).exists():
                yield folder


def _raw_files(config: RunConfig, report: ForgetReport) -> Iterator[tuple[Path, SourceConfig]]:
    """List raw files with users on this machine; report those that are elsewhere."""
    data = config.data
    if data.partitions is not None:
        if is_address(data.partitions):
            report.held.append(HeldRows(path=data.partitions, note=FAR))
        else:
            listed = PartitionSource(data.partitions).partitions().values()
            for path in (Path(file.path) for files in listed for file in files):
                yield path, data.source((path,), data.columns)
    if data.dataset is not None:
        report.held.append(HeldRows(path=f"data set {data.dataset}", note=PUBLIC))
        return
    tables = data.tables()
    for place in filter(is_address, (*tables["events"], *tables["users"])):
        report.held.append(HeldRows(path=str(place), note=FAR))
    ours = {DailyState(config.workspace).partitions, snapshots(config)}
    for path in data.event_paths():
        if ours.isdisjoint(path.parents):
            yield path, data.source((path,), data.columns)
    if isinstance(data.users, Path) and data.users.parent not in ours:
        yield data.users, data.source((data.users,), data.user_columns)


def _artefacts(config: RunConfig, user_ids: Sequence[str]) -> Iterator[HeldRows]:
    """Find artefacts, kept releases and bundles that hold them."""
    workspace = config.workspace
    if _in_vocabulary(workspace / FEATURES, user_ids):
        yield HeldRows(path=str(workspace), note=NEXT_RUN)
    for folder in sorted(DailyState(workspace).released.glob("*")):
        if _in_vocabulary(folder / FEATURES, user_ids):
            yield HeldRows(path=str(folder), note=COLLECTED)
    for bundle in sorted(bundles_dir(config).glob("bundle-*")):
        if (bundle / "users").is_dir():
            known = StringTable.open(bundle / "users", "user_ids")
            if any(known.row_of(one) for one in user_ids):
                yield HeldRows(path=str(bundle), note=COLLECTED)
    for answers in sorted(bundles_dir(config).glob(ANSWERS)):
        table = pl.scan_parquet(answers).filter(pl.col(USER_ID).is_in(list(user_ids)))
        if rows := int(table.select(pl.len()).collect().item()):
            yield HeldRows(path=str(answers), rows=rows, note=COLLECTED)


def _in_vocabulary(features: Path, user_ids: Sequence[str]) -> bool:
    path = features / "vocabularies" / "users.parquet"
    return path.exists() and bool(read_vocabulary(path).is_in(list(user_ids)).any())
