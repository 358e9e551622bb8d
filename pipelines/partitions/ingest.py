"""Read the partitions that are new or have changed; each is clean, or set aside with a reason.

Arrived events are never lost: a partition that the source no longer lists still counts, and a
corrected version that cannot be used leaves the earlier one in place. A call that is killed has
ingested the partitions that the manifest names; the next one continues after them.
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
from features.partition_process import PartitionReader, ReadingFailedError, ReadRequest
from pipelines.config.run import RunConfig
from pipelines.engine.errors import WorkspaceBusyError
from pipelines.engine.forgotten import forgotten_users
from pipelines.engine.workspace import DailyState
from pipelines.partitions.forget import leave_out_forgotten
from pipelines.partitions.manifest import (
    Partition,
    PartitionsManifest,
    SetAside,
    SourceFile,
    parse_begin,
    parse_end,
)
from pipelines.partitions.source import Source, open_source
from recsys.data.durable import PARTIAL, fsync, fsync_tree, locked

NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS)
"""Errors of this machine's disk, not of the store that a file is fetched from."""
Files = tuple[SourceFile, ...]
Say = Callable[[str], None]


@dataclass(kw_only=True)
class IngestReport:
    """Outcome of a call; partitions by key."""

    new: list[str] = field(default_factory=list)
    corrected: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    """New ones that came after a later partition."""
    missing: list[str] = field(default_factory=list)
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
        """True if other events count than before."""
        return bool(self.new or self.corrected or self.forgotten)

    def notes(self) -> list[str]:
        """Describe unusual findings."""
        lines = [f"{key} came late" for key in self.late]
        lines += [f"{key} was corrected" for key in self.corrected]
        lines += [f"{key} is missing" for key in self.missing]
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


def ingest(
    config: RunConfig,
    say: Say = lambda _line: None,
    *,
    accepted: Collection[str] = (),
    until: str | None = None,
) -> IngestReport:
    """Read the changes since the last call.

    Columns of the partitions in ``accepted`` may differ from those before. Days later than
    ``until``, such as 2026-11-22, are left as they are.
    """
    data = config.data
    if data.partitions is None:
        raise ValueError(
            'no partitions: set data.partitions = "events/" (a folder, a glob or an address such '
            "as s3://shop/events) in the [data] table"
        )
    source = open_source(data)
    listed = {
        key: files for key, files in source.partitions().items() if until is None or key <= until
    }
    with PartitionReader() as reader:
        forgotten = forgotten_users(config)
        with locked_manifest(config, source) as manifest:
            call = Ingest(config, source, reader, manifest, accepted)
            call.read_changed(listed, say)
            _, call.report.forgotten = leave_out_forgotten(
                config.workspace, call.manifest, forgotten, data.columns
            )
            return call.report


@contextmanager
def locked_manifest(config: RunConfig, source: Source) -> Iterator[PartitionsManifest]:
    """Hold the partitions' folder, remove what no longer counts, and read the manifest."""
    state = DailyState(config.workspace)
    state.partitions.mkdir(parents=True, exist_ok=True)
    with locked(state.partitions_lock, wait=False) as held:
        if not held:
            raise WorkspaceBusyError(
                f"another process reads partitions into {state.partitions.absolute()}; wait for it"
            )
        manifest = PartitionsManifest.read(config.workspace) or PartitionsManifest(source="")
        # The source may have moved; its partitions stay.
        manifest = replace(manifest, source=source.place)
        counted = {state.partition(key, one.revision) for key, one in manifest.partitions.items()}
        # Left by a killed call, or an earlier version.
        for path in state.days.glob("*"):
            if path not in counted:
                shutil.rmtree(path)
        yield manifest


class Ingest:
    """One call: the manifest as it grows, and the report."""

    def __init__(
        self,
        config: RunConfig,
        source: Source,
        reader: PartitionReader,
        manifest: PartitionsManifest,
        accepted: Collection[str],
    ) -> None:
        self.config, self.source, self.reader = config, source, reader
        self.manifest, self.accepted = manifest, accepted
        self.now, self.report = datetime.now(UTC), IngestReport()

    def read_changed(self, listed: Mapping[str, Files], say: Say) -> None:
        """Read each partition that is new or has changed, and write the manifest after each."""
        report = self.report
        for key, files in listed.items():
            before, aside = self.manifest.partitions.get(key), self.manifest.set_aside.get(key)
            if before is not None and before.files == files:
                report.unchanged += 1
            elif aside is not None and aside.files == files and key not in self.accepted:
                report.set_aside[key] = aside.reason
                if aside.schema_changed:
                    report.schema_changes[key] = aside.reason
            else:
                self._read(key, files)
                self.manifest.write(self.config.workspace)
                reason = report.set_aside.get(key)
                say(f"{key}: read" if reason is None else f"{key}: set aside: {reason}")
        missing = self.manifest.missing
        report.missing = [key for key in missing if self.manifest.is_behind_watermark(key)]
        self.manifest.write(self.config.workspace)

    @property
    def _since(self) -> str:
        return self.now.isoformat(timespec="seconds")

    def _set_aside(
        self, key: str, files: Files, reason: str, *, schema_changed: bool = False
    ) -> None:
        """Set a version of a partition aside; one without files is tried at each call."""
        self.report.set_aside[key] = reason
        if schema_changed:
            self.report.schema_changes[key] = reason
        aside = SetAside(
            files=files, reason=reason, since=self._since, schema_changed=schema_changed
        )
        self.manifest = replace(self.manifest, set_aside={**self.manifest.set_aside, key: aside})

    def _read(self, key: str, files: Files) -> None:
        if parse_begin(key) > self.now + timedelta(days=1):
            # The clock may be wrong, so it is tried again.
            reason = f"it is of a day to come, by this machine's clock ({self._since})"
            self._set_aside(key, (), reason)
            return
        before = self.manifest.partitions.get(key)
        revision = before.revision + 1 if before else 1
        final = DailyState(self.config.workspace).partition(key, revision)
        partial = final.with_name(PARTIAL + final.name)
        self.reader.start()
        try:
            found = self._cleaned(key, files, partial)
            if found is None:
                return
            digests, report = found
            shutil.rmtree(partial / "raw")
            fsync_tree(partial / "clean")
            (partial / "clean").rename(final)
            fsync(final.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        self._count(key, files, digests, report)

    def _cleaned(
        self, key: str, files: Files, partial: Path
    ) -> tuple[tuple[str, ...], PartitionReport] | None:
        """Fetch and clean a partition; None if nothing new came of it."""
        names = [file.path.rpartition("/")[2] for file in files]
        raw = [partial / "raw" / f"{place:03d}-{name}" for place, name in enumerate(names)]
        try:
            digests = tuple(
                self.source.fetch(file, to) for file, to in zip(files, raw, strict=True)
            )
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and (error.filename or error.errno in NO_ROOM):
                raise
            self._set_aside(key, (), f"cannot be fetched: {error}")
            return None
        before, mine = self.manifest.partitions.get(key), sorted(digests)
        if before is not None and sorted(before.digests) == mine:
            self.report.unchanged += 1
            self.manifest = self.manifest.with_partition(key, replace(before, files=files))
            return None
        try:
            reply = self.reader.read(self._request(key, raw, partial / "clean"))
        except ReadingFailedError as error:
            advice = "tried at each call; if it stays so, write its files again or add memory"
            self._set_aside(key, (), f"{error}; {advice}")
            return None
        if reply.report is not None:
            return digests, reply.report
        reason = (reply.changes or reply.refused).replace(f"{raw[0].parent}/", "")
        if reply.changes:
            reason = f"its columns changed: {reason}"
        self._set_aside(key, files, reason, schema_changed=bool(reply.changes))
        return None

    def _request(self, key: str, raw: list[Path], out: Path) -> ReadRequest:
        """Describe how a partition is read; its columns are compared with the latest one's."""
        partitions, data = self.manifest.partitions, self.config.data
        others = [one for one, part in partitions.items() if one != key and part.rows]
        is_free = not others or key in self.accepted
        return ReadRequest(
            source=data.source(tuple(raw), data.columns),
            filters=self.config.filters,
            out=out,
            now=self.now,
            end=None if data.time_zone != "UTC" else parse_end(key),
            before=None if is_free else dict(partitions[max(others)].columns),
        )

    def _count(
        self, key: str, files: Files, digests: tuple[str, ...], found: PartitionReport
    ) -> None:
        """Add a partition that was read to the manifest."""
        report, newest = self.report, self.manifest.newest
        before = self.manifest.partitions.get(key)
        (report.new if before is None else report.corrected).append(key)
        if before is None and newest is not None and key < newest:
            report.late.append(key)
        report.rows += found.rows
        report.quarantined += sum(found.quarantined.values())
        partition = Partition(
            files=files,
            digests=digests,
            revision=before.revision + 1 if before else 1,
            arrived=self._since,
            **{**vars(found), "quarantined": dict(found.quarantined)},
        )
        self.manifest = self.manifest.with_partition(key, partition)
