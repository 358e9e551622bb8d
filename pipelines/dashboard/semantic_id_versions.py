"""The versions of semantic IDs of a run, and its items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl
import torch

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.workspaces.files import UnreadableError, read_table
from pipelines.dashboard.workspaces.run import Run
from pipelines.semantic_ids.artefact import ID_ROWS, REPORT
from pipelines.semantic_ids.items import Items, bundle_items, workspace_items
from pipelines.semantic_ids.store import FOLDER, ITEM_IDS, SHORT
from pipelines.semantic_ids.table import IdTable
from recsys.semantic_ids.codes import FILE_NAME, SemanticIds
from recsys.semantic_ids.version_store import VersionStore

STAGE, FEATURES = "build_semantic_ids", "build_features"
MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class IdVersions:
    """A run and its versions."""

    run: Run
    own: str | None
    """Version that the run was made with; None if it cannot be read."""
    report: Mapping[str, Any]
    """semantic_ids_report.json of the run that made ``own``; empty if nothing was measured."""
    published: tuple[str, ...]
    """Versions of the store of the run's bundles, the newest first."""
    problems: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return self.run.path

    @property
    def store(self) -> Path:
        return self.run.bundles_folder / FOLDER

    @property
    def versions(self) -> tuple[str, ...]:
        """The run's own, then those that are published."""
        own = () if self.own is None else (self.own,)
        return tuple(dict.fromkeys([*own, *self.published]))

    @property
    def files(self) -> list[Path]:
        """Files it is read from; while they stay, computed values are kept."""
        places = (self.path, self.path / STAGE, self.path / FEATURES)
        return [*(place / MANIFEST for place in places), self.store / ITEM_IDS]

    def named(self, beginning: str) -> str:
        """Find the version that begins with a few letters."""
        for version in self.versions:
            if beginning and version.startswith(beginning):
                return version
        known = ", ".join(version[:SHORT] for version in self.versions) or "none"
        raise NotFoundError(f"version {beginning!r} is not there; there are: {known}")


def has_ids(run: Run) -> bool:
    """Return whether a run was made with semantic IDs."""
    if run.kind == "workspace":
        return (run.path / STAGE / f"{FILE_NAME}.json").exists()
    return (run.path / FOLDER).is_dir()


def find_source(context: Context, run: Run) -> IdVersions:
    """Find a run's versions."""
    problems: list[str] = []
    report: Mapping[str, Any] = {}
    own: str | None = None
    try:
        if run.kind == "workspace":
            report = read_table(run.path / STAGE / REPORT) or {}
            own = report.get("version")
        else:
            manifest = read_table(run.path / MANIFEST) or {}
            own = (manifest.get("semantic_ids") or {}).get("version")
            report = _kept_report(context, run)
    except UnreadableError as error:
        problems.append(str(error))
    store = run.bundles_folder / FOLDER
    published: list[str] = []
    try:
        # Read without the items, of which there may be millions.
        history = (read_table(store / "current") or {}).get("history", [])
        here = {path.parent.name for path in (store / "versions").glob("[!.]*/*.json")}
        published = [one for one in reversed(history) if one in here]
        published += sorted(here - set(published))
    except (UnreadableError, TypeError) as error:
        problems.append(f"published versions cannot be read: {error}")
    return IdVersions(
        run=run,
        own=own,
        report=report if report.get("version") == own else {},
        published=tuple(dict.fromkeys(published)),
        problems=tuple(problems),
    )


def _kept_report(context: Context, run: Run) -> Mapping[str, Any]:
    """Read the measurements of the run that made a bundle; empty if they are gone."""
    maker, kept = context.stores.maker(run), context.stores.kept_stages(run)
    if maker is None or kept is None:
        return {}
    return read_table(kept / STAGE / REPORT) or read_table(maker.path / STAGE / REPORT) or {}


def read_items(context: Context, source: IdVersions) -> Items:
    """Read the run's items, once."""
    path, is_bundle = source.path, source.run.kind == "bundle"
    try:
        return context.tables.get(
            ("items of", path),
            source.files,
            lambda: bundle_items(path) if is_bundle else workspace_items(path / FEATURES),
        )
    except (OSError, ValueError, LookupError) as error:
        raise NotFoundError(f"the items of {source.run.name} cannot be read: {error}") from error


def read_ids(context: Context, source: IdVersions, version: str) -> IdTable:
    """Read a version with the run's items, once."""

    def read() -> IdTable:
        if version != source.own:
            return _of_store(context, source, version)
        if source.run.kind == "bundle":
            return _of_bundle(source.path)
        ids = SemanticIds.load(source.path / STAGE)
        id_rows = np.load(source.path / STAGE / ID_ROWS, allow_pickle=False)
        return IdTable.of(ids.by_item_row(torch.from_numpy(id_rows)), ids)

    try:
        return context.tables.get(("semantic ids", source.path, version), source.files, read)
    except (OSError, ValueError, LookupError) as error:
        words = f"version {version[:SHORT]} of the semantic IDs cannot be read: {error}"
        raise NotFoundError(words) from error


def _of_bundle(bundle: Path) -> IdTable:
    from serving.bundle.delta import read_semantic_ids
    from serving.bundle.published import read_chain

    found = read_semantic_ids(read_chain(bundle))
    if found is None:
        raise ValueError("the bundle has no semantic IDs")
    return IdTable.of(found.item_codes, found.ids)


def _of_store(context: Context, source: IdVersions, version: str) -> IdTable:
    ids = VersionStore(source.store).load(version)
    given = orjson.loads((source.store / ITEM_IDS).read_bytes())
    known = pl.DataFrame({"item_id": given, "id_row": np.arange(1, len(given) + 1)})
    items = read_items(context, source).item_ids.alias("item_id").to_frame()
    joined = items.join(known, on="item_id", how="left", maintain_order="left")
    id_rows = joined["id_row"].fill_null(0).to_numpy().copy()
    id_rows[0] = 0
    return IdTable.of(ids.by_item_row(torch.from_numpy(id_rows)), ids)
