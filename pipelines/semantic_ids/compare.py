"""Which version of semantic IDs a person is shown, and what changed between two of them."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import torch

from pipelines.config.run import OWN_DATA, RunConfig
from pipelines.engine.workspace import Workspace
from pipelines.reports.semantic_ids.data import ReportedIds, read_catalogue
from pipelines.semantic_ids.artefact import ID_ROWS, REPORT, read_version
from pipelines.semantic_ids.store import SemanticIdStore
from pipelines.semantic_ids.versions import Content
from recsys.semantic_ids.codes import NO_CODE, SemanticIds


def reported_version(
    content: Content, store: SemanticIdStore, config: RunConfig, previous: str | None = None
) -> ReportedIds:
    """Gather a report of the workspace's IDs, or of the published ones where those went on.

    Args:
        previous: First letters of the version to compare with; the parent by default.

    Raises:
        ValueError: There are no IDs, or the version to compare with is not there.
    """
    workspace = Workspace(config.workspace)
    artefact = workspace.stage("build_semantic_ids")
    is_made = workspace.manifest("build_semantic_ids") is not None
    made = json.loads((artefact / REPORT).read_text(encoding="utf-8")) if is_made else {}
    own = made.get("version")
    # One that was never published stands only as long as no other was: the stage sees it so too.
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
    settings = version.origin.get("settings", {})
    return ReportedIds(
        ids=ids,
        quantizer=version.quantizer,
        id_rows=id_rows,
        vectors=content.vectors,
        catalogue=read_catalogue(workspace.stage("build_features")),
        title=config.report.title or config.data.dataset or OWN_DATA,
        method=settings.get("method", "unknown"),
        how=made["how"] if stands else "published",
        encoder=version.origin.get("encoder", "unknown"),
        settings=settings,
        num_retired=len(store.versions.retired_codes(ids.version)) if store.has(ids.version) else 0,
        previous=None if compared is None else store.versions.load(compared),
    )


def changes_between(before: SemanticIds, after: SemanticIds) -> Mapping[str, list[int]]:
    """List the id rows whose ID is new, moved or gone."""
    size = max(before.num_item_rows, after.num_item_rows)
    width = max(before.num_levels, after.num_levels)
    old, new = (_grown(ids, size, width) for ids in (before, after))
    had, has = (codes[:, 0] != NO_CODE for codes in (old, new))
    kinds = {
        "new": ~had & has,
        "moved": had & has & (old != new).any(1),
        "gone": had & ~has,
        "the same": had & has & (old == new).all(1),
    }
    return {what: found.nonzero().flatten().tolist() for what, found in kinds.items()}


def _grown(ids: SemanticIds, num_rows: int, num_levels: int) -> torch.Tensor:
    """Lay codes out with more rows and levels."""
    codes = torch.full((num_rows, num_levels), NO_CODE, dtype=torch.int32)
    codes[: ids.num_item_rows, : ids.num_levels] = ids.codes
    return codes
