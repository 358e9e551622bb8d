"""The only door to faiss, imported at its first use so that the package runs without it.

All kinds of index maximise the inner product. IVF-SQ8
finds candidates by 8-bit codes and re-scores them with half-precision copies, since 8 bits alone
lose the last per cent of recall, however many lists are probed.

Axes: N item rows (row 0 included), D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isqrt
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.bounds import check_bounds, check_choices

Kind = Literal["flat", "ivf_sq8"]
RESCORED_PER_RESULT = 1.5
"""IVF-SQ8 re-scores this many candidates for each item it returns."""


@dataclass(frozen=True, kw_only=True)
class FaissIndexConfig:
    """How an index is built.

    The defaults were measured by tests/benchmarks/results/retrieval/faiss_index.md.
    """

    kind: Literal["auto", "flat", "ivf_sq8"] = "auto"
    """Kind of the index; ``auto`` chooses by the number of items."""
    flat_max_rows: int = 50_000
    """Up to this many item rows "auto" takes flat, beyond them IVF-SQ8."""
    ivf_lists_per_sqrt_row: int = 4
    """Lists = this x sqrt(N), but at least 39 rows a list, which faiss's k-means wants."""
    effort: int | None = None
    """Lists probed by a search; None is the kind's default."""
    build_threads: int = 1
    """With 1, equal inputs give equal bytes on any number of cores."""
    seed: int = 0
    """Seed of the index while it is built."""

    def __post_init__(self) -> None:
        check_choices(self, kind=("auto", *get_args(Kind)))
        positive = ("ivf_lists_per_sqrt_row", "effort", "build_threads")
        check_bounds(self, **dict.fromkeys(positive, ">= 1"))

    def kind_for(self, num_item_rows: int) -> Kind:
        """Choose the kind for a catalogue of this size."""
        if self.kind != "auto":
            return self.kind
        return "flat" if num_item_rows <= self.flat_max_rows else "ivf_sq8"


def load_faiss() -> Any:
    """Import faiss, from faiss-cpu or faiss-gpu."""
    import faiss

    return faiss


def as_float32(vectors: Tensor) -> NDArray[np.float32]:
    """Bring vectors to where and what faiss reads."""
    array: NDArray[np.float32] = vectors.detach().cpu().float().contiguous().numpy()
    return array


@contextmanager
def faiss_threads(num_threads: int | None) -> Iterator[None]:
    """Set faiss's threads (None: as many as OpenMP has) and restore their number.

    torch may share the OpenMP runtime, and would train with that number afterwards.
    """
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(num_threads or before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def build_bare_index(vectors: NDArray[np.float32], kind: Kind, config: FaissIndexConfig) -> Any:
    """Build the faiss index of a kind over all rows, [N, D]."""
    build = {"flat": _build_flat, "ivf_sq8": _build_ivf_sq8}[kind]
    with faiss_threads(config.build_threads):
        return build(vectors, config)


def _build_flat(vectors: NDArray[np.float32], config: FaissIndexConfig) -> Any:
    index = load_faiss().IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index


def _build_ivf_sq8(vectors: NDArray[np.float32], config: FaissIndexConfig) -> Any:
    faiss = load_faiss()
    num_rows, dim = vectors.shape
    num_lists = max(1, min(config.ivf_lists_per_sqrt_row * isqrt(num_rows), (num_rows - 1) // 39))
    centroids = faiss.IndexFlatIP(dim)
    lists = faiss.IndexIVFScalarQuantizer(
        centroids, dim, num_lists, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    )
    lists.cp.seed = config.seed
    # 64 points a centroid and 10 rounds lose no measurable recall and train 4 times faster.
    lists.cp.max_points_per_centroid = 64
    lists.cp.min_points_per_centroid = 1
    lists.train(vectors[1:])
    copies = faiss.IndexScalarQuantizer(
        dim, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
    )
    index = faiss.IndexRefine(lists, copies)
    # The parts belong to the whole from here on, else Python frees them under it.
    for part, owner, flag in (
        (centroids, lists, "own_fields"),
        (lists, index, "own_fields"),
        (copies, index, "own_refine_index"),
    ):
        part.this.disown()
        setattr(owner, flag, True)
    index.add(vectors)
    return index
