"""What was released, refused, promoted and rolled back in a folder of bundles, and what ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from pipelines.dashboard.context import Context
from pipelines.dashboard.releases.folders import Folder
from pipelines.dashboard.workspaces.files import UnreadableError, names_in, read_table, time_of
from pipelines.engine.history import HISTORY as COMMANDS
from pipelines.engine.history import CommandRun, read_history
from pipelines.engine.signing import KEY, key_name, signing_key
from pipelines.publishing.decisions import FOLDER, Decision, Written, read_decision, read_decisions
from pipelines.publishing.promotion import (
    HISTORY,
    AliasChange,
    challenger,
    history,
    served_version,
)
from serving.bundle.manifest import MANIFEST, bundle_directory

ALTERED = "altered"
SIGNATURES = {
    "signed": "valid",
    "unsigned": "not signed",
    "not verified": "signed, not verified",
    ALTERED: "NOT VALID",
}
"""By the state of a decision."""


@dataclass(frozen=True, kw_only=True)
class Decided:
    """A decision as it lies on disk, one that was altered as well."""

    name: str
    """Of its file."""
    decision: Decision
    state: str
    written: Written | None
    """None of one that was altered: what it says is not what was signed."""
    fault: str = ""

    @property
    def time(self) -> datetime | None:
        """When it was taken; by the name of its file where it does not say."""
        found = time_of(self.decision.time)
        return found or _stamp(self.name)


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is known of a folder."""

    served: str | None
    challenger: str | None
    is_there: bool
    """Whether the bundle that is served is there."""
    changes: Sequence[AliasChange] = ()
    """Of aliases, oldest first."""
    decisions: Sequence[Decided] = ()
    """Oldest first."""
    commands: Sequence[CommandRun] = ()
    """Of the workspace, oldest first."""
    faults: Sequence[str] = field(default_factory=list)
    """What is wrong with them, in words."""

    def since(self, version: str | None) -> datetime | None:
        """Say since when an alias names a version."""
        found = [one.time for one in self.changes if one.version == version]
        return time_of(found[-1]) if found else None

    def on(self, version: str) -> list[Decided]:
        """List the decisions on a version, the newest first."""
        return [one for one in reversed(self.decisions) if one.decision.challenger == version]


def record_of(context: Context, folder: Folder) -> Record:
    """Read everything; a part that cannot be read is said in the faults."""
    bundles = folder.bundles
    names = [name for name in names_in(bundles / FOLDER) if name.endswith(".json")]
    files = [bundles / HISTORY, *(bundles / FOLDER / name for name in names)]
    if folder.workspace is not None:
        files.append(folder.workspace / COMMANDS)
    key, wrong_key = None, []
    try:
        key = signing_key()
    except ValueError as error:
        wrong_key = [str(error)]
    named = key and key_name(key)
    found = context.cache.get(
        ("release record", str(bundles), str(folder.workspace), named),
        files,
        lambda: _read(folder, key, names),
    )
    served = served_version(bundles)
    is_there = served is not None and (bundle_directory(bundles, served) / MANIFEST).is_file()
    faults = [*wrong_key, *found.faults]
    if served is not None and not is_there:
        faults.insert(0, f"{served} is to be served, but its bundle is not in {bundles}")
    return replace(found, served=served, is_there=is_there, faults=faults)


def _read(folder: Folder, key: bytes | None, names: Sequence[str]) -> Record:
    faults = []
    changes: list[AliasChange] = []
    waiting = None
    try:
        changes, waiting = history(folder.bundles), challenger(folder.bundles)
    except (ValueError, OSError) as error:
        faults.append(str(error))
    decisions, wrong = _decisions(folder.bundles, key, names)
    commands: list[CommandRun] = []
    if folder.workspace is not None:
        try:
            commands = read_history(folder.workspace)
        except OSError as error:
            faults.append(f"{folder.workspace / COMMANDS} cannot be read: {error.strerror}")
    return Record(
        served=None,
        challenger=waiting,
        is_there=False,
        changes=changes,
        decisions=decisions,
        commands=commands,
        faults=[*faults, *wrong],
    )


def _decisions(
    bundles: Path, key: bytes | None, names: Sequence[str]
) -> tuple[list[Decided], list[str]]:
    try:
        found, faults = read_decisions(bundles, key)
    except OSError as error:
        return [], [f"{bundles / FOLDER} cannot be read: {error.strerror}"]
    whole = {written.path.name: written for written in found}
    decided = []
    for name in names:
        written = whole.get(name)
        if written is not None:
            one = Decided(
                name=name, decision=written.decision, state=written.state, written=written
            )
        else:
            one = _altered(bundles / FOLDER / name, key)
        decided.append(one)
    if key is None and any(one.state == "not verified" for one in decided):
        faults.append(f"{KEY} is not set here, so no signature is verified")
    return decided, faults


def _altered(path: Path, key: bytes | None) -> Decided:
    """Show what an altered decision claims; only texts of it are taken over."""
    fault = "it is gone"
    try:
        read_decision(path, key)
    except (ValueError, OSError) as error:
        fault = str(error)
    try:
        table = read_table(path) or {}
    except UnreadableError:
        table = {}
    version = table.get("challenger")
    claim = Decision(
        time=str(table.get("time", "")),
        outcome=str(table.get("outcome", "unreadable")),  # type: ignore[arg-type]
        challenger=version if isinstance(version, str) else path.stem.partition("-")[2],
        champion=None,
        challenger_digest=None,
    )
    return Decided(name=path.name, decision=claim, state=ALTERED, written=None, fault=fault)


def _stamp(name: str) -> datetime | None:
    try:
        return datetime.strptime(name.partition("-")[0], "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def versions_of(folder: Folder) -> list[str]:
    """List the versions whose bundles are there, the newest first."""
    found = []
    for name in names_in(folder.bundles):
        path = folder.bundles / name
        if name.startswith("bundle-") and not path.is_symlink():
            try:
                found.append(((path / MANIFEST).stat().st_mtime, name.removeprefix("bundle-")))
            except OSError:
                found.append((0.0, name.removeprefix("bundle-")))
    return [version for _, version in sorted(found, reverse=True)]
