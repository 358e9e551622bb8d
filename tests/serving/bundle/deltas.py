"""Deltas of made-up bundles: new items that are like items of the bundle."""

from collections.abc import Sequence
from pathlib import Path

import torch

from serving.bundle.delta import NewItem, write_delta
from serving.bundle.load import load_bundle
from serving.bundle.semantic_ids import NewIds


def append_like(
    bundles: Path,
    parent: str,
    items: Sequence[NewItem],
    like: Sequence[int],
    semantic_ids: NewIds | None = None,
) -> Path:
    """Append items with the content and the vectors of the items of some rows."""
    bundle = load_bundle(bundles / f"bundle-{parent}")
    assert bundle.retriever is not None
    rows = torch.tensor(like)
    return write_delta(
        bundles,
        parent,
        items,
        content=bundle.items.content[rows].numpy(),
        item_vectors=bundle.retriever.index.vectors(rows).numpy(),
        semantic_ids=semantic_ids,
    )
