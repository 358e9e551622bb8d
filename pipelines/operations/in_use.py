"""Which bundles are needed, and why: what is served, may be served next, or was served lately."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pipelines.publishing.promotion import challenger, champions, history
from pipelines.tracking.entries import CHALLENGER, CHAMPION
from serving.bundle.manifest import MANIFEST, bundle_directory, read_manifest

BUNDLE = "bundle-"
ADAPTER = "adapter-"


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Until when and how many bundles are kept beyond those in use."""

    since: datetime
    """Bundles released or served then or later are kept."""
    newest: int
    """So many of the newest are kept whatever their age."""


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
    """Say for each version that must stay why; those that are not named may go."""
    versions = versions_in(bundles)
    why: dict[str, str] = {}

    def note(version: str | None, reason: str) -> None:
        if version in versions:
            why.setdefault(str(version), reason)

    for link, version in linked(bundles, BUNDLE).items():
        note(version, "champion" if link == "current" else f"the link {link} points at it")
    stack = champions(bundles)
    note(stack[-1] if stack else None, "champion")
    note(challenger(bundles), CHALLENGER)
    note(stack[-2] if len(stack) > 1 else None, "the champion before; a rollback goes back to it")
    for version, reason in recent(bundles, versions, keep):
        note(version, reason)
    for child, parent in parents(bundles, versions).items():
        if child in why:
            note(parent, f"{child} stands on it")
    return {version: why[version] for version in versions if version in why}


def recent(
    bundles: Path, versions: Mapping[str, datetime], keep: Keep
) -> Iterator[tuple[str, str]]:
    """Name what is kept for its age, with the reason."""
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
            # A chain of links ends at what is used.
            target = path.resolve()
            if target.parent == folder.resolve() and target.name.startswith(prefix):
                found[path.name] = target.name.removeprefix(prefix)
    return found


def served_until(bundles: Path) -> Mapping[str, datetime]:
    """Return until when each former champion was served last."""
    found: dict[str, datetime] = {}
    serving: str | None = None
    for change in history(bundles):
        if change.alias != CHAMPION:
            continue
        if serving is not None:
            found[serving] = datetime.fromisoformat(change.time)
        serving = change.version
    return found


def parents(bundles: Path, versions: Mapping[str, object]) -> dict[str, str]:
    """Name what each delta stands on."""
    found = {}
    for version in versions:
        with suppress(ValueError, OSError):
            parent = read_manifest(bundle_directory(bundles, version))[0].parent
            if parent is not None:
                found[version] = parent.version
    return found
