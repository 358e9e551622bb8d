"""Difference between two versions of the semantic IDs: the rows that change, not the catalogue.

Axes: N item rows, M changed rows, L levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from recsys.semantic_ids.codes import NO_CODE, SemanticIds
from recsys.semantic_ids.tensor_file import read_tensors, write_tensors

FILE_NAME = "semantic_ids_delta"


@dataclass(frozen=True, kw_only=True, eq=False)
class VersionDelta:
    """Changes from the version ``parent`` to ``version``."""

    parent: str
    version: str
    level_sizes: tuple[int, ...]
    quantizer_digest: str
    num_item_rows: int
    declared_parent: str | None
    """The parent that ``version`` itself names; another one where distant versions are compared."""
    added: Tensor
    """Rows that get an ID, [A] int64, ascending."""
    moved: Tensor
    """Rows whose ID becomes another, [B] int64; none after an append."""
    retired: Tensor
    """Rows that lose their ID, [C] int64."""
    codes: Tensor
    """New codes of ``added`` and then of ``moved``, [A + B, L] int32."""

    def save(self, directory: Path) -> None:
        description = {
            "kind": FILE_NAME,
            "parent": self.parent,
            "version": self.version,
            "level_sizes": list(self.level_sizes),
            "quantizer_digest": self.quantizer_digest,
            "num_item_rows": self.num_item_rows,
            "declared_parent": self.declared_parent,
        }
        tensors = {name: getattr(self, name) for name in ("added", "moved", "retired", "codes")}
        write_tensors(directory, FILE_NAME, tensors, description)

    @classmethod
    def load(cls, directory: Path) -> VersionDelta:
        """Read back; raises a ValueError where the files are damaged or of another kind."""
        tensors, description = read_tensors(directory, FILE_NAME, FILE_NAME)
        return cls(
            parent=description["parent"],
            version=description["version"],
            level_sizes=tuple(description["level_sizes"]),
            quantizer_digest=description["quantizer_digest"],
            num_item_rows=description["num_item_rows"],
            declared_parent=description["declared_parent"],
            **{name: tensors[name] for name in ("added", "moved", "retired", "codes")},
        )


def changed_rows(before: SemanticIds, after: SemanticIds) -> dict[str, Tensor]:
    """Find the rows that are added, moved, retired and kept, each [M] int64, ascending.

    Versions of other levels or fewer rows can be compared too.
    """
    size = max(before.num_item_rows, after.num_item_rows)
    width = max(before.num_levels, after.num_levels)
    old, new = (_padded(ids, size, width) for ids in (before, after))
    had, has = old[:, 0] != NO_CODE, new[:, 0] != NO_CODE
    differs = (old != new).any(1)
    kinds = {
        "added": ~had & has,
        "moved": had & has & differs,
        "retired": had & ~has,
        "kept": had & has & ~differs,
    }
    return {name: found.nonzero().flatten() for name, found in kinds.items()}


def _padded(ids: SemanticIds, num_rows: int, num_levels: int) -> Tensor:
    codes = torch.full((num_rows, num_levels), NO_CODE, dtype=torch.int32)
    codes[: ids.num_item_rows, : ids.num_levels] = ids.codes
    return codes


def diff(parent: SemanticIds, child: SemanticIds) -> VersionDelta:
    """Find what ``child`` adds, moves and retires."""
    if parent.num_levels != child.num_levels or child.num_item_rows < parent.num_item_rows:
        raise ValueError(
            f"version {child.version} has {child.num_item_rows} rows x {child.num_levels} levels, "
            f"version {parent.version} {parent.num_item_rows} x {parent.num_levels}; a delta needs "
            "the same levels and as many rows or more"
        )
    rows = changed_rows(parent, child)
    return VersionDelta(
        parent=parent.version,
        version=child.version,
        level_sizes=child.level_sizes,
        quantizer_digest=child.quantizer_digest,
        num_item_rows=child.num_item_rows,
        declared_parent=child.parent,
        added=rows["added"],
        moved=rows["moved"],
        retired=rows["retired"],
        codes=child.codes[torch.cat([rows["added"], rows["moved"]])],
    )
