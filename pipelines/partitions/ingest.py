"""Read the partitions that are new or have changed; each is clean, or set aside with a reason.

What has arrived is never lost: a partition that the source no longer lists goes on counting, and a
corrected version that cannot be used leaves the earlier one in place. A call that is killed has
ingested the partitions that the manifest names; the next one goes on behind them.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from features.partition import PartitionReport
from features.schema import FilterConfig
from pipelines.config.run import DataConfig, RunConfig
from pipelines.engine.errors import WorkspaceBusyError
from pipelines.engine.forgotten import forgotten_users
from pipelines.partitions.forget import leave_out_forgotten
from pipelines.partitions.manifest import (
    DAYS,
    FOLDER,
    LOCK,
    Partition,
    PartitionsManifest,
    SetAside,
    folder_of,
)
from pipelines.partitions.reading import Reader, ReadingFailedError, Request
from pipelines.partitions.source import Source, SourceFile, begin_of, end_of
from recsys.data.durable import PARTIAL, fsync, fsync_tree, locked

NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS)
"""Errors of this machine's disk, not of the store that a file is fetched from."""
Say = Callable[[str], None]


@dataclass(kw_only=True)
class IngestReport:
    """What a call found; partitions by key."""

    new: list[str] = field(default_factory=list)
    corrected: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    """New ones that came behind a later partition."""
    behind_watermark: list[str] = field(default_factory=list)
    """Late or corrected ones so old that nobody waited for them."""
    missing: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    """Those that the source no longer lists."""
    set_aside: dict[str, str] = field(default_factory=dict)
    """Reasons."""
    schema_changes: dict[str, str] = field(default_factory=dict)
    unchanged: int = 0
    rows: int = 0
    """Events of new and corrected partitions."""
    quarantined: int = 0
    forgotten: int = 0
    """Rows of forgotten users that were left out, of partitions old and new."""

    @property
    def changed(self) -> bool:
        """Whether other events count than before."""
        return bool(self.new or self.corrected or self.forgotten)

    def notes(self) -> list[str]:
        """Say in words what is not as usual."""
        lines = [f"{key} came late" for key in self.late]
        lines += [f"{key} was corrected" for key in self.corrected]
        lines += [f"{key} is older than the watermark; counted" for key in self.behind_watermark]
        lines += [f"{key} is missing" for key in self.missing]
        lines += [f"{key} is gone from the source; its events go on counting" for key in self.gone]
        lines += [f"{key} was set aside: {reason}" for key, reason in self.set_aside.items()]
        if self.quarantined:
            lines.append(f"{self.quarantined:,} rows were quarantined")
        if self.forgotten:
            lines.append(f"{self.forgotten:,} rows of forgotten users were left out")
        return lines

    def log_line(self) -> str:
        """Sum it up."""
        return (
            f"{len(self.new)} new, {len(self.corrected)} corrected, {self.unchanged} unchanged "
            f"partitions; {self.rows:,} events read"
        )


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """What reading a partition needs."""

    data: DataConfig
    filters: FilterConfig
    workspace: Path
    source: Source
    now: datetime
    accepted: Collection[str]
    until: str | None
    reader: Reader


def ingest(
    config: RunConfig,
    say: Say = lambda _line: None,
    *,
    dry: bool = False,
    accepted: Collection[str] = (),
    until: str | None = None,
) -> IngestReport:
    """Read what has changed since the last call."""
    data = config.data
    if data.partitions is None:
        raise ValueError(
            'no partitions: set data.partitions = "events/" (a folder, a glob or an address such '
            "as s3://shop/events) in the [data] table"
        )
    source = Source(data.partitions)
    listed = {key: files for key, files in source.partitions().items() if not _is_later(key, until)}
    if len({"T" in key for key in listed}) > 1:
        raise ValueError(
            f"data.partitions = {data.partitions!r} has partitions of days ({min(listed, key=len)})"
            f" and of hours ({max(listed, key=len)}); name a place with one of them"
        )
    with Reader() as reader:
        reading = _Reading(
            data=data,
            filters=config.filters,
            workspace=config.workspace,
            source=source,
            now=datetime.now(UTC),
            accepted=accepted,
            until=until,
            reader=reader,
        )
        forgotten = forgotten_users(config)
        with _manifest_of(reading) as manifest:
            manifest, report = _read_changed(reading, manifest, listed, say, dry=dry)
            if not dry:
                _, report.forgotten = leave_out_forgotten(
                    config.workspace, manifest, forgotten, data.columns
                )
            return report


def _is_later(key: str, until: str | None) -> bool:
    """Say whether a partition is of a later day; the hours of a day are not later than it."""
    return until is not None and key[: len(until)] > until


@contextmanager
def _manifest_of(reading: _Reading) -> Iterator[PartitionsManifest]:
    folder = reading.workspace / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, wait=False) as held:
        if not held:
            raise WorkspaceBusyError(
                f"another process reads partitions into {folder.absolute()}; wait for it"
            )
        manifest = PartitionsManifest.read(reading.workspace)
        if manifest is None:
            manifest = PartitionsManifest(source="", watermark_days=0)
        # The source may have moved; what was read stays.
        place, days = reading.source.place, reading.data.watermark_days
        manifest = replace(manifest, source=place, watermark_days=days)
        _sweep(folder / DAYS, reading.workspace, manifest)
        yield manifest


def _sweep(days: Path, workspace: Path, manifest: PartitionsManifest) -> None:
    """Remove what a killed call left, and versions that no longer count."""
    counted = {folder_of(workspace, key, one.revision) for key, one in manifest.partitions.items()}
    for path in sorted(days.glob("*")) if days.is_dir() else ():
        if path not in counted:
            shutil.rmtree(path)


def _read_changed(
    reading: _Reading,
    manifest: PartitionsManifest,
    listed: Mapping[str, tuple[SourceFile, ...]],
    say: Say,
    *,
    dry: bool,
) -> tuple[PartitionsManifest, IngestReport]:
    report = IngestReport()
    for key, files in listed.items():
        before, aside = manifest.partitions.get(key), manifest.set_aside.get(key)
        if before is not None and before.files == files:
            report.unchanged += 1
            if before.gone:
                manifest = manifest.with_partition(key, replace(before, gone=False))
            continue
        if aside is not None and aside.files == files and key not in reading.accepted:
            report.set_aside[key] = aside.reason
            if aside.schema_changed:
                report.schema_changes[key] = aside.reason
            continue
        if dry:
            (report.corrected if before else report.new).append(key)
            continue
        read = _leave if begin_of(key) > reading.now + timedelta(days=1) else _read_one
        manifest = read(reading, manifest, key, files, report)
        manifest.write(reading.workspace)
        say(f"{key}: {_outcome(manifest, key, report)}")
    for key, partition in manifest.partitions.items():
        if key not in listed and not _is_later(key, reading.until):
            report.gone.append(key)
            manifest = manifest.with_partition(key, replace(partition, gone=True))
    report.missing = [key for key in manifest.missing if manifest.is_behind_watermark(key)]
    if not dry:
        manifest.write(reading.workspace)
    return manifest, report


def _outcome(manifest: PartitionsManifest, key: str, report: IngestReport) -> str:
    if key in report.set_aside:
        return f"set aside: {report.set_aside[key]}"
    if key not in (*report.new, *report.corrected):
        return "its files were written anew and hold the same"
    one = manifest.partitions[key]
    bad = sum(one.quarantined.values())
    return f"{one.rows:,} events" + (f", {bad:,} rows quarantined" if bad else "")


def _leave(
    reading: _Reading,
    manifest: PartitionsManifest,
    key: str,
    _files: tuple[SourceFile, ...],
    report: IngestReport,
) -> PartitionsManifest:
    """Set a partition of a day to come aside until the clock, which may be wrong, says that day."""
    since = reading.now.isoformat(timespec="seconds")
    report.set_aside[key] = f"it is of a day to come, by this machine's clock ({since})"
    return manifest.with_set_aside(
        key, SetAside(files=(), reason=report.set_aside[key], since=since)
    )


def _read_one(
    reading: _Reading,
    manifest: PartitionsManifest,
    key: str,
    files: tuple[SourceFile, ...],
    report: IngestReport,
) -> PartitionsManifest:
    before = manifest.partitions.get(key)
    revision = before.revision + 1 if before else 1
    final = folder_of(reading.workspace, key, revision)
    partial = final.with_name(PARTIAL + final.name)
    since = reading.now.isoformat(timespec="seconds")

    def aside(
        reason: str, *, schema_changed: bool = False, retried: bool = False
    ) -> PartitionsManifest:
        report.set_aside[key] = reason
        if schema_changed:
            report.schema_changes[key] = reason
        seen = () if retried else files
        return manifest.with_set_aside(
            key, SetAside(files=seen, reason=reason, since=since, schema_changed=schema_changed)
        )

    reading.reader.start()
    try:
        raw = [
            partial / "raw" / f"{place:03d}-{file.path.rpartition('/')[2]}"
            for place, file in enumerate(files)
        ]
        try:
            digests = tuple(
                reading.source.fetch(file, to) for file, to in zip(files, raw, strict=True)
            )
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and (error.filename or error.errno in NO_ROOM):
                raise
            return aside(f"cannot be fetched: {error}", retried=True)
        if before is not None and sorted(before.digests) == sorted(digests):
            report.unchanged += 1
            return manifest.with_partition(key, replace(before, files=files, gone=False))
        if (twin := _twin_of(manifest, key, digests)) is not None:
            return aside(f"it holds the same files as {twin}")
        try:
            reply = reading.reader.read(_request(reading, manifest, key, raw, partial / "clean"))
        except ReadingFailedError as error:
            return aside(f"{error}; {_after_death(error)}", retried=error.may_pass)
        if reply.changes:
            changes = reply.changes.replace(f"{raw[0].parent}/", "")
            return aside(f"its columns changed: {changes}", schema_changed=True)
        if (found := reply.report) is None:
            return aside(reply.refused.replace(f"{raw[0].parent}/", ""))
        shutil.rmtree(partial / "raw")
        fsync_tree(partial / "clean")
        (partial / "clean").rename(final)
        fsync(final.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return _counted(manifest, key, files, digests, found, report, since)


def _counted(
    manifest: PartitionsManifest,
    key: str,
    files: tuple[SourceFile, ...],
    digests: tuple[str, ...],
    found: PartitionReport,
    report: IngestReport,
    arrived: str,
) -> PartitionsManifest:
    before, newest = manifest.partitions.get(key), manifest.newest
    late = before is None and newest is not None and key < newest
    (report.new if before is None else report.corrected).append(key)
    if late:
        report.late.append(key)
    if (late or before) and manifest.is_behind_watermark(key):
        report.behind_watermark.append(key)
    report.rows += found.rows
    report.quarantined += sum(found.quarantined.values())
    partition = Partition(
        files=files,
        digests=digests,
        revision=before.revision + 1 if before else 1,
        rows=found.rows,
        quarantined=dict(found.quarantined),
        first_time=found.first_time,
        last_time=found.last_time,
        columns=found.columns,
        arrived=arrived,
        late=late or (before is not None and before.late),
    )
    return manifest.with_partition(key, partition)


def _twin_of(manifest: PartitionsManifest, key: str, digests: tuple[str, ...]) -> str | None:
    """Find another partition of the same contents."""
    mine = sorted(digests)
    twins = (
        one
        for one, partition in manifest.partitions.items()
        if one != key and partition.rows and sorted(partition.digests) == mine
    )
    return next(twins, None)


def _request(
    reading: _Reading, manifest: PartitionsManifest, key: str, raw: list[Path], out: Path
) -> Request:
    """Describe how a partition is read; its columns are held against those of the latest one."""
    others = {one: value for one, value in manifest.partitions.items() if one != key and value.rows}
    is_free = not others or key in reading.accepted
    return Request(
        source=reading.data.source(tuple(raw), reading.data.columns),
        filters=reading.filters,
        out=out,
        now=reading.now,
        end=None if reading.data.time_zone != "UTC" else end_of(key),
        before=None if is_free else others[max(others)].columns,
    )


def _after_death(error: ReadingFailedError) -> str:
    if error.may_pass:
        return "tried at each call; give the machine more memory if it goes on"
    return "one of its files is corrupt in a way that its reader does not survive; write it again"
