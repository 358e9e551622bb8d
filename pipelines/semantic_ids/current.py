"""The measurement of a workspace's current version of semantic IDs, with its content.

Axes: N item rows (row 0 is padding), I id rows (row 0 is none), D width.
"""

from __future__ import annotations

import numpy as np
import torch

from pipelines.config.run import OWN_DATA, RunConfig
from pipelines.engine.artifacts import read_json
from pipelines.engine.workspace import Workspace
from pipelines.semantic_ids.artefact import ID_ROWS, REPORT, Content, read_version
from pipelines.semantic_ids.items import Items, workspace_items
from pipelines.semantic_ids.measure import (
    IdsMeasurement,
    measure,
    measure_drift,
    read_quality,
)
from pipelines.semantic_ids.store import SemanticIdStore, SemanticIdVersion
from pipelines.semantic_ids.table import IdTable
from recsys.semantic_ids.codes import NO_CODE
from recsys.semantic_ids.collisions import rows_with_content
from recsys.semantic_ids.quality import QualityReport, quality_report


def measure_current(
    content: Content, store: SemanticIdStore, config: RunConfig, previous: str | None = None
) -> IdsMeasurement:
    """Measure the workspace's IDs, or the current ones if others were published.

    Args:
        previous: First letters of the version to compare with; the parent by default.
    """
    workspace = Workspace(config.workspace)
    artefact = workspace.stage("build_semantic_ids")
    is_made = workspace.manifest("build_semantic_ids") is not None
    made = read_json(artefact / REPORT) if is_made else {}
    own = made.get("version")
    # Unpublished IDs count only until others are published, as for the stage.
    unpublished = store.current() in (None, made.get("parent"))
    is_own = own is not None and (store.leads_from(own) if store.has(own) else unpublished)
    version = read_version(artefact) if is_own else store.previous()
    if version is None:
        raise ValueError(
            f"{workspace.path.absolute()} has no semantic IDs; make them with "
            "recsys run --until build_semantic_ids"
        )
    given = np.concatenate([[0], store.id_rows_of(content.item_ids)])
    compared = store.named(previous) if previous is not None else version.ids.parent
    before = None
    if compared is not None and store.has(compared):
        before = IdTable.of(store.versions.load(compared), given)
    if not is_own:
        without = ~rows_with_content(content.vectors[1:].float())
        facts = {"method": version.origin.get("settings", {}).get("method", "unknown")}
        made = {**facts, "how": "published", "num_without_content": int(without.sum())}
    return measure_version(
        version,
        np.load(artefact / ID_ROWS, allow_pickle=False) if is_own else given,
        content.vectors,
        workspace_items(workspace.stage("build_features")),
        {**made, "origin": dict(version.origin), "quantizer": version.ids.quantizer_digest},
        title=config.report.title or config.data.dataset or OWN_DATA,
        num_retired=len(store.versions.retired_codes(version.ids.version))
        if store.has(version.ids.version)
        else 0,
        before=before,
    )


def measure_version(
    version: SemanticIdVersion,
    id_rows: np.ndarray,
    vectors: torch.Tensor,
    items: Items,
    made: dict[str, object],
    *,
    title: str,
    num_retired: int = 0,
    before: IdTable | None = None,
) -> IdsMeasurement:
    """Measure a version with its content.

    Args:
        id_rows: Id row of each item row, [N]; 0 without an ID.
        vectors: Content by item row, [N, D].
        made: See `measure`; its quality is computed if it is not there.
        before: The version to compare with.
    """
    table = IdTable.of(version.ids, id_rows)
    content = read_quality(made) or _quality(version, torch.from_numpy(id_rows), vectors)
    return IdsMeasurement(
        report=measure(table, items, made, title=title, content=content, num_retired=num_retired),
        drift=None if before is None else measure_drift(before, table),
        table=table,
        items=items,
    )


def _quality(
    version: SemanticIdVersion, rows: torch.Tensor, vectors: torch.Tensor
) -> QualityReport:
    """Measure the codes of the catalogue's items with their content."""
    ids = version.ids
    named = ids.by_item_row(rows).codes[:, 0] != NO_CODE
    by_id_row = torch.zeros(ids.num_item_rows, vectors.shape[1])
    by_id_row[rows[named]] = vectors[named].float()
    return quality_report(version.quantizer, by_id_row, ids, item_rows=rows[named])
