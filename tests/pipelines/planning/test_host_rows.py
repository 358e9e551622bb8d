"""Rows in host memory with a cache give the numbers of a table on the device, whatever its size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.benchmarks.planning.host_rows import HostRows

CPU = torch.device("cpu")


def batches(num_rows: int, count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    skewed = torch.rand(count, 60, generator=generator) ** 3 * num_rows
    return list(skewed.long())


def trained(num_rows: int, cached_rows: int, *, ahead: bool) -> tuple[Tensor, int]:
    table = HostRows(num_rows, 8, cached_rows=cached_rows, device=CPU)
    table.host[:, :8] = torch.randn(num_rows, 8, generator=torch.Generator().manual_seed(1))
    steps, missing = batches(num_rows, 12), 0
    for number, ids in enumerate(steps):
        fetched = table.fetch(ids)
        missing += fetched.num_missing
        if ahead and number + 1 < len(steps):
            table.prefetch(steps[number + 1])
        rows = table.rows(fetched)
        table.move(fetched, 2 * rows + 0.1, 0.05)
    return table.flush(), missing


@pytest.mark.parametrize("ahead", [False, True])
def test_a_small_cache_gives_the_numbers_of_a_whole_table(ahead: bool) -> None:
    whole, first_uses = trained(400, 400, ahead=False)
    small, missing = trained(400, 130, ahead=ahead)
    assert torch.equal(whole, small)
    assert missing > first_uses


def test_a_cache_below_two_steps_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="give the cache more rows"):
        trained(4000, 60, ahead=True)
    with pytest.raises(ValueError, match=r"cached_rows must be in \[1, 10\]"):
        HostRows(10, 4, cached_rows=11, device=CPU)
