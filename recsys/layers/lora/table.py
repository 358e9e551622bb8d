"""Low-rank correction of a domain's rows of an embedding table.

A row e_i of a table becomes

    e_i + (alpha / rank) b_i A        A [r, D], b_i [r] of its own, all b start at zero

so a domain's items move within r shared directions, with r parameters an item instead of D. Rows of
other domains are not corrected and have no parameters.

Axes: R rows of a lookup, K corrected rows, N rows of the table, D width, r rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.data.batch import Jagged
from recsys.layers.embedding.collection import EmbeddingBags


class LoraTable(NamedTuple):
    """One table of a model."""

    layer: EmbeddingBags
    parameter: str
    """Its weight in the model, ``<layer>.collection.embedding_bags.<table>.weight``."""
    features: tuple[str, ...]

    @property
    def weight(self) -> nn.Parameter:
        return self.layer.weight(self.parameter.split(".")[-2])


def find_tables(base: nn.Module) -> dict[str, LoraTable]:
    """Find the embedding tables of a model, by their names."""
    return {
        table.name: LoraTable(
            layer, f"{path}.collection.embedding_bags.{table.name}.weight", tuple(table.features)
        )
        for path, layer in base.named_modules()
        if isinstance(layer, EmbeddingBags)
        for table in layer.tables.values()
    }


def targeted_tables(base: nn.Module, names: tuple[str, ...]) -> dict[str, LoraTable]:
    """Select tables by name."""
    there = find_tables(base)
    for name in names:
        if name not in there:
            raise ValueError(
                f"{type(base).__name__} has no embedding table {name!r}; it has "
                f"{', '.join(sorted(there)) or 'none'}"
            )
        if there[name].layer.tables[name].pooling != "sum":
            raise ValueError(f"table {name!r} is pooled by a mean; only summed rows are corrected")
    return {name: there[name] for name in names}


def checked_rows(name: str, table: LoraTable, rows: Mapping[str, Tensor]) -> Tensor:
    """Sort the rows of a table that an adapter corrects, [K]."""
    own = torch.unique(rows[name]) if name in rows else torch.empty(0, dtype=torch.int64)
    num_rows = len(table.weight)
    if len(own) == 0 or int(own[0]) < 1 or int(own[-1]) >= num_rows:
        raise ValueError(
            f"an adapter of table {name!r} needs rows of the domain in [1, {num_rows}), got "
            f"{len(own)}" + (f" in [{int(own[0])}, {int(own[-1])}]" if len(own) else "")
        )
    return own


class LowRankRows(nn.Module):
    """The correction of some rows of one table."""

    def __init__(self, table: LoraTable, rows: Tensor, rank: int) -> None:
        """Create a correction without effect.

        Args:
            rows: Ascending, none 0, [K].
        """
        super().__init__()
        num_rows, dim = table.weight.shape
        device = table.weight.device
        self.a = nn.Parameter(torch.empty(rank, dim, device=device))
        self.b = nn.Parameter(torch.zeros(len(rows), rank, device=device))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))
        place = torch.full((num_rows,), len(rows))
        place[rows.cpu()] = torch.arange(len(rows))
        self.rows: Tensor
        self.place: Tensor
        # Derived from the domain, so not part of checkpoints.
        self.register_buffer("rows", rows.to(device), persistent=False)
        self.register_buffer("place", place.to(device), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Correct looked-up rows [R] -> [R, D], before the scale; others' corrections are zero."""
        return functional.embedding(self.place[rows], self._coefficients()) @ self.a

    def pooled(self, values: Jagged) -> Tensor:
        """Correct a feature's summed rows, [B, D], before the scale."""
        summed = functional.embedding_bag(
            self.place[values.values],
            self._coefficients(),
            values.offsets,
            mode="sum",
            per_sample_weights=values.weights,
            include_last_offset=True,
        )
        corrected: Tensor = summed @ self.a
        return corrected

    def _coefficients(self) -> Tensor:
        """Put zeros below b for rows that are not corrected, [K + 1, r]."""
        return functional.pad(self.b, (0, 0, 0, 1))

    def whole_b(self) -> Tensor:
        """Scatter b to the whole table, 0 for other rows, [N, r]."""
        whole = self.b.new_zeros(len(self.place), self.b.shape[1])
        return whole.index_copy(0, self.rows, self.b.detach())
