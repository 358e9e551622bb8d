"""Rebuild a version of semantic IDs from its delta, against which deltas are tested."""

from __future__ import annotations

import torch

from recsys.semantic_ids.codes import NO_CODE, SemanticIds
from recsys.semantic_ids.delta import VersionDelta


def apply(parent: SemanticIds, delta: VersionDelta) -> SemanticIds:
    """Rebuild the version that a delta leads to.

    Raises:
        ValueError: The delta was made for another version, or does not lead to what it says.
    """
    if parent.version != delta.parent:
        raise ValueError(
            f"the delta to {delta.version} was made for semantic IDs {delta.parent}, these are "
            f"{parent.version}; apply the deltas in between first, or load the whole version"
        )
    codes = torch.full(
        (delta.num_item_rows, len(delta.level_sizes)), NO_CODE, dtype=parent.codes.dtype
    )
    codes[: parent.num_item_rows] = parent.codes
    codes[delta.retired] = NO_CODE
    codes[torch.cat([delta.added, delta.moved])] = delta.codes
    child = SemanticIds(
        codes=codes,
        level_sizes=delta.level_sizes,
        quantizer_digest=delta.quantizer_digest,
        parent=delta.declared_parent,
    )
    if child.version != delta.version:
        raise ValueError(
            f"the delta says it leads to semantic IDs {delta.version}, it leads to "
            f"{child.version}; fetch it again"
        )
    return child
