"""The items nearest to one, by each source that a run keeps vectors or weights of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from pipelines.dashboard.data.items import Catalogue
from pipelines.pages.document import Entry, ItemList, Link
from recsys.models.names import EASE, ITEM_KNN, ITEM_TO_ITEM

NEAREST = 10
VECTORS = {
    "content": ("embed_items/content.npy", "cosine of the text's vectors"),
    "two-tower": ("build_index/item_vectors.npy", "cosine of the item tower's vectors"),
}
WEIGHTS = {
    ITEM_TO_ITEM.label: (ITEM_TO_ITEM.name, "weight by what follows it in histories"),
    ITEM_KNN.label: (ITEM_KNN.name, "weight by users in common"),
    EASE.label: (EASE.name, "linear weight"),
}
WEIGHTS_FILE = "weights.safetensors"


def nearest(path: Path, run_key: str, row: int, catalogue: Catalogue) -> list[ItemList]:
    """List the nearest items by each source.

    Args:
        path: Workspace.
        run_key: Of the run, for links.
        row: Of the item.
        catalogue: Of the run.
    """
    found = []
    for name, (file, words) in VECTORS.items():
        if (path / file).exists():
            scored = by_vectors(path / file, row)
            found.append(_list(name, words, scored, run_key, catalogue))
    for name, (model, words) in WEIGHTS.items():
        file_path = path / "refit" / model / WEIGHTS_FILE
        if file_path.exists():
            scored = by_weights(file_path, row)
            found.append(_list(name, words, scored, run_key, catalogue))
    return found


def by_vectors(path: Path, row: int) -> list[tuple[int, float]]:
    """Rank items by cosine, best first; nothing where the item has no vector."""
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return []
    if vectors.ndim != 2 or not 0 < row < len(vectors) or not np.any(vectors[row]):
        return []
    query = np.asarray(vectors[row], np.float32)
    scores = np.asarray(vectors, np.float32) @ query
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = np.where(lengths > 0, scores / lengths, -np.inf)
    cosines[[0, row]] = -np.inf
    best = np.argsort(-cosines, kind="stable")[:NEAREST]
    return [(int(one), float(cosines[one])) for one in best if np.isfinite(cosines[one])]


def by_weights(path: Path, row: int) -> list[tuple[int, float]]:
    """Read an item's strongest weights, best first."""
    try:
        with safe_open(path, "np") as file:
            offsets = file.get_tensor("offsets")
            if not 0 < row < len(offsets) - 1:
                return []
            part = slice(int(offsets[row]), int(offsets[row + 1]))
            if part.start == part.stop:
                return []
            rows = file.get_slice("rows")[part]
            weights = file.get_slice("weights")[part]
    except (OSError, ValueError, SafetensorError):
        return []
    order = np.argsort(-weights, kind="stable")
    ranked = [(int(rows[one]), float(weights[one])) for one in order if rows[one] != row]
    return ranked[:NEAREST]


def _list(
    name: str, words: str, scored: list[tuple[int, float]], run_key: str, catalogue: Catalogue
) -> ItemList:
    entries = [
        Entry(
            item_id=catalogue.item_id(row),
            title=catalogue.title(row),
            note=f"{score:.3f} \u00b7 {catalogue.note(row)}".strip(" \u00b7"),
            link=Link(
                label="about this item",
                page="items",
                parameters={"run": run_key, "item": catalogue.item_id(row)},
            ),
        )
        for row, score in scored
    ]
    return ItemList(title=name, note=words, entries=entries, empty="it has none")
