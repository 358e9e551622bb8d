"""A folder of bundles: the served version, every decision, changes of aliases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.workspaces.files import changed_at, names_in, parse_time, place_key
from pipelines.dashboard.workspaces.run import Run
from pipelines.engine.signing import KEY, key_name, signing_key
from pipelines.pages.document import Origin
from pipelines.publishing.promotion import served_version
from pipelines.publishing.released import shop_workspace
from pipelines.tracking.decisions import (
    LOG,
    AliasChange,
    Written,
    history,
    read_challenger,
    read_decisions,
)
from serving.bundle.manifest import MANIFEST, bundle_directory


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder of bundles, with the workspace whose runs publish there."""

    key: str
    bundles: Path
    workspace: Path | None
    run: Run | None = None

    @property
    def name(self) -> str:
        return str(self.workspace or self.bundles)

    @property
    def origins(self) -> Sequence[Origin]:
        return (self.run.origin,) if self.run else ()

    def versions(self) -> list[str]:
        """List the versions whose bundles are there, the newest first."""
        found = []
        for name in names_in(self.bundles):
            path = self.bundles / name
            if name.startswith("bundle-") and not path.is_symlink():
                written = changed_at(path / MANIFEST)
                found.append((written.timestamp() if written else 0.0, name[len("bundle-") :]))
        return [version for _, version in sorted(found, reverse=True)]


def folders(context: Context) -> list[Folder]:
    """List the folders, the one with the newest bundle first."""
    runs = context.stores.runs()
    of_path = {run.path: run for run in runs if run.kind == "workspace"}
    newest: dict[Path, Run] = {}
    for run in runs:
        if run.kind == "bundle":
            newest.setdefault(run.bundles_folder, run)
    found = []
    for bundles, bundle in newest.items():
        maker = of_path.get(bundles.parent) or context.stores.maker(bundle)
        above = bundles.parent if (bundles.parent / "config.toml").is_file() else None
        workspace = above if maker is None else shop_workspace(maker.path)
        key = place_key(str(bundles))
        found.append(Folder(key=key, bundles=bundles, workspace=workspace, run=maker))
    return found


def choose_folder(context: Context, query: Query) -> Folder | None:
    """Choose by the parameter ``bundles`` or ``run``, else the newest; None if there is none."""
    known = folders(context)
    if key := query.text("bundles"):
        if found := next((one for one in known if one.key == key), None):
            return found
        raise NotFoundError(
            f"no folder of bundles {key!r}: it is gone, or holds no bundle any more"
        )
    if key := query.text("run"):
        run = context.stores.run(key)
        for one in known:
            if one.bundles == run.bundles_folder or one.workspace == shop_workspace(run.path):
                return one
        raise NotFoundError(f"{run.name} has released no bundle; recsys run {run.path} makes one")
    return known[0] if known else None


@dataclass(frozen=True, kw_only=True)
class Record:
    """All records of a folder, oldest first."""

    served: str | None = None
    challenger: str | None = None
    is_there: bool = False
    """True if the bundle that is served is there."""
    changes: Sequence[AliasChange] = ()
    decisions: Sequence[Written] = ()
    faults: Sequence[str] = ()

    def since(self, version: str | None) -> datetime | None:
        """Return since when an alias names a version."""
        found = [one.time for one in self.changes if one.version == version]
        return parse_time(found[-1]) if found else None

    def on(self, version: str | None) -> list[Written]:
        """List the decisions on a version, the newest first."""
        return [one for one in reversed(self.decisions) if one.decision.challenger == version]


def read_record(context: Context, folder: Folder) -> Record:
    """Read everything; a part that cannot be read is named in the faults."""
    bundles, key, faults = folder.bundles, None, []
    try:
        key = signing_key()
    except ValueError as error:
        faults.append(str(error))
    of_folder = ("release record", str(bundles), key and key_name(key))
    found = context.cache.get(of_folder, [bundles / LOG], lambda: _read(bundles, key))
    served = served_version(bundles)
    is_there = served is not None and (bundle_directory(bundles, served) / MANIFEST).is_file()
    if served is not None and not is_there:
        faults.insert(0, f"{served} is to be served, but its bundle is not in {bundles}")
    return replace(found, served=served, is_there=is_there, faults=[*faults, *found.faults])


def _read(bundles: Path, key: bytes | None) -> Record:
    found, faults = Record(), list[str]()
    try:
        found = Record(changes=history(bundles), challenger=read_challenger(bundles))
        decisions, faults = read_decisions(bundles, key)
        found = replace(found, decisions=decisions)
    except OSError as error:
        faults.append(f"{bundles / LOG} cannot be read: {error.strerror}")
    except ValueError as error:
        faults.append(str(error))
    if key is None and any(one.state == "not verified" for one in found.decisions):
        faults.append(f"{KEY} is not set here, so no signature is verified")
    return replace(found, faults=faults)
