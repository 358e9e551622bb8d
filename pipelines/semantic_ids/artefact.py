"""Read the artefact of build_semantic_ids, and publish its version."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from pipelines.config.run import RunConfig
from pipelines.semantic_ids.store import (
    FOLDER,
    ITEM_IDS,
    SemanticIdStore,
    SemanticIdVersion,
    read_item_ids,
)
from recsys.semantic_ids.codes import ItemCodes, SemanticIds
from recsys.semantic_ids.rq_kmeans import ResidualKMeans

REPORT = "semantic_ids_report.json"
ID_ROWS = "id_rows.npy"
QUANTIZER = "quantizer"


def read_version(artefact: Path) -> SemanticIdVersion | None:
    """Read the version of an artefact; None where items have no IDs."""
    report = json.loads((artefact / REPORT).read_text(encoding="utf-8"))
    if report["method"] == "none":
        return None
    return SemanticIdVersion(
        ids=SemanticIds.load(artefact, report["version"]),
        quantizer=ResidualKMeans.load(artefact / QUANTIZER),
        origin=report["origin"],
    )


def read_item_codes(artefact: Path) -> ItemCodes:
    """Read the semantic IDs by item row."""
    version = read_version(artefact)
    if version is None:
        raise ValueError(
            "there are no semantic IDs to generate: no item has content, or "
            'semantic_ids.method = "none". Give items text, or set '
            "generative_training.enabled = false"
        )
    id_rows = np.load(artefact / ID_ROWS, allow_pickle=False)
    return version.ids.by_item_row(torch.from_numpy(id_rows))


def open_id_store(config: RunConfig) -> SemanticIdStore:
    """Open the published versions next to a run's bundles."""
    return SemanticIdStore((config.release.bundles or config.workspace / "bundles") / FOLDER)


def publish_version(artefact: Path, store: SemanticIdStore) -> str | None:
    """Make the version of an artefact current in the store; return it, None without one.

    Where items were appended to it meanwhile, the store keeps their IDs.
    """
    version = read_version(artefact)
    if version is None:
        return None
    if not store.leads_from(version.ids.version):
        item_ids = read_item_ids(artefact / ITEM_IDS)
        store.publish(version.ids, version.quantizer, item_ids, version.origin)
    return version.ids.version
