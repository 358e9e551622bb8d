"""The only door to faiss, imported where it is first needed so that the package runs without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

RESCORED_PER_RESULT = 1.5
"""IVF-SQ8 re-scores this many candidates for each item it returns."""


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
