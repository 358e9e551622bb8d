"""What a report of semantic IDs is made from.

A version's codes are by id row, which never changes; the catalogue of one run is by item row.

Axes: N item rows (row 0 is padding), I id rows (row 0 is none), D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipelines.config.run import OWN_DATA, RunConfig
from pipelines.engine.artifacts import read_json
from pipelines.engine.workspace import Workspace
from pipelines.inputs.tensors import tie_orders
from pipelines.semantic_ids.artefact import ID_ROWS, REPORT, read_version
from pipelines.semantic_ids.store import SemanticIdStore, SemanticIdVersion
from pipelines.semantic_ids.versions import Content
from recsys.data.dataset import Sequences
from recsys.semantic_ids.codes import NO_CODE, SemanticIds


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The items of a run by item row; each sequence has N entries, the first of the padding."""

    titles: Sequence[str]
    categories: Sequence[Sequence[str]]
    """Names of each item's categories; all empty where the catalogue has none."""
    popularity: NDArray[np.int64]
    """Events of each item, [N]; zeros where there are none."""


@dataclass(frozen=True, kw_only=True)
class ReportedIds(SemanticIdVersion):
    """One version and the catalogue it is shown with."""

    id_rows: NDArray[np.int64]
    """Id row of each item row, [N]; 0 where the item has no ID."""
    vectors: Tensor
    """Content by item row, [N, D]; a zero row has no content."""
    catalogue: Catalogue
    title: str
    """Name of the data, for the heading."""
    how: str
    """"trained", "appended", "aligned" or "kept"; anything else is shown as it is."""
    num_retired: int = 0
    """IDs of earlier versions that no item has now; they are never given to another item."""
    previous: SemanticIds | None = None
    """The version to compare with, by the same id rows."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The [semantic_ids] table that the version was made with."""
        settings: Mapping[str, Any] = self.origin.get("settings", {})
        return settings


def read_catalogue(features: Path) -> Catalogue:
    """Read titles, categories and counts of events from a build_features artefact."""
    path = features / "items.parquet"
    has_categories = "categories" in pl.read_parquet_schema(path)
    columns = ["item_row", "display_text", *(["categories"] if has_categories else [])]
    items = pl.read_parquet(path, columns=columns).sort("item_row")
    lists = items["categories"].fill_null([]).to_list() if has_categories else [[]] * items.height
    sequences = Sequences.load(features / "sequences" / tie_orders(features)[0])
    counts = np.bincount(np.asarray(sequences.item_rows), minlength=items.height + 1)
    return Catalogue(
        titles=["", *items["display_text"]],
        categories=[[], *lists],
        popularity=counts.astype(np.int64),
    )


def reported_version(
    content: Content, store: SemanticIdStore, config: RunConfig, previous: str | None = None
) -> ReportedIds:
    """Gather a report of the workspace's IDs, or of the current ones where others were published.

    Args:
        previous: First letters of the version to compare with; the parent by default.

    Raises:
        ValueError: There are no IDs, or the version to compare with does not exist.
    """
    workspace = Workspace(config.workspace)
    artefact = workspace.stage("build_semantic_ids")
    is_made = workspace.manifest("build_semantic_ids") is not None
    made = read_json(artefact / REPORT) if is_made else {}
    own = made.get("version")
    # Unpublished IDs count only until others are published, as the stage has it.
    unpublished = store.current() in (None, made.get("parent"))
    stands = own is not None and (store.leads_from(own) if store.has(own) else unpublished)
    version = read_version(artefact) if stands else store.previous()
    if version is None:
        raise ValueError(
            f"{workspace.path.absolute()} has no semantic IDs; make them with "
            "recsys run --until build_semantic_ids"
        )
    if stands:
        id_rows = np.load(artefact / ID_ROWS, allow_pickle=False)
    else:
        id_rows = np.concatenate([[0], store.id_rows_of(content.item_ids)])
    ids = version.ids
    id_rows = np.where(id_rows < ids.num_item_rows, id_rows, 0)
    id_rows[ids.codes[torch.from_numpy(id_rows), 0].numpy() == NO_CODE] = 0
    parent = ids.parent if ids.parent is not None and store.has(ids.parent) else None
    compared = store.named(previous) if previous is not None else parent
    return ReportedIds(
        **vars(version),
        id_rows=id_rows,
        vectors=content.vectors,
        catalogue=read_catalogue(workspace.stage("build_features")),
        title=config.report.title or config.data.dataset or OWN_DATA,
        how=made["how"] if stands else "published",
        num_retired=len(store.versions.retired_codes(ids.version)) if store.has(ids.version) else 0,
        previous=None if compared is None else store.versions.load(compared),
    )
