"""Read the artefact of build_semantic_ids, and publish its version."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipelines.config.run import RunConfig
from pipelines.semantic_ids.store import (
    FOLDER,
    ITEM_IDS,
    SemanticIdStore,
    SemanticIdVersion,
    read_item_ids,
)
from recsys.semantic_ids.codes import ItemCodes, SemanticIds
from recsys.semantic_ids.collisions import (
    item_rows_with_content,
)
from recsys.semantic_ids.rq_kmeans import ResidualKMeans
from recsys.semantic_ids.tensor_file import digest_of

REPORT = "semantic_ids_report.json"
ID_ROWS = "id_rows.npy"
ORDERS = "orders"
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


def read_item_codes(artefact: Path, order: str | None = None) -> ItemCodes:
    """Read the semantic IDs by item row.

    Args:
        order: Of tied times that is measured; None and the released order have the published IDs.
    """
    version = read_version(artefact)
    if version is None:
        raise ValueError(
            "there are no semantic IDs to generate: no item has content, or "
            'semantic_ids.method = "none". Give items text, or set '
            "generative_training.enabled = false"
        )
    if order is not None and (artefact / ORDERS / order).exists():
        ids = SemanticIds.load(artefact / ORDERS / order)
        return ids.by_item_row(torch.arange(ids.num_item_rows))
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


@dataclass(frozen=True, kw_only=True)
class Content:
    """Content and behaviour that semantic IDs are made from."""

    item_ids: Sequence[str]
    """Ids of item rows 1 .. N - 1."""
    vectors: Tensor
    """[N, D]; a zero row has no content."""
    encoder: str
    """Identity of the vectors."""
    behaviour: Tensor | None = None
    """Item vectors of a sequence model, [N, D'], where IDs are made from them."""

    def is_known(self) -> Tensor:
        """Return which item rows have content, [N] bool."""
        return item_rows_with_content(self.vectors)

    def origin(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Describe what a quantiser is fitted on."""
        made = self._identity(settings)
        if self.behaviour is not None:
            digest = digest_of({}, {"item_vectors": self.behaviour})
            made["behaviour"] = {"dim": self.behaviour.shape[1], "item_vectors": digest}
        return made

    def extends(self, origin: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
        """Return True if published IDs of this origin are appended to.

        Behaviour does not count: its vectors change with every training.
        """
        identity = self._identity(settings)
        known = {name: origin.get(name) for name in identity}
        # Settings that were removed since then count for nothing.
        published = known["settings"] or {}
        known["settings"] = {name: published[name] for name in settings if name in published}
        return known == identity

    def _identity(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        dim = self.vectors.shape[1]
        return {"encoder": self.encoder, "dim": dim, "settings": dict(settings)}
