"""Folders of bundles that the dashboard knows of, and the one that a page is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.workspaces.files import key_of
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.document import Control, Option, Origin
from pipelines.publishing.approval import REFUSED_BUNDLES
from pipelines.publishing.released import shop_workspace


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder of bundles, with the workspace whose runs publish there."""

    key: str
    bundles: Path
    workspace: Path | None
    """None where nothing but bundles is known."""
    run: Run | None = None
    """Of the workspace."""

    @property
    def name(self) -> str:
        """For people."""
        return str(self.workspace or self.bundles)

    @property
    def origins(self) -> Sequence[Origin]:
        """What its numbers are of."""
        return (self.run.origin,) if self.run else ()


def folders(context: Context) -> list[Folder]:
    """List the folders, the one with the newest bundle first."""
    found: dict[Path, Run | None] = {}
    runs = context.stores.runs()
    of_path = {run.path: run for run in runs if run.kind == "workspace"}
    for run in runs:
        if run.kind == "bundle":
            above = run.path.parent
            found.setdefault(above.parent if above.name == REFUSED_BUNDLES else above, run)
    return [_folder(bundles, run, of_path, context) for bundles, run in found.items()]


def _folder(
    bundles: Path, bundle: Run | None, of_path: dict[Path, Run], context: Context
) -> Folder:
    run = of_path.get(bundles.parent)
    if run is None and bundle is not None and bundle.made_by is not None:
        run = context.stores.run(bundle.made_by)
    above = bundles.parent if (bundles.parent / "config.toml").is_file() else None
    workspace = above if run is None else shop_workspace(run.path)
    return Folder(key=key_of(str(bundles)), bundles=bundles, workspace=workspace, run=run)


def folder_of(context: Context, query: Query) -> Folder | None:
    """Choose by the parameter ``bundles`` or ``run``, else the newest; None where there is none.

    Raises:
        NotFoundError: There is no such folder or run, or the run has no bundles.
    """
    known = folders(context)
    if key := query.text("bundles"):
        for one in known:
            if one.key == key:
                return one
        raise NotFoundError(
            f"no folder of bundles {key!r}: it is gone, or holds no bundle any more"
        )
    if key := query.text("run"):
        run = context.stores.run(key)
        for one in known:
            if _belongs(run, one):
                return one
        raise NotFoundError(
            f"{run.name} has released no bundle; recsys run --workspace {run.path} makes one"
        )
    return known[0] if known else None


def _belongs(run: Run, folder: Folder) -> bool:
    if run.kind == "bundle":
        return folder.bundles in (run.path.parent, run.path.parent.parent)
    return folder.workspace == shop_workspace(run.path)


def chosen(context: Context, folder: Folder) -> Control:
    """Make the control that chooses among the folders."""
    options = [Option(value=one.key, label=one.name) for one in folders(context)[:200]]
    return Control(
        name="bundles",
        label="Workspace",
        kind="select",
        value=folder.key,
        clears=("version", "run"),
        options=options or [Option(value=folder.key, label=folder.name)],
    )
