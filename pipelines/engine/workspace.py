"""The folder of one run: a directory for each stage, one lock, checkpoints, and the ledger.

<workspace>/
    lock                        locked; names the pid of the run that works here
    locks/<stage>               locked while a stage that runs by itself is made or read
    config.toml                 the resolved configuration of the latest run
    <stage>/                    an artefact: manifest.json, run.json and the stage's files
    checkpoints/<stage>-<key>/  training states, kept until the stage's artefact is complete
    ledger.jsonl                one line for each look at a test split

and of a shop that is updated every day, for ingest, update, monitor, parity, status, gc and forget

    partitions/                 clean events of each day, with their manifest
    online_events/              export of the online store
    monitoring/                 days that were watched, the latest one in words, the page
    parity/                     served lists recomputed
    released/<version>/         artefacts that a released bundle was made from
    update/                     workspace of increments
    forgotten.json              users who are left out of every preparation
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import MANIFEST, Manifest, check_files, digest_of_json, plain, sweep
from pipelines.engine.errors import WorkspaceBusyError
from recsys.data.durable import append_line, locked, shared

RELEASED = "released"
"""Folder of the artefacts of released bundles."""
UPDATE = "update"
"""Folder of increments."""
LOCK = ".publish.lock"
"""Held by a process that writes bundles, moves ``current`` or removes bundles."""
PATIENCE_SECONDS = 60.0
"""A publisher is done in seconds. One that is not hangs, and who waits for it would hang too."""
SCHEMA = 1
"""Version of the layout and of the documents in it that have a ``format``."""


def check_writable(folder: Path, what: str, setting: str) -> None:
    """Make a folder and prove that a file can be made in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe-") as probe:
            probe.write(b"0")
            probe.flush()
    except OSError as error:
        raise ValueError(
            f"cannot write to {what} {folder.absolute()}: {error.strerror}. Give yourself write "
            f"permission there, or choose another folder with {setting}"
        ) from error


@contextmanager
def named_in(lock: Path) -> Iterator[None]:
    """Write into a lock file that is held which process holds it."""
    started = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    # Those who make room on a full disk hold locks too.
    with suppress(OSError):
        lock.write_text(f"process {os.getpid()}, started {started}", encoding="utf-8")
    try:
        yield
    finally:
        with suppress(OSError):
            lock.write_text("")


def read_holder(lock: Path) -> str:
    """Read which process holds a lock file; empty where it names none, or one that has ended."""
    text = lock.read_text(encoding="utf-8").strip() if lock.exists() else ""
    with suppress(ValueError, PermissionError):
        try:
            os.kill(int(text.partition(",")[0].removeprefix("process ")), 0)
        except ProcessLookupError:
            return ""
    return text


@dataclass(frozen=True)
class Workspace:
    """Folder of one run's artefacts."""

    path: Path

    def stage(self, name: str) -> Path:
        return self.path / name

    def checkpoints(self, stage: str, making: str) -> Path:
        """Return the folder of the states that a stage made from ``making`` resumes from."""
        return self.path / "checkpoints" / f"{stage}-{making[:16]}"

    def manifest(self, stage: str) -> Manifest | None:
        """Read a stage's manifest; None unless the artefact and all of its files are there."""
        manifest = Manifest.load(self.stage(stage))
        with suppress(ValueError):
            if manifest is not None:
                check_files(self.stage(stage), manifest)
                return manifest
        return None

    def check_format(self) -> None:
        """Refuse a folder whose stages were written by another version."""
        for path in sorted(self.path.glob(f"*/{MANIFEST}")):
            found = None
            with suppress(ValueError):
                found = Manifest.read(path.parent)
            if found is not None and found.stage == path.parent.name:
                found.check_format(path.parent)

    def check_writable(self) -> None:
        """Make the folder and prove that a file can be made in it."""
        check_writable(
            self.path, "the workspace", "--set workspace=FOLDER (in the TOML file: workspace)"
        )

    @contextmanager
    def lock(self) -> Iterator[list[str]]:
        """Hold the workspace for one run; clears what a killed run left.

        The kernel drops the lock with the process, so a killed run never leaves it locked.
        """
        self.check_writable()
        self.check_format()
        path = self.path / "lock"
        with locked(path, wait=False) as held:
            if not held:
                raise self._busy()
            with named_in(path):
                yield sweep(self.path)

    def _busy(self) -> WorkspaceBusyError:
        holder = read_holder(self.path / "lock") or self.stages_made()
        return WorkspaceBusyError(
            f"workspace {self.path.absolute()} is in use by {holder or 'an unknown process'}. Wait "
            "for that run to end, or give this one a folder of its own with --set workspace=FOLDER"
        )

    def stages_made(self) -> str:
        """List the stages that are made by themselves, with the process of each."""
        locks = sorted((self.path / "locks").glob("*"))
        held = ((path.name, read_holder(path)) for path in locks)
        return "; ".join(f"stage {name}, {holder}" for name, holder in held if holder)

    @contextmanager
    def shared_lock(self) -> Iterator[None]:
        """Hold the workspace together with others that run single stages."""
        self.check_writable()
        self.check_format()
        with shared(self.path / "lock") as held:
            if not held:
                raise self._busy()
            (self.path / "locks").mkdir(exist_ok=True)
            yield

    @contextmanager
    def reading(self, stages: Sequence[str], reader: str) -> Iterator[None]:
        """Hold artefacts as they are while a stage reads them."""
        with ExitStack() as stack:
            for name in stages:
                path = self.path / "locks" / name
                if not stack.enter_context(shared(path)):
                    raise WorkspaceBusyError(
                        f"stage {reader} reads the artefact of {name}, which is being made by "
                        f"{read_holder(path) or 'another process'}. Run it when that has "
                        "ended"
                    )
            yield

    @contextmanager
    def making(self, stage: str) -> Iterator[None]:
        """Hold a stage's artefact alone while it is made; clears what a killed one left."""
        path = self.path / "locks" / stage
        with locked(path, wait=False) as held:
            if not held:
                holder = read_holder(path)
                why = f"made by {holder}" if holder else f"read by {self.stages_made() or 'others'}"
                raise WorkspaceBusyError(
                    f"stage {stage} in {self.path.absolute()} is being {why}. Run it when that has "
                    "ended"
                )
            with named_in(path):
                sweep(self.path, stage)
                yield

    def keep_only_checkpoints(self, stage: str, making: str | None) -> None:
        """Delete a stage's training states but those of ``making``."""
        keep = None if making is None else self.checkpoints(stage, making)
        for folder in (self.path / "checkpoints").glob(f"{stage}-*"):
            if folder != keep:
                shutil.rmtree(folder)

    def append_to_ledger(self, entry: Mapping[str, Any]) -> None:
        """Record a look at a test split as one JSON line, durably."""
        append_line(self.path / "ledger.jsonl", json.dumps(entry, sort_keys=True))

    def ledger(self) -> list[dict[str, Any]]:
        """Read every look at a test split, oldest first; a torn line counts as {"torn": text}."""
        path, entries = self.path / "ledger.jsonl", []
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for line in filter(None, text.splitlines()):
            try:
                entries.append(json.loads(line))
            except json.JSONDecodeError:
                entries.append({"torn": line})
        return entries


def bundles_dir(config: RunConfig) -> Path:
    """Return the folder of the bundles and of ``current``."""
    return config.release.bundles or config.workspace / "bundles"


def digest_of_config(config: RunConfig) -> str:
    """Hash what shapes the bundle: everything but the places of files and of tracked runs."""
    table: dict[str, Any] = plain(config)
    table.pop("workspace")
    table.pop("tracking")
    for where in config.raw_file_keys():
        section, _, key = where.partition(".")
        table[section].pop(key, None)
    return digest_of_json(table)


@contextmanager
def publishing(bundles: Path) -> Iterator[None]:
    """Hold the folder of bundles."""
    path = bundles / LOCK
    with locked(path, wait=PATIENCE_SECONDS) as held:
        if not held:
            raise WorkspaceBusyError(
                f"the folder of bundles {bundles.absolute()} is in use by "
                f"{read_holder(path) or 'an unknown process'}, for more than "
                f"{PATIENCE_SECONDS:.0f} s. Nothing was published; run this command when that "
                "process has ended"
            )
        with named_in(path):
            yield


class DailyState:
    """Daily state of one shop, also where the workspace of its increments is given."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = shop = workspace.parent if workspace.name == UPDATE else workspace
        self.partitions = shop / "partitions"
        self.partitions_manifest = self.partitions / "partitions.json"
        self.partitions_lock = self.partitions / ".lock"
        self.days = self.partitions / "days"
        self.online_events = shop / "online_events"
        """Exported events and lists of the online store."""
        self.monitoring = shop / "monitoring"
        self.monitor = self.monitoring / "monitor.json"
        """Document of the latest day that was watched."""
        self.monitor_page = self.monitoring / "monitor.html"
        self.signals = self.monitoring / "days.parquet"
        """Table of every signal of every day."""
        self.watched = self.monitoring / "state.json"
        """Digests of the days that were watched."""
        self.parity = shop / "parity" / "parity.json"
        """Document of the latest parity check."""
        self.released = shop / RELEASED
        self.update = shop / UPDATE
        self.forgotten = shop / "forgotten.json"
        """Forgotten users, unless ``data.forgotten`` names another list."""

    def partition(self, key: str, revision: int) -> Path:
        """Return the folder of a version of a partition."""
        return self.days / f"{key}~{revision}"
