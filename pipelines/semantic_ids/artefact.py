"""TODO-DOC."""

from __future__ import annotations

import json
from pathlib import Path

from pipelines.semantic_ids.store import Published
from recsys.semantic_ids.codes import SemanticIds
from recsys.semantic_ids.quantizers import load_quantizer

REPORT = "semantic_ids_report.json"


ID_ROWS = "id_rows.npy"


ORDERS = "orders"


def read_version(artefact: Path) -> Published | None:
    """Read the version of an artefact; None where items have no IDs.

    Raises:
        ValueError: A part of it is damaged or of another version.
    """
    report = json.loads((artefact / REPORT).read_text(encoding="utf-8"))
    if report["method"] == "none":
        return None
    return Published(
        ids=SemanticIds.load(artefact, report["version"]),
        quantizer=load_quantizer(artefact / QUANTIZER),
        origin=report["origin"],
    )


QUANTIZER = "quantizer"
