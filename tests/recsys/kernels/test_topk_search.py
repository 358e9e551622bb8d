"""The fused search against float64, through Triton's interpreter where there is no GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from recsys.data.top_k import ItemMask
from recsys.kernels.topk_search.op import best_groups, fused_top_k, mask_words
from tests.recsys.kernels.devices import DEVICE, ON_A_GPU, RUNS_KERNELS
from tests.recsys.kernels.topk_reference import reference_top_k
from tests.recsys.testing.refusals import assert_refused

TYPES = (torch.float32, torch.bfloat16, torch.float16)


def vectors(num: int, dim: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num, dim, generator=generator).to(dtype)


def test_mask_words_hold_the_rows_of_the_mask() -> None:
    for num_rows in (1, 31, 32, 33, 64, 100):
        allowed = np.random.default_rng(num_rows).random(num_rows) < 0.5
        mask = ItemMask(allowed)
        words = mask_words(mask, num_rows, "cpu")
        bits = (words[:, None] >> torch.arange(32)) & 1
        assert bits.flatten().nonzero().flatten().tolist() == mask.rows().tolist()
        assert torch.equal(
            mask_words(None, num_rows, "cpu"), mask_words(ItemMask.all(num_rows), num_rows, "cpu")
        )


def test_says_what_is_wrong() -> None:
    queries, items, words = torch.ones(2, 5), torch.ones(40, 5), torch.zeros(1).int()
    wide = torch.ones(40, 600)
    assert_refused(
        {
            r"queries must be \[B, 5\]": lambda: fused_top_k(torch.ones(2, 3), items, 1),
            "the list length, must be 1 to 1024, got 0": lambda: fused_top_k(queries, items, 0),
            "cast the queries": lambda: fused_top_k(queries.half(), items, 1),
            "items must be contiguous": lambda: fused_top_k(queries, torch.ones(5, 4).T, 1),
            "1 to 512 wide, got 600": lambda: fused_top_k(wide[:2], wide, 1),
            "mask_words": lambda: fused_top_k(queries, items, 1, words),
            r"copies of the items, \(40, 5\), got \(39, 5\)": lambda: fused_top_k(
                queries, items, 1, halves=items[1:].half()
            ),
        }
    )


SMALL = [(1, 1, 1, 1), (3, 33, 5, 40), (17, 70, 20, 10), (1, 1100, 40, 3)]
"""Queries, items, width, list length: a part of a block of queries; more than 32 groups of 32."""
LARGE = [
    (17, 700, 48, 10),
    (130, 1500, 64, 100),
    (512, 300_000, 64, 100),
    (7, 90_000, 256, 20),
    (64, 5_000, 3, 600),
]


@RUNS_KERNELS
def test_ties_go_to_the_lower_group_on_every_level_of_narrowing_down() -> None:
    for width in (5, 4096, 4097, *[9000, 150_000] * ON_A_GPU):
        values = np.random.default_rng(width).integers(0, 50, (3, width))
        maxima = torch.from_numpy(values - 25).float().to(DEVICE)
        maxima[1] = -torch.inf
        count = min(width, 37)
        order = maxima.sort(dim=1, descending=True, stable=True).indices[:, :count]
        assert torch.equal(best_groups(maxima, count), order.sort(dim=1).values), width


def check_lists(found: object, queries: Tensor, items: Tensor, k: int, words: Tensor) -> None:
    """The list is the float64 one but for items whose scores float32 does not tell apart."""
    truth = reference_top_k(queries, items, k, words)
    scores, rows = found  # type: ignore[misc]
    assert torch.equal(rows == -1, truth.item_rows == -1)
    there = rows >= 0
    assert torch.allclose(scores[there], truth.scores[there], rtol=1e-5, atol=1e-5)
    exact = (queries.double() @ items.double().T).gather(1, rows.clamp_min(0)).float()
    assert torch.allclose(scores[there], exact[there], rtol=1e-5, atol=1e-5)
    assert all(len(set(row)) == len(row) for row in (r[r >= 0].tolist() for r in rows))
    same = rows == truth.item_rows
    assert same.float().mean() > 0.98
    ties = (scores[:, 1:] == scores[:, :-1]) & there[:, 1:]
    assert (rows[:, 1:] > rows[:, :-1])[ties].all()


@RUNS_KERNELS
@pytest.mark.parametrize("dtype", TYPES)
def test_lists_are_those_of_float64_by_every_type_and_mask(dtype: torch.dtype) -> None:
    case = TYPES.index(dtype)
    # Interpreted, half types meet one size each, and kinds of masks take turns.
    some = (SMALL[1:], SMALL[:1], SMALL[2:3])[case]
    for place, (num_queries, num_items, dim, k) in enumerate(SMALL + LARGE if ON_A_GPU else some):
        queries = vectors(num_queries, dim, dtype, case).to(DEVICE)
        items = vectors(num_items, dim, dtype, case + 9).to(DEVICE)
        items[num_items // 2 :: 3] = items[num_items // 2].clone()
        allowed = np.random.default_rng(case).random((num_queries, num_items)) < 0.6
        everything = mask_words(None, num_items, torch.device(DEVICE))
        shared = mask_words(ItemMask(allowed[0]), num_items, DEVICE)
        own = torch.stack([mask_words(ItemMask(one), num_items, DEVICE) for one in allowed])
        for turn in range(3 if ON_A_GPU else 1):
            words = (None, shared, own)[(case + place + turn) % 3]
            known = everything if words is None else words
            check_lists(fused_top_k(queries, items, k, words), queries, items, k, known)
            if dtype == torch.float32 and turn == 0 and (ON_A_GPU or place == 0):
                found = fused_top_k(queries, items, k, words, halves=items.half())
                check_lists(found, queries, items, k, known)
    empty = fused_top_k(vectors(0, 4).to(DEVICE), vectors(5, 4).to(DEVICE), 2)
    assert empty.item_rows.shape == (0, 2)
