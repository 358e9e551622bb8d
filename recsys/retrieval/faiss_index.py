"""Approximate nearest items by FAISS: flat, HNSW or IVF with 8-bit codes; the only door to faiss.

Ids are item rows; row 0 (padding) is stored as zeros and never returned. All kinds maximise the
inner product. HNSW: Malkov and Yashunin, arXiv:1603.09320. IVF-SQ8 finds candidates by 8-bit
codes and re-scores them with half-precision copies, since 8 bits alone lose the last per cent of
recall however many lists are probed.

Axes: B queries, N item rows (row 0 included), D width, k list length.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.item_mask import ItemMask
from recsys.data.top_k import NO_ROW, TopK, no_items
from recsys.retrieval.exact import check_queries, exact_top_k
from recsys.retrieval.index_file import (
    IndexFileMeta,
    file_digest,
    read_verified_meta,
    replace_file,
    write_meta,
)

Kind = Literal["flat", "hnsw", "ivf_sq8"]
DEFAULT_EFFORT: dict[Kind, int] = {"flat": 1, "hnsw": 256, "ivf_sq8": 64}
MASKED_EXACT_MAX_ROWS: dict[Kind, int] = {"flat": 0, "hnsw": 50_000, "ivf_sq8": 10_000}
"""Below this the exact search is the faster one; HNSW also misses much of what a mask leaves."""
MAX_HNSW_EFFORT = 4096
RESCORED_PER_RESULT = 1.5
"""IVF-SQ8 re-scores so many candidates for each item it returns."""
_read_limits = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class FaissIndexConfig:
    """How an index is built; the defaults come from tests/benchmarks/benchmark_faiss_index.py."""

    kind: Kind | Literal["auto"] = "auto"
    flat_max_rows: int = 50_000
    """Up to so many item rows "auto" takes flat, beyond them IVF-SQ8. HNSW took longer than
    IVF-SQ8 to build and for a query of equal recall in every case measured, and loses more under
    masks, so it is taken only where it is asked for."""
    hnsw_neighbors: int = 32
    hnsw_build_effort: int = 100
    """Candidates kept while a node is linked (efConstruction)."""
    ivf_lists_per_sqrt_row: int = 4
    """Lists = this x sqrt(N), but at least 39 rows a list, which faiss's k-means asks for."""
    effort: int | None = None
    """Lists probed (IVF) or candidates kept (HNSW) by a search; None is the kind's default."""
    masked_exact_max_rows: int | None = None
    """Search exactly over the allowed rows where a mask leaves at most so many; None is the
    kind's default."""
    build_threads: int = 1
    """With 1, equal inputs give equal bytes on any number of cores."""
    seed: int = 0

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


class FaissIndex:
    """Item vectors ready to be searched; many threads may search, none while one adds."""

    def __init__(
        self,
        index: Any,
        kind: Kind,
        *,
        effort: int,
        masked_exact_max_rows: int,
        num_threads: int | None = None,
    ) -> None:
        """Wrap a filled faiss index; `build_index` and `FaissIndex.load` make them."""
        self._index = index
        self.kind: Kind = kind
        self.effort = effort
        """Lists probed (IVF) or candidates kept (HNSW): more is slower and finds more."""
        self.masked_exact_max_rows = masked_exact_max_rows
        self.num_threads = num_threads
        """Threads of one search; None is all cores, serving workers set 1."""

    @property
    def dim(self) -> int:
        return int(self._index.d)

    @property
    def num_item_rows(self) -> int:
        return int(self._index.ntotal)

    @property
    def max_effort(self) -> int:
        """Effort beyond which a search finds nothing more (IVF: all lists) or costs too much."""
        if self.kind == "ivf_sq8":
            return int(_lists_of(self._index).nlist)
        return min(MAX_HNSW_EFFORT, self.num_item_rows) if self.kind == "hnsw" else 1

    def search(self, queries: Tensor, k: int, mask: ItemMask | None = None) -> TopK:
        """Find about the k best items of each query, among those the mask allows.

        Within a list ties are ordered by item row; which of equal items at its end are found
        is the index's choice. A selective mask is answered exactly, and so is a query for which
        the index finds fewer items than the mask could give.

        Args:
            queries: [B, D], finite.
            k: List length; lists with fewer items end in row -1, score -inf.
            mask: Of this index's number of item rows; None allows all but row 0.

        Raises:
            ValueError: k < 1, another width or mask size, or a query that is not finite.
        """
        check_queries(queries, self.dim)
        lists = no_items(len(queries), k)
        num_allowed = self.num_item_rows - 1 if mask is None else self._count(mask)
        if mask is not None and num_allowed <= self.masked_exact_max_rows:
            return exact_top_k(queries.cpu(), self._vectors(), k, mask)
        if len(queries) == 0 or num_allowed == 0:
            return lists

        # Row 0 may come back where no mask forbids it, so one more is asked for.
        width = min(k + 1, self.num_item_rows)
        with _threads(self.num_threads):
            found_scores, found_rows = self._index.search(
                _as_float32(queries), width, params=self._parameters(width, num_allowed, mask)
            )
        rows = torch.from_numpy(found_rows)
        scores = torch.from_numpy(found_scores).masked_fill_(rows <= 0, -torch.inf)
        rows, order = rows.masked_fill_(rows <= 0, NO_ROW).sort(dim=1)
        scores, order = scores.gather(1, order).sort(dim=1, descending=True, stable=True)
        kept = min(k, width)
        lists.scores[:, :kept] = scores[:, :kept]
        lists.item_rows[:, :kept] = rows.gather(1, order)[:, :kept]

        short = (lists.item_rows != NO_ROW).sum(1) < min(k, num_allowed)
        if short.any():
            exact = exact_top_k(queries[short].cpu(), self._vectors(), k, mask)
            lists.scores[short], lists.item_rows[short] = exact.scores, exact.item_rows
        return lists

    def vectors(self, item_rows: Tensor) -> Tensor:
        """Read back item vectors, [n, D] float32; IVF-SQ8 keeps them in half precision."""
        return self._vectors()[item_rows].float()

    def add(self, vectors: Tensor) -> None:
        """Append rows N, N + 1, ... for new items, [n, D]; never while another thread searches.

        An IVF index keeps its lists, so build anew once the catalogue has grown by half.
        """
        _check_items(vectors, self.dim, first_row=self.num_item_rows)
        with _threads(1):
            self._index.add(_as_float32(vectors))

    def save(self, path: Path) -> str:
        """Write the index and its JSON description, both atomically; return the sha256."""
        faiss = _faiss()
        replace_file(path, lambda partial: faiss.write_index(self._index, str(partial)))
        digest = file_digest(path)
        meta = IndexFileMeta(
            kind=self.kind,
            dim=self.dim,
            num_item_rows=self.num_item_rows,
            effort=self.effort,
            masked_exact_max_rows=self.masked_exact_max_rows,
            num_bytes=path.stat().st_size,
            sha256=digest,
        )
        write_meta(path, meta)
        return digest

    @classmethod
    def load(
        cls, path: Path, *, sha256: str | None = None, num_threads: int | None = None
    ) -> FaissIndex:
        """Read an index that `save` wrote, after its digest and header are verified.

        Args:
            path: The index file; its JSON lies beside it.
            sha256: The digest a trusted manifest names; None trusts the JSON.
            num_threads: Threads of one search, None for all cores.

        Raises:
            ValueError: A part is missing, truncated, altered or not what its header claims.
        """
        meta = read_verified_meta(path, sha256)
        faiss = _faiss()
        with _read_limits:
            before = faiss.get_deserialization_vector_byte_limit()
            # No array in the file can be longer than the file.
            faiss.set_deserialization_vector_byte_limit(meta.num_bytes)
            faiss.set_deserialization_loop_limit(meta.num_bytes)
            try:
                index = faiss.read_index(str(path))
            except (RuntimeError, MemoryError) as error:
                raise ValueError(
                    f"refused {path}: faiss cannot read it ({error}); run the build_index stage "
                    "again"
                ) from error
            finally:
                faiss.set_deserialization_vector_byte_limit(before)
                faiss.set_deserialization_loop_limit(0)
        _check_parts(path, index, cast("Kind", meta.kind))
        return cls(
            index,
            cast("Kind", meta.kind),
            effort=meta.effort,
            masked_exact_max_rows=meta.masked_exact_max_rows,
            num_threads=num_threads,
        )

    def _count(self, mask: ItemMask) -> int:
        if mask.num_item_rows != self.num_item_rows:
            raise ValueError(
                f"the item mask covers {mask.num_item_rows} item rows, the index has "
                f"{self.num_item_rows}; build the mask from the same bundle"
            )
        return mask.count()

    def _parameters(self, width: int, num_allowed: int, mask: ItemMask | None) -> Any:
        """Search parameters; the effort grows as a mask thins out what is found."""
        faiss = _faiss()
        selector = None
        if mask is not None and num_allowed < self.num_item_rows - 1:
            selector = faiss.IDSelectorBitmap(mask.bytes)
        effort = min(self.max_effort, self.effort * (self.num_item_rows - 1) // num_allowed)
        if self.kind == "flat":
            return faiss.SearchParameters(sel=selector)
        if self.kind == "hnsw":
            return faiss.SearchParametersHNSW(efSearch=max(effort, width), sel=selector)
        lists = faiss.SearchParametersIVF(nprobe=effort, sel=selector)
        return faiss.IndexRefineSearchParameters(
            k_factor=RESCORED_PER_RESULT, base_index_params=lists
        )

    def _vectors(self) -> Tensor:
        """View the stored vectors without a copy, [N, D] float32 or float16; `add` ends it."""
        faiss = _faiss()
        shape = (self.num_item_rows, self.dim)
        if self.kind == "ivf_sq8":
            codes = faiss.downcast_index(self._index.refine_index).codes
            view = faiss.rev_swig_ptr(codes.data(), codes.size()).view(np.float16)
        else:
            flat = faiss.downcast_index(self._index.storage) if self.kind == "hnsw" else self._index
            view = faiss.rev_swig_ptr(flat.get_xb(), shape[0] * shape[1])
        return torch.from_numpy(view.reshape(shape))


def build_index(vectors: Tensor, config: FaissIndexConfig | None = None) -> FaissIndex:
    """Build an index over all item rows; equal vectors, config and seed give equal bytes.

    Args:
        vectors: [N, D] with N >= 2, finite; row 0 is padding and is not looked at.
        config: None takes the defaults.

    Raises:
        ValueError: No items, or a vector that is not finite.
    """
    config = config or FaissIndexConfig()
    if vectors.ndim != 2 or len(vectors) < 2 or vectors.shape[1] < 1:
        raise ValueError(
            f"vectors must be [N, D] with row 0 (padding) and at least one item, got "
            f"{tuple(vectors.shape)}"
        )
    _check_items(vectors[1:], vectors.shape[1], first_row=1)
    stored = _as_float32(vectors).copy()
    stored[0] = 0
    kind = config.kind_for(len(vectors))
    build = {"flat": _build_flat, "hnsw": _build_hnsw, "ivf_sq8": _build_ivf_sq8}[kind]
    with _threads(config.build_threads):
        built = build(stored, config)
    exact_max_rows = config.masked_exact_max_rows
    return FaissIndex(
        built,
        kind,
        effort=config.effort or DEFAULT_EFFORT[kind],
        masked_exact_max_rows=(
            MASKED_EXACT_MAX_ROWS[kind] if exact_max_rows is None else exact_max_rows
        ),
    )


def _build_flat(vectors: NDArray[np.float32], config: FaissIndexConfig) -> Any:
    index = _faiss().IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index


def _build_hnsw(vectors: NDArray[np.float32], config: FaissIndexConfig) -> Any:
    faiss = _faiss()
    index = faiss.IndexHNSWFlat(vectors.shape[1], config.hnsw_neighbors, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = config.hnsw_build_effort
    index.hnsw.rng = faiss.RandomGenerator(config.seed)
    index.add(vectors)
    return index


def _build_ivf_sq8(vectors: NDArray[np.float32], config: FaissIndexConfig) -> Any:
    faiss = _faiss()
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


def tune_effort(
    index: FaissIndex, queries: Tensor, items: Tensor, *, target: float = 0.99, k: int = 100
) -> float:
    """Raise the index's effort by doubling until its recall reaches the target.

    Args:
        index: Its ``effort`` is set to the smallest one tried that suffices, or to the largest
            there is.
        queries: [B, D], like those it will serve; a thousand are enough.
        items: The exact vectors, [N, D].

    Returns:
        The recall reached; compare it with the target.
    """
    truth = exact_top_k(queries, items, k)
    while True:
        recall = _overlap(index.search(queries, k), truth)
        if recall >= target or index.effort >= index.max_effort:
            return recall
        index.effort = min(2 * index.effort, index.max_effort)


def measure_recall(
    index: FaissIndex, queries: Tensor, items: Tensor, k: int = 100, mask: ItemMask | None = None
) -> float:
    """Share of the exact top k that the index finds, mean over queries [B, D].

    Items of equal score at the end of a list count as missed if the index prefers another.
    """
    return _overlap(index.search(queries, k, mask), exact_top_k(queries, items, k, mask))


def _overlap(found: TopK, truth: TopK) -> float:
    shared = [
        len(np.intersect1d(ours[ours != NO_ROW], theirs)) / max(1, int((theirs != NO_ROW).sum()))
        for ours, theirs in zip(found.item_rows.numpy(), truth.item_rows.numpy(), strict=True)
    ]
    return float(np.mean(shared))


def _check_parts(path: Path, index: Any, kind: Kind) -> None:
    """Refuse an index whose parts disagree; a search would read beyond the smaller one."""
    parts = [index]
    if kind == "hnsw":
        parts += [index.storage]
    elif kind == "ivf_sq8":
        parts += [index.base_index, index.refine_index]
    shapes = {(part.ntotal, part.d) for part in parts}
    if len(shapes) != 1:
        raise ValueError(
            f"refused {path}: its parts hold {sorted(shapes)} rows x width; run the build_index "
            "stage again"
        )


def _check_items(vectors: Tensor, dim: int, *, first_row: int) -> None:
    """Refuse item vectors that no index can hold.

    Raises:
        ValueError: Not [n, dim], not finite, or beyond the range of half precision.
    """
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise ValueError(f"item vectors must be [n, {dim}], got {tuple(vectors.shape)}")
    # NaN fails the comparison too.
    bad = ~(vectors.abs() < torch.finfo(torch.float16).max).all(dim=1)
    if bad.any():
        row = int(bad.nonzero()[0])
        raise ValueError(
            f"the vector of item row {row + first_row} holds NaN, infinity or a value beyond "
            "65504; check the item tower's inputs and weights"
        )


def _as_float32(vectors: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = vectors.detach().cpu().float().contiguous().numpy()
    return array


def _lists_of(index: Any) -> Any:
    return _faiss().downcast_index(index.base_index)


@contextmanager
def _threads(num_threads: int | None) -> Iterator[None]:
    """Let faiss take so many threads (None: as many as OpenMP has) and put the number back.

    torch may share the OpenMP runtime, and would train with that number afterwards.
    """
    faiss = _faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(num_threads or before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _faiss() -> Any:
    """Import faiss where it is first needed, so that the package runs without it."""
    import faiss

    return faiss
