"""Tolerances for tests of tensors, and lists that rounding alone orders."""

from __future__ import annotations

import math

import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.top_k import NO_ROW, ItemMask, OneList, TopK, allowed_rows, no_items, select_top_k


def rounding(num_terms: int, *, size: float = 1.0, dtype: torch.dtype = torch.float32) -> float:
    """Bound how far apart two orders of the same arithmetic may come out.

    An addition rounds by up to half an eps of its result. Errors of n additions add up like a
    random walk, to sqrt(n) times that; 8 eps instead of a half leaves room for both orders, for
    products and functions between the additions, and for the largest of many values.

    Args:
        num_terms: Additions on the way to a value, such as the widths of its layers together.
        size: Largest absolute number on that way.
        dtype: In which it is computed.
    """
    return 8 * torch.finfo(dtype).eps * math.sqrt(num_terms) * size


def history_queries(*lists: list[int]) -> JaggedBatch:
    """Make queries of histories alone."""
    return JaggedBatch({"history": Jagged.from_lists(list(lists))})


def assert_same_lists(found: TopK, truth: TopK, atol: float) -> None:
    """Hold lists, best first, against those of another product.

    Items whose scores differ by no more than rounding may change places, at the end of a list with
    items beyond it too; no others may.

    Args:
        atol: How far apart the two products may round a score.
    """
    assert torch.equal(found.item_rows == NO_ROW, truth.item_rows == NO_ROW)
    there = truth.item_rows != NO_ROW  # [B, k]
    torch.testing.assert_close(found.scores[there], truth.scores[there], rtol=0, atol=atol)
    for row_there, rows, true_rows, scores in zip(
        there, found.item_rows, truth.item_rows, truth.scores, strict=True
    ):
        own, expected = rows[row_there].tolist(), scores[row_there].tolist()
        assert len(set(own)) == len(own), "an item is in the list twice"
        deserved = dict(zip(true_rows[row_there].tolist(), expected, strict=True))
        for row, score in zip(own, expected, strict=True):
            assert abs(deserved.get(row, expected[-1]) - score) <= 2 * atol, f"item row {row}"


def top_k_of_scores(scores: torch.Tensor, k: int, mask: ItemMask | None = None) -> TopK:
    """Rank item rows by scores [B, N], column = item row; the scores are left as they are."""
    allowed = allowed_rows(mask, scores.shape[1]).to(scores.device)
    return select_top_k(scores.float().masked_fill(~allowed, -torch.inf), k)


def as_lists(one: OneList, k: int) -> TopK:
    """Make a batch of one list of length k."""
    lists = no_items(1, k)
    lists.scores[0, : len(one.scores)] = torch.from_numpy(one.scores)
    lists.item_rows[0, : len(one.scores)] = torch.from_numpy(one.item_rows)
    return lists


def near_ties(num_rows: int, dim: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Make unit items [N, D] and a query [D] such that rounding alone orders most of the items.

    Items are three vectors, each with its numbers in any order, which a constant query does not
    tell apart. Any two orders of a sum round them differently, on any processor.
    """
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.nn.functional.normalize(torch.randn(3, dim, generator=generator), dim=1)
    places = torch.rand(num_rows, dim, generator=generator).argsort(dim=1)
    items = kinds[torch.arange(num_rows) % 3].gather(1, places)
    return items, torch.full((dim,), dim**-0.5)
