"""Next versions of published semantic IDs: append items, align a refit.

``append`` never moves a published ID. A refit does; ``align`` renames its codes by
optimal matching, level by level, so that models trained on the old IDs still fit.

Axes: N item rows, M items, L levels, K codes of a level, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recsys.semantic_ids.codes import NO_CODE, SemanticIds
from recsys.semantic_ids.collisions import resolve_collisions
from recsys.semantic_ids.rq_kmeans import ResidualKMeans


def append(
    ids: SemanticIds,
    quantizer: ResidualKMeans,
    vectors: Tensor,
    *,
    item_rows: Tensor | None = None,
    reserved: Tensor | None = None,
) -> SemanticIds:
    """Return IDs to new items; no other ID changes.

    Args:
        vectors: Content of the new items, [M, D].
        item_rows: Their rows, [M]; None means those after the last.
        reserved: IDs that are not given, those of items elsewhere, [R, L].
    """
    if ids.num_levels != len(quantizer.level_sizes):
        raise ValueError(
            f"semantic IDs {ids.version} have a level that numbers items of equal codes; this "
            "version does not append to it, fit them again"
        )
    if quantizer.digest != ids.quantizer_digest:
        raise ValueError(
            f"semantic IDs {ids.version} were made by quantiser {ids.quantizer_digest}, this is "
            f"{quantizer.digest}; append with the one they were made by, or align a refit"
        )
    rows = _new_rows(ids, len(vectors), item_rows)
    taken = ids.codes[ids.item_rows]
    if reserved is not None:
        taken = torch.unique(torch.cat([taken, reserved.to(taken)]), dim=0)
    encoded = quantizer.encode(vectors).to(taken.device)
    unique = resolve_collisions(quantizer, vectors, encoded, taken=taken)
    return ids.updated(rows, unique.codes)


def _new_rows(ids: SemanticIds, count: int, item_rows: Tensor | None) -> Tensor:
    if item_rows is None:
        return torch.arange(ids.num_item_rows, ids.num_item_rows + count)
    rows = item_rows.cpu().long()
    published = rows[torch.isin(rows, ids.item_rows)]
    if len(published):
        raise ValueError(
            f"item row {int(published[0])} has the ID {ids.text(int(published[0]))} already, and "
            "a published ID never moves; append only items without one"
        )
    return rows


@dataclass(frozen=True, kw_only=True)
class KeptShares:
    """Shares of codes that a new version keeps, over the items that both versions have."""

    num_items: int
    full: float
    """Share of items whose whole ID is the same; 1 where no item is in both."""
    per_level: tuple[float, ...]
    """Share of items with the same code at a level, regardless of the levels before."""
    per_prefix: tuple[float, ...]
    """Share of items with the same codes up to a level."""


def kept_shares(new: SemanticIds, old: SemanticIds) -> KeptShares:
    """Compare two versions with the same levels, item by item."""
    before, after = _shared_codes(new, old)
    same = before == after  # [M, L]
    prefix = same.int().cumprod(1)
    if len(same) == 0:
        same, prefix = torch.ones(1, new.num_levels), torch.ones(1, new.num_levels)
    return KeptShares(
        num_items=len(before),
        full=float(prefix[:, -1].double().mean()),
        per_level=tuple(same.double().mean(0).tolist()),
        per_prefix=tuple(prefix.double().mean(0).tolist()),
    )


def _shared_codes(new: SemanticIds, old: SemanticIds) -> tuple[Tensor, Tensor]:
    """Return the old and the new codes of the items in both, [M, L] each."""
    if new.level_sizes != old.level_sizes:
        raise ValueError(
            f"version {new.version} has levels {new.level_sizes}, version {old.version} "
            f"{old.level_sizes}; IDs of other levels cannot be aligned or compared"
        )
    rows = old.item_rows[old.item_rows < new.num_item_rows]
    rows = rows[new.codes[rows, 0] != NO_CODE]
    return old.codes[rows], new.codes[rows]


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """A refit in the vocabulary of the previous version."""

    ids: SemanticIds
    quantizer: ResidualKMeans
    """The refit with its codes renamed, which made ``ids``."""
    before: KeptShares
    kept: KeptShares


def align(new: SemanticIds, quantizer: ResidualKMeans, old: SemanticIds) -> Alignment:
    """Rename the codes of a refit so that as many items as possible keep their old ID.

    Each level is an optimal matching of new codes to old ones. An item counts fully where all
    levels before match, and as a tie-break elsewhere.
    """
    before, after = _shared_codes(new, old)
    kept_so_far = torch.ones(len(before), dtype=torch.bool)
    codes = new.codes.clone()
    has_id = new.item_rows
    renamings = []
    for level, size in enumerate(quantizer.level_sizes):
        renaming = _match_level(before[:, level], after[:, level], kept_so_far, size)
        kept_so_far &= renaming[after[:, level].long()] == before[:, level]
        codes[has_id, level] = renaming[codes[has_id, level].long()].int()
        renamings.append(renaming)
    renamed = quantizer.relabelled(renamings)
    ids = SemanticIds(
        codes=codes,
        level_sizes=new.level_sizes,
        quantizer_digest=renamed.digest,
        parent=old.version,
    )
    return Alignment(
        ids=ids, quantizer=renamed, before=kept_shares(new, old), kept=kept_shares(ids, old)
    )


def _match_level(before: Tensor, after: Tensor, counts: Tensor, size: int) -> Tensor:
    """Match new codes to old ones, [K] int64; items with ``counts`` [M] count fully."""
    from scipy.optimize import linear_sum_assignment

    cell = after.long() * size + before.long()
    everyone = torch.bincount(cell, minlength=size * size)
    fully = torch.bincount(cell[counts], minlength=size * size)
    gain = fully.double() + everyone.double() / (len(before) + 1)
    # An unused code keeps its own name where that costs nothing.
    own_name = torch.eye(size, dtype=torch.float64) / (2 * size * (len(before) + 1))
    gain = gain.view(size, size) + own_name
    return torch.from_numpy(linear_sum_assignment(gain.numpy(), maximize=True)[1])
