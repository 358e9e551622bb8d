"""Lists and vectors of one query by compiled functions, a call each.

Every function returns None if the library is not loaded, or if an argument has to be refused: its
caller then goes the way of numpy and torch, which computes the same up to rounding and says what is
wrong.

Axes: N item rows, D width, M events of a history, H heads, F inner width, S sources, k list length.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.top_k import ItemMask, OneList, memory_address
from recsys.kernels.choice import is_on
from recsys.kernels.one_query.library import NAME, load_library

Rows = NDArray[np.int64]
Floats = NDArray[np.float32]
Field: TypeAlias = float | Tensor | NDArray[Any] | tuple[Tensor, ...] | None
POINTER, INTEGER, DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
MAX_ROWS = 1 << 28
"""Item rows of the largest catalogue that the functions take."""


class _Functions:
    """The functions with their types."""

    def __init__(self, library: ctypes.CDLL) -> None:
        p, n = POINTER, INTEGER
        self.best_allowed = _typed(library.best_allowed, p, p, n, n, p, p)
        self.nearest = _typed(library.nearest, p, n, p, p, n, n, p, p)
        self.lists = _typed(library.lists, p, n, p, n, p, p, p)
        self.merge = _typed(library.merge, p, p, p, p, p, n, p, n, p)
        self.leading = _typed(library.leading, p, p, n, n, p)
        self.encode = _typed(library.encode, p, p, n, p, p, p)
        self.keys = _typed(library.keys, p, p, n, p)
        self.logits = _typed(library.logits, p, p, n, p, p, n, p, p, n, p, n, n, p)
        self.combine = _typed(library.combine, p, p, n, p)
        self.rank = _typed(library.rank, p, p, p, p, p, p, p)


def _typed(function: Any, *types: type) -> Any:
    function.argtypes, function.restype = types, INTEGER
    return function


_loaded: list[_Functions | None] = []


def functions() -> _Functions | None:
    """Return the functions, loaded on first use; None if they do not run here."""
    if not is_on(NAME):
        return None
    if not _loaded:
        library = load_library().functions
        _loaded.append(None if library is None else _Functions(library))
    return _loaded[0]


class Fields:
    """A C structure: an address of each array, an integer or a double of each number.

    Tensors and arrays must be contiguous and of the types that C declares; a tuple of tensors is an
    array of their addresses. All are kept alive; a copy has addresses of its own.
    """

    def __init__(self, **fields: Field) -> None:
        self._given, self._kept = fields, [_addressed(value) for value in fields.values()]
        kinds = {int: INTEGER, bool: INTEGER, float: DOUBLE}
        types = [(name, kinds.get(type(value), POINTER)) for name, value in fields.items()]
        made = type("Structure", (ctypes.Structure,), {"_fields_": types})
        self._structure = made(*(_address(value) for value in self._kept))
        self.address = ctypes.addressof(self._structure)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Fields, **self._given), ()


def _addressed(value: Field) -> Any:
    if not isinstance(value, tuple):
        return value
    # The tensors are kept by who gave them.
    return np.array([one.data_ptr() for one in value], np.int64)


def _address(value: Any) -> Any:
    """Return what a field of C holds."""
    if isinstance(value, Tensor):
        assert value.is_contiguous()
        return value.data_ptr()
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous
        return value.ctypes.data
    return value


def integers(values: Sequence[int]) -> bytes:
    """Pack integers, or addresses, as C reads an array of them."""
    return struct.pack(f"{len(values)}q", *values)


def contiguous(values: Tensor) -> Tensor:
    """Return the values as C reads them."""
    return values.detach().float().contiguous()


def _listed(rank: Callable[..., int], k: int) -> OneList | None:
    """Let a function write a list of at most k items; None for an error."""
    scores, rows = np.empty(k, np.float32), np.empty(k, np.int64)
    number = rank(k, memory_address(scores), memory_address(rows))
    return None if number < 0 else OneList(scores[:number], rows[:number])


def best_allowed(scores: Floats, mask: ItemMask, k: int) -> OneList | None:
    """Rank the scores of the items that a mask allows, [N]; -inf is no item."""
    found, size = functions(), len(scores)
    if found is None or size != mask.num_item_rows or size > MAX_ROWS or k < 1:
        return None
    rank = partial(found.best_allowed, memory_address(scores), mask.address, size)
    return _listed(rank, min(k, size))


class Step(NamedTuple):
    """How one source of a query ranks, as ``Step`` in lists.c has it; see `lists_of_one`."""

    kind: int
    numbers: tuple[int, ...]
    """Fields after ``k``."""
    kept: tuple[object, ...] = ()
    """Memory that no one else keeps."""


RANKED, WEIGHTED, SIMILAR, ENCODED, ENCODED_ONLY = range(5)
"""Kinds of a step: a list that is ranked already, by weights, by cosines, by the vector that an
encoder makes, and by that without items that have no vector."""


def lists_of_one(steps: Sequence[tuple[Step, int]], mask: ItemMask) -> list[OneList | None]:
    """Rank for one query by several sources in one call, each a list of at most k items."""
    found, size = functions(), mask.num_item_rows
    if found is None or size > MAX_ROWS or not all(k > 0 for _, k in steps):
        return [None] * len(steps)
    numbers, total = list[int](), 0
    for step, k in steps:
        k = min(k, size)
        numbers += (step.kind, k, *step.numbers)
        total += k
    scores, rows = np.empty(total, np.float32), np.empty(total, np.int64)
    lengths = (INTEGER * len(steps))()
    places = memory_address(scores), memory_address(rows)
    found.lists(integers(numbers), len(steps), mask.address, size, *places, lengths)
    lists, begin = list[OneList | None](), 0
    for length in lengths:
        end = begin + max(length, 0)
        lists.append(OneList(scores[begin:end], rows[begin:end]) if length >= 0 else None)
        begin = end
    return lists


def list_of_one(step: Step, mask: ItemMask, k: int) -> OneList | None:
    """Rank for one query by one source."""
    return lists_of_one([(step, k)], mask)[0]


def ranked_step(ranked: OneList) -> Step:
    """Take the first items of a ranked list that a mask allows."""
    scores, rows = memory_address(ranked.scores), memory_address(ranked.item_rows)
    return Step(RANKED, (0, rows, len(ranked.item_rows), scores, 0, 0, 0, 0))


def nearest(vectors: Tensor, query: Tensor, mask: ItemMask, k: int) -> OneList | None:
    """Rank item vectors [N, D] by their product with a query's, [D]."""
    found, size = functions(), vectors.shape[0]
    if found is None or size != mask.num_item_rows or size > MAX_ROWS or k < 1:
        return None
    plain = vectors.dtype == query.dtype == torch.float32 and query.shape == vectors.shape[1:]
    if not (plain and vectors.is_contiguous() and query.is_contiguous()):
        return None
    places = vectors.data_ptr(), vectors.shape[1], query.data_ptr()
    return _listed(partial(found.nearest, *places, mask.address, size), min(k, size))


class SimilarOfOne:
    """Ranks items by their cosine to the weighted sum of a history's vectors."""

    def __init__(self, cosines: Tensor, silent: Rows, floor: float, weights: Tensor) -> None:
        """Take what requests share.

        Args:
            cosines: Of every two items, [N, N].
            silent: Rows that have no vector.
            weights: Of each event, the latest last; earlier ones do not count.
        """
        self._fields = Fields(
            cosines=cosines,
            num_items=cosines.shape[0],
            silent=silent,
            num_silent=len(silent),
            floor=floor,
            latest_last=weights,
            max_events=weights.shape[0],
        )

    def step(self, history: Tensor) -> Step:
        """Rank the items with a vector; none if the history has none."""
        numbers = (self._fields.address, history.data_ptr(), history.shape[0], 0, 0, 0, 0, 0)
        return Step(SIMILAR, numbers)


class WeightsOfOne:
    """Ranks items by their weights from those of a history."""

    def __init__(
        self, table: tuple[NDArray[Any], ...], latest_last: Floats, *, distinct: bool
    ) -> None:
        """Take a table of weights.

        Args:
            table: Offsets [N + 1] int64, items int32 and weights float32.
            latest_last: Weight of each event, the latest last.
            distinct: Whether an item counts once, where it occurs last.
        """
        self._fields = Fields(
            offsets=table[0],
            others=table[1],
            amounts=table[2],
            num_items=len(table[0]) - 1,
            latest_last=np.ascontiguousarray(latest_last),
            max_events=len(latest_last),
            distinct=distinct,
        )

    def step(self, history: Tensor) -> Step:
        """Rank the items with a score."""
        numbers = (self._fields.address, history.data_ptr(), history.shape[0], 0, 0, 0, 0, 0)
        return Step(WEIGHTED, numbers)


ENCODER = (
    *("heads", "hidden", "num_rows", "num_places", "from_end", "inputs", "places"),
    *("norm_weight", "norm_bias", "keys", "offset", "output", "bias", "inner_weight", "inner_bias"),
    *("first", "first_bias", "second", "second_bias", "last_weight", "last_bias"),
    *("norm_eps", "inner_eps", "last_eps", "floor"),
)
"""Fields of ``Encoder`` in encoder.c after its dim, in their order."""


class EncoderOfOne:
    """Encodes the latest event of a history by folded weights, as a unit vector."""

    def __init__(
        self, dim: int, weights: Mapping[str, float | Tensor | None], tables: Sequence[Tensor] = ()
    ) -> None:
        """Take D and the other fields that ``ENCODER`` names.

        Args:
            tables: Tables of which a row each is added before the vector gets its length, [any, D].
        """
        given = {"dim": dim, **{name: weights[name] for name in ENCODER}}
        kept: dict[str, Field] = {
            name: contiguous(one) if isinstance(one, Tensor) else one for name, one in given.items()
        }
        added = tuple(contiguous(one) for one in tables)
        self._fields = Fields(**kept, tables=added, num_tables=len(added))
        self._dim = dim
        self._sizes = [len(one) for one in added]

    def encode(
        self, rows: Tensor, logits: Tensor | None = None, added: Sequence[int] = ()
    ) -> Tensor | None:
        """Encode events of these item rows, the oldest first, [M] -> [D].

        Args:
            logits: What is added to the logits of each head, [H, M].
            added: Row of each table.
        """
        found = functions()
        if found is None or not self._has(added):
            return None
        vector = torch.empty(self._dim)
        number = found.encode(
            self._fields.address,
            rows.data_ptr(),
            rows.shape[0],
            None if logits is None else logits.data_ptr(),
            integers(added),
            vector.data_ptr(),
        )
        return None if number < 0 else vector

    def step(
        self,
        rows: Tensor,
        logits: Tensor | None,
        added: Sequence[int],
        vectors: Tensor,
        *,
        all_have_vectors: bool,
    ) -> Step | None:
        """Rank item vectors [N, D] by their product with that of a history.

        Args:
            all_have_vectors: Whether an item of score 0 may be listed.
        """
        if not self._has(added) or vectors.shape[1:] != (self._dim,):
            return None
        if vectors.dtype != torch.float32 or not vectors.is_contiguous():
            return None
        places = np.array(added, np.int64)
        numbers = (
            self._fields.address,
            rows.data_ptr(),
            rows.shape[0],
            0 if logits is None else logits.data_ptr(),
            memory_address(places),
            vectors.data_ptr(),
            vectors.shape[0],
            self._dim,
        )
        kind = ENCODED if all_have_vectors else ENCODED_ONLY
        return Step(kind, numbers, (rows, logits, places, vectors))

    def _has(self, added: Sequence[int]) -> bool:
        return all(0 <= row < size for row, size in zip(added, self._sizes, strict=True))


class BlendOfOne:
    """Merges the lists of one query by a blend's weights."""

    def __init__(
        self,
        weights: NDArray[np.float64],
        scales: Floats,
        item_kinds: Rows | None,
        log_odds: NDArray[np.float64] | None,
        demand: NDArray[np.float64] | None,
        repeats_source: int = -1,
    ) -> None:
        """Take the weights [I + 1, S, 4] and what is known of items, as a blend has them."""
        self.fields = Fields(
            weights=np.ascontiguousarray(weights),
            scales=np.ascontiguousarray(scales),
            num_sources=weights.shape[1],
            item_kinds=None if item_kinds is None else np.ascontiguousarray(item_kinds),
            num_kinds=0 if item_kinds is None else len(item_kinds),
            unknown_kind=weights.shape[0] - 1,
            repeats_source=repeats_source,
            log_odds=log_odds,
            demand=None if demand is None else np.ascontiguousarray(demand),
            num_odds=0 if log_odds is None else len(log_odds),
            num_demand=0 if demand is None else demand.shape[1],
        )

    def merge(
        self,
        lists: Sequence[OneList],
        chosen: Sequence[int],
        history: tuple[float, float, float],
        k: int,
    ) -> tuple[NDArray[Any], ...] | None:
        """Merge lists into one of k items; the fields of a ``MergedOne``.

        Args:
            chosen: Number of each list's source.
            history: 1, whether the history is empty, and the logarithm of its length.
        """
        found = functions()
        if found is None or not lists:
            return None
        rows = np.concatenate([one.item_rows for one in lists], dtype=np.int64)
        scores = np.concatenate([one.scores for one in lists], dtype=np.float32)
        width, taken = len(lists), min(k, len(rows))
        places = np.empty(taken * (1 + width), np.int64)
        values = np.empty(taken * (1 + 3 * width), np.float32)
        best, sums, step = memory_address(places), memory_address(values), 4 * taken * width
        parts = sums + 4 * taken
        number = found.merge(
            self.fields.address,
            memory_address(scores),
            memory_address(rows),
            integers([len(one.item_rows) for one in lists]),
            integers(chosen),
            width,
            struct.pack("3d", *history),
            taken,
            integers((sums, best, best + 8 * taken, parts, parts + step, parts + 2 * step)),
        )
        if number < 0:
            return None
        ranks = places[taken:].reshape(taken, width)[:number]
        shares = values[taken:].reshape(3, taken, width)
        return places[:number], values[:number], ranks, shares[0, :number]


def leading(ranks: Rows, contributions: Floats) -> list[int] | None:
    """Find the list that added most to each item, [n, S] each; -1 where none has it."""
    found, (number, width) = functions(), ranks.shape
    if found is None or number == 0:
        return None
    out = np.empty(number, np.int64)
    kept_ranks = np.ascontiguousarray(ranks, np.int64)
    kept = np.ascontiguousarray(contributions, np.float32)
    addresses = memory_address(kept_ranks), memory_address(kept)
    found.leading(*addresses, number, width, memory_address(out))
    places: list[int] = out.tolist()
    return places
