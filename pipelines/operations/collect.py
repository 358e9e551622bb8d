"""Remove old bundles, adapters, training states and sent records that nothing uses.

Nothing is removed that a link, a delta or a process uses. A folder is renamed before it is deleted,
so a kill leaves it whole or gone; the next call deletes the rest. Links are never followed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pipelines.engine.artifacts import Manifest
from pipelines.engine.decisions import CHALLENGER, read_challenger
from pipelines.engine.errors import WorkspaceBusyError
from pipelines.engine.workspace import DailyState, Workspace, publishing
from pipelines.operations.state import parents, served_until
from pipelines.publishing.promotion import champions
from pipelines.publishing.released import Released
from pipelines.publishing.same_queries import answers_file
from recsys.data.durable import PARTIAL, unused
from serving.bundle.manifest import MANIFEST, bundle_directory
from serving.bundle.published import ADAPTER_MANIFEST, ADAPTERS

BUNDLE = "bundle-"
ADAPTER = "adapter-"


class Keep(NamedTuple):
    """Until when and how many bundles are kept beyond those in use."""

    since: datetime
    """Bundles released or served then or later are kept."""
    newest: int
    """Number of the newest bundles that are kept at any age."""


def versions_in(bundles: Path) -> dict[str, datetime]:
    """List the versions in a folder of bundles with the time each was written, oldest first."""
    found = {}
    for path in bundles.glob(f"{BUNDLE}*"):
        if path.is_dir() and not path.is_symlink():
            found[path.name.removeprefix(BUNDLE)] = written_at(path, MANIFEST)
    return dict(sorted(found.items(), key=lambda one: (one[1], one[0])))


def written_at(folder: Path, name: str) -> datetime:
    """Return when a file of a folder was written; of the folder, where the file is missing."""
    path = folder / name
    found = path if path.exists() else folder
    return datetime.fromtimestamp(found.stat().st_mtime, UTC)


def reasons_to_keep(bundles: Path, keep: Keep) -> dict[str, str]:
    """Return the reason of each version that must stay; the others may go."""
    versions = versions_in(bundles)
    why: dict[str, str] = {}

    def note(version: str | None, reason: str) -> None:
        if version in versions:
            why.setdefault(str(version), reason)

    for link, version in linked(bundles, BUNDLE).items():
        note(version, "champion" if link == "current" else f"the link {link} points at it")
    stack = champions(bundles)
    note(stack[-1] if stack else None, "champion")
    note(read_challenger(bundles), CHALLENGER)
    note(stack[-2] if len(stack) > 1 else None, "the champion before; a rollback goes back to it")
    for version, reason in recent(bundles, versions, keep):
        note(version, reason)
    for child, parent in parents(bundles, versions).items():
        if child in why:
            note(parent, f"{child} extends it")
    return {version: why[version] for version in versions if version in why}


def recent(
    bundles: Path, versions: Mapping[str, datetime], keep: Keep
) -> Iterator[tuple[str, str]]:
    """List versions that are kept for their age, with the reason."""
    for version, until in served_until(bundles).items():
        if until >= keep.since:
            yield version, f"it was champion until {until:%Y-%m-%d}"
    for version, written in versions.items():
        if written >= keep.since:
            yield version, f"released {written:%Y-%m-%d}, within the days that are kept"
    for version in list(versions)[max(0, len(versions) - keep.newest) :]:
        yield version, f"one of the newest {keep.newest}"


def linked(folder: Path, prefix: str) -> dict[str, str]:
    """List the links in a folder that point at its own versions, by name."""
    found = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_symlink():
            # A chain of links ends at the used folder.
            target = path.resolve()
            if target.parent == folder.resolve() and target.name.startswith(prefix):
                found[path.name] = target.name.removeprefix(prefix)
    return found


GARBAGE = f"{PARTIAL}removed-"


@dataclass(frozen=True)
class RemovedPath:
    """Something that was removed, or would be."""

    kind: str
    name: str
    num_bytes: int
    why: str


@dataclass(kw_only=True)
class CollectResult:
    """Result of one call."""

    removed: list[RemovedPath] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        return sum(one.num_bytes for one in self.removed)


class Collector:
    """Removes from one workspace and its folder of bundles."""

    def __init__(self, workspace: Path, bundles: Path, keep: Keep, *, dry: bool) -> None:
        """Set the places and the rules of keeping; a dry call removes nothing."""
        self.workspace, self.bundles, self.keep, self.dry = workspace, bundles, keep, dry
        self.found = CollectResult()

    def collect(self) -> CollectResult:
        """Remove unused files; WorkspaceBusyError if another command publishes."""
        if self.bundles.is_dir():
            with nullcontext() if self.dry else publishing(self.bundles):
                self._leftovers(self.bundles)
                self._bundles()
                self._adapters()
        self._workspace_parts()
        return self.found

    def _workspace_parts(self) -> None:
        """Remove what only the holder of the workspace may; leave it where somebody works there."""
        for place in (self.workspace, DailyState(self.workspace).update):
            if not place.is_dir():
                continue
            try:
                with nullcontext() if self.dry else Workspace(place).lock():
                    self._checkpoints(place)
            except WorkspaceBusyError as error:
                self.found.notes.append(f"training states were left: {error}")
        self._released()

    def _leftovers(self, folder: Path) -> None:
        """Remove what a killed call, or a publisher killed long ago, left."""
        for path in sorted(folder.glob(f"{PARTIAL}*")):
            is_old = written_at(path, ".") < self.keep.since
            if path.name.startswith(GARBAGE) or is_old:
                self._remove("leftover", path, "a killed command left it")

    def _bundles(self) -> None:
        keep = reasons_to_keep(self.bundles, self.keep)
        versions = versions_in(self.bundles)
        self.found.kept = keep
        going = [version for version in versions if version not in keep]
        # Deltas first: their release must not go before them.
        for version in sorted(going, key=lambda one: "+" not in one):
            path = bundle_directory(self.bundles, version)
            deltas = [one for one in versions if one.startswith(f"{version}+")]
            if any(one in self.found.refused for one in deltas):
                self.found.refused[version] = "a delta that a server uses extends it"
            elif self._remove("bundle", path, "not served since the days that are kept"):
                answers = answers_file(self.bundles, version)
                if answers.exists():
                    self._remove("answers", answers, f"of bundle {version}")
            else:
                self.found.refused[version] = "a server or another process uses it"

    def _adapters(self) -> None:
        for domain in sorted((self.bundles / ADAPTERS).glob("domain-*")):
            if domain.is_symlink():
                continue
            self._leftovers(domain)
            served = set(linked(domain, ADAPTER).values())
            for path in sorted(domain.glob(f"{ADAPTER}*")):
                version = path.name.removeprefix(ADAPTER)
                is_young = written_at(path, ADAPTER_MANIFEST) >= self.keep.since
                if version not in served and not is_young and path.is_dir():
                    self._remove("adapter", path, "not served, older than the days that are kept")

    def _checkpoints(self, place: Path) -> None:
        for path in sorted((place / "checkpoints").glob("*-*")):
            stage, _, key = path.name.rpartition("-")
            made = Manifest.read(place / stage)
            if made is not None and made.making.startswith(key):
                self._remove("training state", path, f"{stage} is finished")
            elif written_at(path, ".") < self.keep.since:
                self._remove("training state", path, "not continued")

    def _released(self) -> None:
        """Remove what removed bundles were made from."""
        released = DailyState(self.workspace).released
        kept = [Released.read(released / name) for name in self.found.kept]
        # A kept bundle's next increment may continue from it.
        needed = {one.full_version for one in kept if one is not None}
        gone = {one.name.removeprefix(BUNDLE) for one in self.found.removed if one.kind == "bundle"}
        for path in sorted(released.glob("[!.]*")):
            is_here = bundle_directory(self.bundles, path.name).exists()
            is_old = written_at(path, ".") < self.keep.since
            if path.name not in needed and (path.name in gone or (not is_here and is_old)):
                self._remove("what a bundle was made from", path, f"bundle {path.name} is gone")

    def _remove(self, kind: str, path: Path, why: str) -> bool:
        """Remove a file or a folder, never what a link points at; false where it is in use."""
        if path.is_symlink() or not path.is_dir():
            self._note(kind, path, why, path.lstat().st_size)
            if not self.dry:
                path.unlink()
            return True
        with unused(path) as alone:
            if not alone:
                return False
            self._note(kind, path, why, folder_size(path))
            if not self.dry:
                garbage = path.with_name(GARBAGE + path.name.removeprefix(GARBAGE))
                if garbage != path:
                    shutil.rmtree(garbage, ignore_errors=True)
                    path.rename(garbage)
                shutil.rmtree(garbage)
        return True

    def _note(self, kind: str, path: Path, why: str, num_bytes: int) -> None:
        self.found.removed.append(RemovedPath(kind, path.name, num_bytes, why))


def folder_size(folder: Path) -> int:
    """Add up the bytes of a folder's files but those that have other names, which stay."""
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(one.st_size for one in (path.stat() for path in paths) if one.st_nlink == 1)


def collect(
    workspace: Path, bundles: Path, *, keep_days: float, keep: int, dry: bool
) -> CollectResult:
    """Remove unused files; see `Collector`."""
    since = datetime.fromtimestamp(datetime.now(UTC).timestamp() - 86_400 * keep_days, UTC)
    return Collector(workspace, bundles, Keep(since=since, newest=keep), dry=dry).collect()
