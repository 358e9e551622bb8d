"""The versions of semantic IDs that a run can show, each as one table sorted by code.

Axes: N item rows (row 0 is padding), M items with an ID, L levels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl
import torch
from numpy.typing import NDArray

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import NotFoundError, QueryError
from pipelines.dashboard.semantic_ids.catalogue import (
    Items,
    Rows,
    bundle_items,
    workspace_items,
)
from pipelines.dashboard.workspaces.files import UnreadableError, read_table
from pipelines.dashboard.workspaces.find import RELEASED
from pipelines.dashboard.workspaces.run import Run
from pipelines.publishing.released import shop_workspace
from pipelines.semantic_ids.artefact import ID_ROWS, REPORT
from pipelines.semantic_ids.store import FOLDER, ITEM_IDS, SHORT
from recsys.semantic_ids.codes import FILE_NAME, NO_CODE, ItemCodes, SemanticIds, id_keys
from recsys.semantic_ids.version_store import VersionStore

STAGE, FEATURES = "build_semantic_ids", "build_features"
MANIFEST = "manifest.json"
HOW_TO = (
    "No run here has semantic IDs. They are made by the stage build_semantic_ids where items have "
    'text: set semantic_ids.method = "rq_kmeans" in the run\'s TOML file and run '
    "recsys run --until build_semantic_ids"
)
Prefix = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class IdTable:
    """One version's IDs of a run's items."""

    version: str
    parent: str | None
    level_sizes: tuple[int, ...]
    codes: NDArray[np.int32]
    """By item row, [N, L]; -1 without an ID."""
    keys: Rows
    """IDs as numbers, ascending, [M]."""
    rows: Rows
    """Their item rows, [M]."""
    num_id_rows: int
    """Rows that were ever given out up to this version."""
    num_departed: int
    """IDs of items that are not in the catalogue."""

    @classmethod
    def of(cls, found: ItemCodes, ids: SemanticIds) -> IdTable:
        """Sort a catalogue's codes."""
        rows = (found.codes[:, 0] != NO_CODE).nonzero().flatten()
        keys, order = id_keys(found.codes[rows], found.level_sizes).sort()
        return cls(
            version=ids.version,
            parent=ids.parent,
            level_sizes=found.level_sizes,
            codes=found.codes.numpy(),
            keys=keys.numpy(),
            rows=rows[order].numpy(),
            num_id_rows=ids.num_item_rows - 1,
            num_departed=len(ids.item_rows) - len(rows),
        )

    @property
    def num_levels(self) -> int:
        return len(self.level_sizes)

    @property
    def own(self) -> torch.Tensor:
        """Codes of the items with an ID, [M, L], in the order of ``rows``."""
        return torch.from_numpy(self.codes[self.rows])

    def bounds(self, prefix: Prefix) -> tuple[int, int]:
        """Say where the items of a prefix stand in ``rows``: the first, and one past the last."""
        key, rest = 0, prod(self.level_sizes[len(prefix) :])
        for code, size in zip(prefix, self.level_sizes, strict=False):
            key = key * size + code
        low, high = np.searchsorted(self.keys, [key * rest, (key + 1) * rest])
        return int(low), int(high)

    def edges(self, prefix: Prefix) -> Rows:
        """Say where the items of each next code begin, [K + 1]."""
        key, size = 0, self.level_sizes[len(prefix)]
        for code, one in zip(prefix, self.level_sizes, strict=False):
            key = key * one + code
        rest = prod(self.level_sizes[len(prefix) + 1 :])
        wanted = (key * size + np.arange(size + 1, dtype=np.int64)) * rest
        return np.searchsorted(self.keys, wanted).astype(np.int64)

    def text(self, row: int) -> str:
        """Write an item's ID as ``12-250-3``; empty where it has none."""
        codes = self.codes[row].tolist()
        return "" if codes[0] == NO_CODE else "-".join(map(str, codes))

    def prefix_of(self, text: str) -> Prefix:
        """Read a prefix as it stands in an address.

        Raises:
            QueryError: It is none of this version's.
        """
        if not text:
            return ()
        try:
            prefix = tuple(int(code) for code in text.split("-"))
        except ValueError:
            prefix = (-1,)
        inside = all(0 <= code < size for code, size in zip(prefix, self.level_sizes, strict=False))
        if len(prefix) > self.num_levels or not inside:
            sizes = ", ".join(f"0 to {size - 1}" for size in self.level_sizes)
            raise QueryError(
                f"prefix is {text!r}; it has to be codes with dashes between them such as 12-4, at "
                f"most {self.num_levels}, each of its level: {sizes}"
            )
        return prefix


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a run's semantic IDs are."""

    run: Run
    path: Path
    """Of the run."""
    own: str | None
    """Version that the run was made with; None where it cannot be read."""
    report: Mapping[str, Any]
    """semantic_ids_report.json of the run that made ``own``; empty where nothing was measured."""
    published: tuple[str, ...]
    """Versions of the store beside the bundles, the newest first."""
    store: Path
    problems: tuple[str, ...] = ()

    @property
    def versions(self) -> tuple[str, ...]:
        """The run's own, then those that are published."""
        own = () if self.own is None else (self.own,)
        return tuple(dict.fromkeys([*own, *self.published]))

    @property
    def settings(self) -> Mapping[str, Any]:
        """The [semantic_ids] table that ``own`` was made with; empty where it is not known."""
        origin = self.report.get("origin")
        found = origin.get("settings") if isinstance(origin, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    @property
    def files(self) -> list[Path]:
        """What all of it is read from; where they stay, so does what was computed."""
        places = (self.path, self.path / STAGE, self.path / FEATURES)
        store = [self.store / ITEM_IDS]
        return [*(place / MANIFEST for place in places), *store]

    def named(self, beginning: str) -> str:
        """Find the version that a few first letters mean.

        Raises:
            NotFoundError: None begins so.
        """
        for version in self.versions:
            if beginning and version.startswith(beginning):
                return version
        known = ", ".join(version[:SHORT] for version in self.versions) or "none"
        raise NotFoundError(f"version {beginning!r} is not there; there are: {known}")


def has_ids(run: Run) -> bool:
    """Whether a run was made with semantic IDs."""
    if run.kind == "workspace":
        return (run.path / STAGE / f"{FILE_NAME}.json").exists()
    return (run.path / FOLDER).is_dir()


def source_of(context: Context, run: Run) -> Source:
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
    return Source(
        run=run,
        path=run.path,
        own=own,
        report=report if report.get("version") == own else {},
        published=tuple(dict.fromkeys(published)),
        store=store,
        problems=tuple(problems),
    )


def _kept_report(context: Context, run: Run) -> Mapping[str, Any]:
    """Read what was measured by the run that made a bundle; empty where that is gone."""
    try:
        maker = None if run.made_by is None else context.stores.run(run.made_by).path
    except NotFoundError:
        maker = None
    if maker is None:
        return {}
    whole = shop_workspace(maker)
    kept = whole / RELEASED / run.name.partition("+")[0] / STAGE / REPORT
    return read_table(kept) or read_table(maker / STAGE / REPORT) or {}


def read_items(context: Context, source: Source) -> Items:
    """Read the run's items, once.

    Raises:
        NotFoundError: They cannot be read; says why.
    """
    path = source.path
    is_bundle = source.run.kind == "bundle"
    try:
        return context.tables.get(
            ("items of", path),
            source.files,
            lambda: bundle_items(path) if is_bundle else workspace_items(path / FEATURES),
        )
    except (OSError, ValueError, LookupError) as error:
        raise NotFoundError(f"the items of {source.run.name} cannot be read: {error}") from error


def read_ids(context: Context, source: Source, version: str) -> IdTable:
    """Read a version with the run's items, once.

    Raises:
        NotFoundError: It cannot be read; says why.
    """

    def read() -> IdTable:
        if version != source.own:
            return _of_store(context, source, version)
        path = source.path
        return _of_bundle(path) if source.run.kind == "bundle" else _of_workspace(path / STAGE)

    try:
        return context.tables.get(("semantic ids", source.path, version), source.files, read)
    except (OSError, ValueError, LookupError) as error:
        words = f"version {version[:SHORT]} of the semantic IDs cannot be read: {error}"
        raise NotFoundError(words) from error


def _of_workspace(artefact: Path) -> IdTable:
    ids = SemanticIds.load(artefact)
    id_rows = torch.from_numpy(np.load(artefact / ID_ROWS, allow_pickle=False))
    return IdTable.of(ids.by_item_row(id_rows), ids)


def _of_bundle(bundle: Path) -> IdTable:
    from serving.bundle.delta import chain_of, semantic_ids_of

    found = semantic_ids_of(chain_of(bundle))
    if found is None:
        raise ValueError("the bundle has no semantic IDs")
    return IdTable.of(found.item_codes, found.ids)


def _of_store(context: Context, source: Source, version: str) -> IdTable:
    ids = VersionStore(source.store).load(version)
    given = orjson.loads((source.store / ITEM_IDS).read_bytes())
    known = pl.DataFrame({"item_id": given, "id_row": np.arange(1, len(given) + 1)})
    items = read_items(context, source).item_ids.alias("item_id").to_frame()
    joined = items.join(known, on="item_id", how="left", maintain_order="left")
    id_rows = joined["id_row"].fill_null(0).to_numpy().copy()
    id_rows[0] = 0
    return IdTable.of(ids.by_item_row(torch.from_numpy(id_rows)), ids)
