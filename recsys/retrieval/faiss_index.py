"""Approximate nearest items by FAISS: flat or IVF with 8-bit codes, on the CPU.

Ids are item rows; row 0 (padding) is stored as zeros and never returned.

faiss trusts what it reads, so a file is refused here first: by its description, its length, its
header (which names the sizes that faiss would allocate) and its digest.

    items.faiss          faiss's own format
    items.faiss.json     IndexFileMeta, with a digest over itself

Axes: B queries, N item rows (row 0 included), D width, k list length.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import threading
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from recsys.data.durable import digest_of_file, digest_once, replace_file, write_durably
from recsys.data.top_k import NO_ROW, ItemMask, OneList, TopK, best_of_one, no_items
from recsys.kernels.one_query.op import nearest
from recsys.retrieval.exact import check_queries, exact_top_k
from recsys.retrieval.faiss_library import (
    RESCORED_PER_RESULT,
    FaissIndexConfig,
    Kind,
    as_float32,
    build_bare_index,
    faiss_threads,
    load_faiss,
)

FORMAT = 1
OLD = {"masked_exact_max_rows"}
"""Fields of 0.1.0, which are not read."""
MOST_HIDDEN = 128
"""Left-out items that are searched for too: a look at the mask for each vector costs 4% to 10%."""
FOURCC = {"flat": b"IxFI", "ivf_sq8": b"IxRF"}
# fourcc, width, rows, two unused words, is_trained, metric (0 is the inner product).
HEADER = struct.Struct("<4siqqqBi")


@dataclass(frozen=True, kw_only=True)
class IndexFileMeta:
    """Description of an index file, for a loader before it reads."""

    kind: str
    dim: int
    num_item_rows: int
    effort: int
    num_bytes: int
    sha256: str
    metric: str = "inner_product"
    format: int = FORMAT


def meta_path(path: Path) -> Path:
    """Return the JSON of an index file."""
    return path.with_name(path.name + ".json")


def write_meta(path: Path, meta: IndexFileMeta) -> None:
    """Write the description of the index file at ``path``."""
    document = {**asdict(meta), "meta_sha256": _digest(asdict(meta))}
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    write_durably(meta_path(path), text)


def read_verified_meta(path: Path, sha256: str | None) -> IndexFileMeta:
    """Read the description of an index file and hold the file against it."""
    for part in (path, meta_path(path)):
        if not part.is_file():
            raise ValueError(f"{part} is missing; run the build_index stage again")
    meta = _read_meta(meta_path(path))
    num_bytes = path.stat().st_size
    if num_bytes != meta.num_bytes:
        raise _refusal(path, f"it has {num_bytes} bytes, {meta.num_bytes} were written")
    check_header(path, meta)
    digest = digest_once(path)
    if digest != meta.sha256 or (sha256 is not None and digest != sha256):
        raise _refusal(path, f"its sha256 is {digest}, expected {sha256 or meta.sha256}")
    return meta


def check_header(path: Path, meta: IndexFileMeta) -> None:
    """Compare the sizes that the header claims with the description and the file's length."""
    with path.open("rb") as file:
        head = file.read(HEADER.size)
    if len(head) < HEADER.size:
        raise _refusal(path, f"it ends within its header, after {len(head)} bytes")
    fourcc, dim, num_rows, _, _, is_trained, metric = HEADER.unpack(head)
    if fourcc != FOURCC[meta.kind]:
        raise _refusal(
            path, f"its type is {fourcc!r}, a {meta.kind} index has {FOURCC[meta.kind]!r}"
        )
    if (dim, num_rows) != (meta.dim, meta.num_item_rows):
        raise _refusal(
            path,
            f"its header claims {num_rows} rows x {dim}, its description "
            f"{meta.num_item_rows} x {meta.dim}",
        )
    # Every kind stores at least two bytes (fp16) per coordinate.
    if dim < 1 or num_rows < 1 or 2 * dim * num_rows > meta.num_bytes:
        raise _refusal(path, f"{num_rows} rows x {dim} do not fit in {meta.num_bytes} bytes")
    if (is_trained, metric) != (1, 0):
        raise _refusal(path, f"is_trained is {is_trained} and metric {metric}, expected 1 and 0")


def _read_meta(path: Path) -> IndexFileMeta:
    try:
        document = json.loads(path.read_bytes())
        names = {field.name for field in fields(IndexFileMeta)}
        if not isinstance(document, dict) or set(document) - OLD != {*names, "meta_sha256"}:
            raise _refusal(path, f"it must hold {sorted(names)} and meta_sha256")
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _refusal(path, f"it is not JSON ({error})") from error
    expected = document.pop("meta_sha256")
    if _digest(document) != expected:
        raise _refusal(path, "its digest over itself does not match")
    wrong = [f.name for f in fields(IndexFileMeta) if type(document[f.name]).__name__ != f.type]
    if wrong:
        raise _refusal(path, f"{wrong} have values of another type")
    meta = IndexFileMeta(**{name: document[name] for name in names})
    if meta.effort < 1:
        raise _refusal(path, f"effort {meta.effort} must be >= 1")
    if meta.format != FORMAT or meta.kind not in FOURCC or meta.metric != "inner_product":
        raise _refusal(
            path,
            f"format {meta.format}, kind {meta.kind!r}, metric {meta.metric!r} are not readable "
            f"here (format {FORMAT}, kinds {sorted(FOURCC)}, inner_product)",
        )
    return meta


def _digest(document: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _refusal(path: Path, why: str) -> ValueError:
    return ValueError(f"refused {path}: {why}; fetch it again or run the build_index stage again")


DEFAULT_EFFORT: dict[Kind, int] = {"flat": 1, "ivf_sq8": 64}
MASKED_EXACT_MAX_ROWS: dict[Kind, int] = {"flat": 0, "ivf_sq8": 10_000}
"""Up to this many allowed rows a search compares all of them, which is faster."""
VISITS_PER_ROW = 12
"""Items of probed lists that a search passes by, or scores, in the time to fetch one and score it;
measured (tests/benchmarks/results/serving/filters.md)."""
MASK_POWER = 0.75
"""Effort grows with this power of how much a mask thins out. At 1M and 10M items 1 takes up to 3
times as long and finds .5% more of the best 100; 0.5 loses 3% under masks of few clusters."""
MORE = 8
"""Lists are multiplied by this for a query that found too few items."""
ROWS_AT_ONCE = 2048
CHECKED_AT_ONCE = 1 << 17
_read_limits = threading.Lock()


class FaissIndex:
    """Item vectors ready to be searched; many threads may search, none while one adds."""

    def __init__(
        self, index: Any, kind: Kind, *, effort: int, num_threads: int | None = None
    ) -> None:
        """Wrap a filled faiss index; `build_index` and `FaissIndex.load` make them."""
        self._index = index
        self.kind: Kind = kind
        self.effort = effort
        """Lists probed: more is slower and finds more."""
        self.masked_exact_max_rows = MASKED_EXACT_MAX_ROWS[kind]
        self.num_threads = num_threads
        """Threads of one search; None is all cores, serving workers set 1."""
        self._flat: Tensor | None = None
        """View of a flat index, for single queries."""

    @property
    def dim(self) -> int:
        return int(self._index.d)

    @property
    def num_item_rows(self) -> int:
        return int(self._index.ntotal)

    @cached_property
    def max_effort(self) -> int:
        """Effort beyond which a search finds nothing more: all lists."""
        if self.kind == "flat":
            return 1
        return int(load_faiss().downcast_index(self._index.base_index).nlist)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def compared(self) -> Tensor | None:
        """The vectors of a flat index, [N, D]: a query is compared with all of them."""
        if self._flat is None and self.kind == "flat":
            self._flat = self._vectors()
        return self._flat

    def search(
        self, queries: Tensor, k: int, mask: ItemMask | None = None, *, times: int = 1
    ) -> TopK:
        """Find about the k best items of each query, among those the mask allows.

        Within a list ties are ordered by item row; which of equal items at its end are found
        is the index's choice. A selective mask is answered exactly. A query for which the index
        finds fewer items than the mask could give is repeated in more of its lists, then exactly.

        Args:
            queries: [B, D], finite.
            times: Multiplies the effort.
        """
        check_queries(queries, self.dim)
        lists = no_items(len(queries), k)
        num_allowed = self.num_item_rows - 1 if mask is None else self._count(mask)
        if mask is not None and num_allowed <= self.masked_exact_max_rows:
            return exact_top_k(queries.cpu(), self._vectors(), k, mask)
        if len(queries) == 0 or num_allowed == 0:
            return lists

        # Row 0 may come back where no mask forbids it, so one more is requested.
        width = min(k + 1, self.num_item_rows)
        effort = min(self.max_effort, times * self._probed(num_allowed, MASK_POWER))
        scores, rows = self._best(queries, width, effort, mask)
        if len(queries) == 1:
            lists = _one_list(scores[0], rows[0], k)
        else:
            scores = scores.masked_fill_(rows <= 0, -torch.inf)
            rows, order = rows.masked_fill_(rows <= 0, NO_ROW).sort(dim=1)
            scores, order = scores.gather(1, order).sort(dim=1, descending=True, stable=True)
            kept = min(k, width)
            lists.scores[:, :kept] = scores[:, :kept]
            lists.item_rows[:, :kept] = rows.gather(1, order)[:, :kept]

        short = (lists.item_rows != NO_ROW).sum(1) < min(k, num_allowed)
        if short.any():
            left = queries[short.to(queries.device)]
            if effort < self.max_effort:
                found = self.search(left, k, mask, times=MORE * times)
            else:
                found = exact_top_k(left.cpu(), self._vectors(), k, mask)
            lists.scores[short], lists.item_rows[short] = found.scores, found.item_rows
        return lists

    def search_one(self, query: Tensor, k: int, mask: ItemMask) -> OneList:
        """Find about the k best items of one query [D].

        A flat index on the host is scanned, and so are the items that a mask allows where that
        takes less time than a search among them.
        """
        scanned = self.kind == "flat"
        if not scanned and not self._few_enough(num_allowed := self._count(mask)):
            hidden = self.num_item_rows - 1 - num_allowed
            if hidden > MOST_HIDDEN:
                return OneList.of(self.search(query[None], k, mask))
            wider = OneList.of(self.search(query[None], k + hidden))
            shown = mask.allows(wider.item_rows)
            return OneList(wider.scores[shown][:k], wider.item_rows[shown][:k])
        flat = self.compared
        if flat is not None and (found := nearest(flat, query, mask, k)) is not None:
            return found
        if not math.isfinite(float(query.sum())):
            check_queries(query[None], self.dim)
        if flat is None:
            return self._best_allowed(query, k, mask)
        scores = torch.mv(flat, query)
        mask.blank(scores.numpy())
        return best_of_one(scores, k)

    def _few_enough(self, num_allowed: int) -> bool:
        """Return whether comparing all allowed items is faster than searching among them."""
        share = self._probed(max(1, num_allowed)) / self.max_effort
        return num_allowed * VISITS_PER_ROW <= share * self.num_item_rows

    def _best_allowed(self, query: Tensor, k: int, mask: ItemMask) -> OneList:
        """Compare all allowed items, a cache's worth at a time."""
        rows, vectors = mask.rows(), self._vectors()
        scores = torch.empty(len(rows))
        for begin in range(0, len(rows), ROWS_AT_ONCE):
            part = torch.from_numpy(rows[begin : begin + ROWS_AT_ONCE])
            found = vectors.index_select(0, part).float()
            torch.mv(found, query, out=scores[begin : begin + ROWS_AT_ONCE])
        return best_of_one(scores, k, rows)

    def vectors(self, item_rows: Tensor) -> Tensor:
        """Read back item vectors, [n, D] float32; IVF-SQ8 keeps them in half precision."""
        return self._vectors()[item_rows].float()

    def copy(self) -> FaissIndex:
        """Copy the index on the CPU, so that rows can be added while others search this one."""
        return FaissIndex(
            load_faiss().clone_index(self._index),
            self.kind,
            effort=self.effort,
            num_threads=self.num_threads,
        )

    def add(self, vectors: Tensor) -> None:
        """Append rows N, N + 1, ... for new items, [n, D]; never while another thread searches.

        An IVF index keeps its lists, so build it again once the catalogue has grown by half.
        """
        _check_items(vectors, self.dim, first_row=self.num_item_rows)
        self._flat = None
        with faiss_threads(1):
            self._index.add(as_float32(vectors))

    def save(self, path: Path) -> str:
        """Write the index and its JSON description, both atomically; return the sha256."""
        faiss = load_faiss()
        replace_file(path, lambda partial: faiss.write_index(self._index, str(partial)))
        digest = digest_of_file(path)
        meta = IndexFileMeta(
            kind=self.kind,
            dim=self.dim,
            num_item_rows=self.num_item_rows,
            effort=self.effort,
            num_bytes=path.stat().st_size,
            sha256=digest,
        )
        write_meta(path, meta)
        return digest

    @classmethod
    def load(
        cls, path: Path, *, sha256: str | None = None, num_threads: int | None = None
    ) -> FaissIndex:
        """Read an index that `save` wrote, after its digest and header are verified."""
        meta = read_verified_meta(path, sha256)
        faiss = load_faiss()
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
        return cls(index, cast("Kind", meta.kind), effort=meta.effort, num_threads=num_threads)

    def _best(
        self, queries: Tensor, width: int, effort: int, mask: ItemMask | None
    ) -> tuple[Tensor, Tensor]:
        """Search faiss for scores and rows, [B, width] each."""
        parameters = self._parameters(effort, mask)
        with faiss_threads(self.num_threads):
            scores, rows = self._index.search(as_float32(queries), width, params=parameters)
        return torch.from_numpy(scores), torch.from_numpy(rows)

    def _count(self, mask: ItemMask) -> int:
        if mask.num_item_rows != self.num_item_rows:
            raise ValueError(
                f"the item mask covers {mask.num_item_rows} item rows, the index has "
                f"{self.num_item_rows}; build the mask from the same bundle"
            )
        return mask.count()

    def _parameters(self, effort: int, mask: ItemMask | None) -> Any:
        """Search parameters."""
        faiss = load_faiss()
        selector = None
        if mask is not None and mask.count() < self.num_item_rows - 1:
            selector = faiss.IDSelectorBitmap(mask.bytes)
        if self.kind == "flat":
            return faiss.SearchParameters(sel=selector)
        lists = faiss.SearchParametersIVF(nprobe=effort, sel=selector)
        return faiss.IndexRefineSearchParameters(
            k_factor=RESCORED_PER_RESULT, base_index_params=lists
        )

    def _probed(self, num_allowed: int, power: float = 1.0) -> int:
        """Grow the effort as a mask thins out the hits."""
        thinner = (self.num_item_rows - 1) / num_allowed
        return min(self.max_effort, int(self.effort * thinner**power))

    def _vectors(self) -> Tensor:
        """View the stored vectors without a copy, [N, D] float32 or float16; `add` ends it."""
        faiss = load_faiss()
        shape = (self.num_item_rows, self.dim)
        if self.kind == "ivf_sq8":
            codes = faiss.downcast_index(self._index.refine_index).codes
            view = faiss.rev_swig_ptr(codes.data(), codes.size()).view(np.float16)
        else:
            view = faiss.rev_swig_ptr(self._index.get_xb(), shape[0] * shape[1])
        return torch.from_numpy(view.reshape(shape))


def build_index(vectors: Tensor, config: FaissIndexConfig | None = None) -> FaissIndex:
    """Build an index over all item rows; equal vectors, config and seed give equal bytes.

    Args:
        vectors: [N, D] with N >= 2, finite; row 0 is padding and is not looked at.
    """
    config = config or FaissIndexConfig()
    if vectors.ndim != 2 or len(vectors) < 2 or vectors.shape[1] < 1:
        raise ValueError(
            f"vectors must be [N, D] with row 0 (padding) and at least one item, got "
            f"{tuple(vectors.shape)}"
        )
    _check_items(vectors[1:], vectors.shape[1], first_row=1)
    stored = as_float32(vectors)
    if stored[0].any():
        # Copied only here: ten million vectors take gigabytes.
        stored = stored.copy()
        stored[0] = 0
    kind = config.kind_for(len(vectors))
    built = build_bare_index(stored, kind, config)
    return FaissIndex(built, kind, effort=config.effort or DEFAULT_EFFORT[kind])


def _check_parts(path: Path, index: Any, kind: Kind) -> None:
    """Refuse an index whose parts disagree; a search would read beyond the smaller one."""
    parts = [index]
    if kind == "ivf_sq8":
        parts += [index.base_index, index.refine_index]
    shapes = {(part.ntotal, part.d) for part in parts}
    if len(shapes) != 1:
        raise ValueError(
            f"refused {path}: its parts hold {sorted(shapes)} rows x width; run the build_index "
            "stage again"
        )


def _check_items(vectors: Tensor, dim: int, *, first_row: int) -> None:
    """Refuse item vectors that no index can hold."""
    for begin in range(0, len(vectors), CHECKED_AT_ONCE):
        part = vectors[begin : begin + CHECKED_AT_ONCE]
        # NaN fails the comparison too.
        bad = ~(part.abs() < torch.finfo(torch.float16).max).all(dim=1)
        if bad.any():
            row = int(bad.nonzero()[0]) + begin
            raise ValueError(
                f"the vector of item row {row + first_row} holds NaN, infinity or a value beyond "
                "65504; check the item tower's inputs and weights"
            )


def _one_list(scores: Tensor, rows: Tensor, k: int) -> TopK:
    """Order the hits of one query, best first and equal ones by row, [1, k]."""
    found, known = rows.numpy(), scores.numpy()
    is_item = found > 0
    found, known = found[is_item], known[is_item]
    order = np.lexsort((found, -known))[:k]
    lists = no_items(1, k)
    lists.scores[0, : len(order)] = torch.from_numpy(known[order])
    lists.item_rows[0, : len(order)] = torch.from_numpy(found[order])
    return lists
