"""The versions of semantic IDs of a run, and its items."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pipelines.dashboard.context import Cache, Context
from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.workspaces.files import UnreadableError, read_table
from pipelines.dashboard.workspaces.run import Run
from pipelines.semantic_ids.artefact import ID_ROWS, REPORT
from pipelines.semantic_ids.items import Items, bundle_items, workspace_items
from pipelines.semantic_ids.store import FOLDER, ITEM_IDS, SHORT, SemanticIdStore
from pipelines.semantic_ids.table import IdTable
from recsys.semantic_ids.codes import FILE_NAME, SemanticIds
from recsys.semantic_ids.version_store import VersionStore

STAGE, FEATURES = "build_semantic_ids", "build_features"
MANIFEST = "manifest.json"
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class IdVersions:
    """A run and its versions."""

    context: Context
    run: Run
    own: str | None
    """Version that the run was made with; None if it cannot be read."""
    report: Mapping[str, Any]
    """semantic_ids_report.json of the run that made ``own``; empty if nothing was measured."""
    published: tuple[str, ...]
    """Versions of the store of the run's bundles, the newest first."""
    problems: tuple[str, ...] = ()

    @property
    def store(self) -> Path:
        return self.run.bundles_folder / FOLDER

    @property
    def versions(self) -> tuple[str, ...]:
        """The run's own, then those that are published."""
        return tuple(dict.fromkeys([*filter(None, [self.own]), *self.published]))

    def named(self, beginning: str) -> str:
        """Find the version that begins with a few letters."""
        for version in self.versions:
            if beginning and version.startswith(beginning):
                return version
        known = ", ".join(version[:SHORT] for version in self.versions) or "none"
        raise NotFoundError(f"version {beginning!r} is not there; there are: {known}")

    def once(self, cache: Cache, key: tuple[str, ...], make: Callable[[], T]) -> T:
        """Compute a value again only after a file of the run changed."""
        path = self.run.path
        files = [place / MANIFEST for place in (path, path / STAGE, path / FEATURES)]
        return cache.get((*key, path), [*files, self.store / ITEM_IDS], make)

    def items(self) -> Items:
        """Read the run's items, once."""
        path, is_bundle = self.run.path, self.run.kind == "bundle"
        try:
            return self.once(
                self.context.tables,
                ("items of semantic IDs",),
                lambda: bundle_items(path) if is_bundle else workspace_items(path / FEATURES),
            )
        except (OSError, ValueError, LookupError) as error:
            raise NotFoundError(f"the items of {self.run.name} cannot be read: {error}") from error

    def table(self, version: str) -> IdTable:
        """Read a version with the run's items, once."""
        key = ("semantic ids", version)
        try:
            return self.once(self.context.tables, key, lambda: self._read_table(version))
        except (OSError, ValueError, LookupError) as error:
            words = f"version {version[:SHORT]} of the semantic IDs cannot be read: {error}"
            raise NotFoundError(words) from error

    def _read_table(self, version: str) -> IdTable:
        if version != self.own:
            store = SemanticIdStore(self.store)
            id_rows = store.id_rows_of(self.items().item_ids.to_list())
            return IdTable.of(store.versions.load(version), id_rows)
        if self.run.kind == "workspace":
            stage = self.run.path / STAGE
            id_rows = np.load(stage / ID_ROWS, allow_pickle=False)
            return IdTable.of(SemanticIds.load(stage), id_rows)
        from serving.bundle.delta import read_semantic_ids
        from serving.bundle.published import read_chain

        found = read_semantic_ids(read_chain(self.run.path))
        if found is None:
            raise ValueError("the bundle has no semantic IDs")
        return IdTable.of(found.ids, found.id_rows)


def has_ids(run: Run) -> bool:
    """Return whether a run was made with semantic IDs."""
    if run.kind == "workspace":
        return (run.path / STAGE / f"{FILE_NAME}.json").exists()
    return (run.path / FOLDER).is_dir()


def find_versions(context: Context, run: Run) -> IdVersions:
    """Find a run's versions."""
    problems: list[str] = []
    report: Mapping[str, Any] = {}
    own: str | None = None
    published: list[str] = []
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
    try:
        store = VersionStore(run.bundles_folder / FOLDER)
        here = store.versions()
        published = [one for one in reversed(store.history()) if one in here]
        published += sorted({*here} - {*published})
    except (OSError, ValueError) as error:
        problems.append(f"published versions cannot be read: {error}")
    return IdVersions(
        context=context,
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
