"""The interface and the settings of indexes of item vectors; ``index.py`` makes them.

Apart from the indexes, so that what only searches one does not depend on how they are built.

Axes: B queries, D width, k list length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from recsys.data.item_mask import ItemMask
from recsys.data.top_k import OneList, TopK

Kind = Literal["flat", "hnsw", "ivf_sq8"]


@dataclass(frozen=True, kw_only=True)
class FaissIndexConfig:
    """How an index is built.

    The defaults were measured by tests/benchmarks/retrieval/benchmark_faiss_index.py.
    """

    kind: Kind | Literal["auto"] = "auto"
    """Kind of the index; ``auto`` chooses by the number of items."""
    flat_max_rows: int = 50_000
    """Up to this many item rows "auto" takes flat, beyond them IVF-SQ8. HNSW took longer than
    IVF-SQ8 to build and for a query of equal recall in every case measured, and loses more under
    masks, so it is taken only where it is requested."""
    hnsw_neighbors: int = 32
    """Links of a node of HNSW."""
    hnsw_build_effort: int = 100
    """Candidates kept while a node is linked (efConstruction)."""
    ivf_lists_per_sqrt_row: int = 4
    """Lists = this x sqrt(N), but at least 39 rows a list, which faiss's k-means wants."""
    effort: int | None = None
    """Lists probed (IVF) or candidates kept (HNSW) by a search; None is the kind's default."""
    masked_exact_max_rows: int | None = None
    """Search exactly over the allowed rows where a mask leaves at most this many; None is the
    kind's default."""
    build_threads: int = 1
    """With 1, equal inputs give equal bytes on any number of cores."""
    seed: int = 0
    """Seed of the index while it is built."""

    def __post_init__(self) -> None:
        if self.kind not in ("auto", *get_args(Kind)):
            raise ValueError(f"kind must be auto, {', '.join(get_args(Kind))}, got {self.kind!r}")
        positive = ("hnsw_neighbors", "hnsw_build_effort", "ivf_lists_per_sqrt_row", "effort")
        for name in (*positive, "build_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")

    def kind_for(self, num_item_rows: int) -> Kind:
        """Choose the kind for a catalogue of this size."""
        if self.kind != "auto":
            return self.kind
        return "flat" if num_item_rows <= self.flat_max_rows else "ivf_sq8"


class VectorIndex(Protocol):
    """Item vectors that are searched by inner product; many threads may search."""

    @property
    def dim(self) -> int: ...

    @property
    def num_item_rows(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def search(self, queries: Tensor, k: int, mask: ItemMask | None = None) -> TopK:
        """Find the k best items of each query [B, D] among those the mask allows, [B, k]."""
        ...

    def search_one(self, query: Tensor, k: int, mask: ItemMask) -> OneList:
        """Find the k best items of one query [D], which is on the host.

        Its product rounds otherwise than a batch's, so items whose scores differ by no more than
        rounding may be in another order.
        """
        ...
