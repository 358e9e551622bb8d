"""Ranked lists, and the one rule by which scores become one: ties never depend on a kernel.

Score descending, then item_row ascending. Row 0 is padding and is never in a list. Models, exact
search and evaluation all rank through here, so equal scores give equal lists everywhere.

Axes: B queries, N columns (item rows), k list length.
"""

from __future__ import annotations

import math
from ctypes import addressof, c_char
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GROUP = 32
"""Item rows of a group in a fused search: the bits of one mask word."""
_AnyMemory = c_char * 0
MAX_COUNTED = 1 << 22
"""Scores looked at together where ties are settled."""


def memory_address(values: NDArray[Any]) -> int:
    """Return where a contiguous array begins, in a quarter of numpy's time if it may be written."""
    memory: Any = values
    try:
        return addressof(_AnyMemory.from_buffer(memory))
    except TypeError:
        return int(values.ctypes.data)


def all_finite(values: NDArray[np.float32]) -> bool:
    """Return whether numbers [n] are finite; seldom by a look at each."""
    return math.isfinite(values.dot(values)) or bool(np.isfinite(values).all())


class ItemMask:
    """An immutable set of item rows in [1, num_item_rows); row 0 (padding) is never in it."""

    def __init__(self, allowed: NDArray[np.bool_]) -> None:
        """Take a boolean per item row, [num_item_rows]."""
        self._keep(allowed.copy(), None)

    def _keep(self, allowed: NDArray[np.bool_], left_out: NDArray[np.int64] | None) -> None:
        allowed[:1] = False
        self.address = memory_address(allowed)
        """Address of one byte for each item row, for compiled functions."""
        allowed.flags.writeable = False
        self._allowed, self._left_out = allowed, left_out
        self._count: int | None = None

    @classmethod
    def all_but(cls, num_item_rows: int, rows: NDArray[np.int64]) -> ItemMask:
        """Leave out a few rows; scores are then blanked by these alone, not by all rows."""
        allowed = np.ones(num_item_rows, np.bool_)
        allowed[rows] = False
        mask = cls.__new__(cls)
        mask._keep(allowed, rows)
        return mask

    @classmethod
    def all(cls, num_item_rows: int) -> ItemMask:
        return cls(np.ones(num_item_rows, np.bool_))

    @property
    def num_item_rows(self) -> int:
        return len(self._allowed)

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """The packed bits, [ceil(num_item_rows / 8)], bit i of byte j is row 8 j + i."""
        return np.packbits(self._allowed, bitorder="little")

    def __and__(self, other: ItemMask) -> ItemMask:
        return ItemMask(self._allowed & other._allowed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ItemMask) and np.array_equal(self._allowed, other._allowed)

    __hash__ = None  # type: ignore[assignment]

    def allows(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each row whether it may be shown; rows outside the catalogue may not."""
        if len(rows) and rows.min() >= 0 and rows.max() < self.num_item_rows:
            return self._allowed[rows]
        inside = (rows >= 0) & (rows < self.num_item_rows)
        return inside & self._allowed[np.where(inside, rows, 0)]

    def count(self) -> int:
        if self._count is None:
            self._count = int(np.count_nonzero(self._allowed))
        return self._count

    def rows(self) -> NDArray[np.int64]:
        return np.flatnonzero(self._allowed)

    def as_bool(self) -> Tensor:
        """Return one boolean per item row, [num_item_rows]."""
        return torch.from_numpy(self._allowed.copy())

    def blank(self, scores: NDArray[np.float32]) -> None:
        """Write -inf over the scores of rows that may not be shown, [num_item_rows], in place."""
        if len(scores) != self.num_item_rows:
            raise ValueError(
                f"the item mask covers {self.num_item_rows} item rows, the catalogue has "
                f"{len(scores)}; build the mask from the same bundle"
            )
        if self._left_out is None:
            scores[~self._allowed] = -np.inf
        else:
            scores[self._left_out] = -np.inf
            scores[:1] = -np.inf


NO_ROW = -1
"""Stands where a list has fewer than k items; its score is -inf."""


class TopK(NamedTuple):
    """Ranked lists, best first."""

    scores: Tensor
    """[B, k] float32, -inf where the list is short."""
    item_rows: Tensor
    """[B, k] int64, -1 where the list is short."""


class OneList(NamedTuple):
    """The ranked list of one query on a CPU, best first; it ends with its last item."""

    scores: NDArray[np.float32]
    """[n]."""
    item_rows: NDArray[np.int64]
    """[n]."""

    def first(self, number: int) -> OneList:
        """Take the first places."""
        if number >= len(self.item_rows):
            return self
        return OneList(self.scores[:number], self.item_rows[:number])

    def batch(self) -> TopK:
        """Take it as the only list of a batch, [1, n]."""
        return TopK(torch.from_numpy(self.scores)[None], torch.from_numpy(self.item_rows)[None])

    @classmethod
    def of(cls, top: TopK) -> OneList:
        """Take the only list of a batch, [1, k]; holes stay but those at its end."""
        scores, rows = top.scores[0].numpy(), top.item_rows[0].numpy()
        there = np.flatnonzero(rows > 0)
        number = int(there[-1]) + 1 if len(there) else 0
        return cls(scores[:number], rows[:number])


def reranked_places(scores: Tensor, length: int) -> Tensor:
    """Order the first k places of lists by new scores; the places after keep theirs.

    Args:
        scores: [B, k], -inf where the list is short; equal scores keep their order.

    Returns:
        Places in the lists as they were, [B, L].
    """
    order = scores[:, :length].sort(dim=1, descending=True, stable=True).indices
    behind = torch.arange(order.shape[1], length, device=scores.device)
    return torch.cat([order, behind.expand(len(scores), -1)], dim=1)


def select_top_k(scores: Tensor, k: int) -> TopK:
    """Rank the columns of [B, N] float32 scores in which -inf marks all that is not eligible.

    torch.topk promises no order among equals. One candidate more than k shows whether a tie
    crosses the boundary; only such lists are selected again, by counting, so lists of distinct
    scores cost one torch.topk.
    """
    _check_k(k)
    num_queries, num_columns = scores.shape
    if num_queries == 1 and scores.device.type == "cpu":
        # The same list with a few starts of operations, not twenty.
        lists, found = no_items(1, k), best_of_one(scores[0].detach(), k)
        lists.scores[0, : len(found.scores)] = torch.from_numpy(found.scores)
        lists.item_rows[0, : len(found.scores)] = torch.from_numpy(found.item_rows)
        return lists
    taken = min(k, num_columns)
    values, columns = scores.topk(min(taken + 1, num_columns), dim=1)
    # torch.topk orders NaN above everything, so the first column shows any.
    is_nan = torch.isnan(values[:, :1]).any(dim=1)
    if is_nan.any():
        raise _nan_error(int(is_nan.nonzero()[0]))
    if values.shape[1] > taken:
        last, beyond = values[:, taken - 1], values[:, taken]
        tied = ((last == beyond) & (last > -torch.inf)).nonzero().squeeze(1)
        values, columns = values[:, :taken].clone(), columns[:, :taken].clone()
        # Popularity ties in every list, so what counting takes in memory is kept small.
        for rows in torch.split(tied, max(1, MAX_COUNTED // num_columns)):
            columns[rows] = _first_of_equals(scores[rows], values[rows], columns[rows])

    columns, order = columns.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    columns = columns.gather(1, order).masked_fill(values == -torch.inf, NO_ROW)
    if taken == k:
        return TopK(values, columns)
    lists = no_items(num_queries, k, scores.device)
    lists.scores[:, :taken], lists.item_rows[:, :taken] = values, columns
    return lists


def best_of_one(scores: Tensor, k: int, item_rows: NDArray[np.int64] | None = None) -> OneList:
    """Rank items by float32 scores on a CPU, [N], of which -inf marks items that are not eligible.

    Args:
        item_rows: Distinct rows that the scores are of, [N], in any order; None is all.
    """
    _check_k(k)
    if (number := scores.shape[0]) == 0:
        return OneList(scores.numpy(), np.empty(0, np.int64))
    taken = min(k, number)
    values, columns = scores.topk(min(taken + 1, number))
    found, places = values.numpy(), columns.numpy()
    # torch.topk orders NaN above everything.
    if found[0] != found[0]:
        raise _nan_error(0)
    if found[-1] == -np.inf:
        number = int(np.count_nonzero(found > -np.inf))
        found, places = found[:number], places[:number]
    rows = places if item_rows is None else item_rows[places]
    if (found[1:] == found[:-1]).any():
        if len(found) > taken and found[taken - 1] == found[taken]:
            # Whatever lies above the last value is in the list in any case.
            above = rows[found > found[taken]]
            equals = np.flatnonzero(scores.numpy() == found[taken])
            equals = equals if item_rows is None else np.sort(item_rows[equals])
            rows = np.concatenate([above, equals[: taken - len(above)]])
            found = found[:taken]
        order = np.lexsort((rows, -found))
        found, rows = found[order], rows[order]
    return OneList(found[:taken], rows[:taken])


def _nan_error(query: int) -> ValueError:
    return ValueError(
        f"scores of query {query} hold NaN; scores must be numbers. Check the model's weights or "
        "the vectors for NaN and infinity"
    )


def _first_of_equals(scores: Tensor, values: Tensor, columns: Tensor) -> Tensor:
    """Prefer the lowest columns of [R, N] scores among equals at the end of lists [R, k].

    Columns above the last value are in the list in any case.
    """
    num_columns, k = scores.shape[1], values.shape[1]
    last = values[:, -1:]  # [R, 1]
    nearness = torch.arange(num_columns, 0, -1, dtype=torch.int32, device=scores.device)
    equals = torch.where(scores == last, nearness, 0).topk(k, dim=1).indices  # [R, k]
    num_above = (values > last).sum(1, keepdim=True)  # [R, 1]
    place = torch.arange(k, device=scores.device) - num_above  # [R, k]
    return torch.where(place < 0, columns, equals.gather(1, place.clamp_min(0)))


def no_items(num_queries: int, k: int, device: torch.device | str = "cpu") -> TopK:
    """Make lists without any item."""
    _check_k(k)
    return TopK(
        torch.full((num_queries, k), -torch.inf, device=device),
        torch.full((num_queries, k), NO_ROW, dtype=torch.int64, device=device),
    )


def allowed_rows(mask: ItemMask | None, num_item_rows: int) -> Tensor:
    """Unpack a mask, or allow all but row 0, [num_item_rows] bool."""
    mask = mask if mask is not None else ItemMask.all(num_item_rows)
    if (given := mask.num_item_rows) != num_item_rows:
        raise ValueError(
            f"the item mask covers {given} item rows, the catalogue has {num_item_rows}; build "
            "the mask from the same bundle"
        )
    return mask.as_bool()


def _check_k(k: int) -> None:
    if k < 1:
        raise ValueError(f"k, the list length, must be >= 1, got {k}")
