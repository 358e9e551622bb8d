"""The simulator of experts on GPUs of their own, against times worked out by hand."""

from __future__ import annotations

import pytest

from pipelines.planning.machine import machine_named
from tests.benchmarks.planning.disaggregated import (
    RankerSize,
    Rates,
    alternate,
    best,
    fits,
    together,
)


def test_one_micro_batch_waits_for_everything() -> None:
    assert alternate(3, 1, 2.0, 1.0, 0.5, shared=True) == 3 * (2 + 0.5 + 1 + 0.5)
    assert alternate(3, 1, 2.0, 1.0, 0.5, shared=False) == 3 * (2 + 0.5 + 1 + 0.5)


def test_two_micro_batches_hide_travel_and_the_other_side() -> None:
    # Apart: the attention side never waits; the last micro-batch's way through is added once.
    assert alternate(4, 2, 2.0, 1.0, 0.5, shared=False) == 4 * 2 * 2 + 0.5 + 1 + 0.5
    # Together: only work counts, besides the last way back.
    assert alternate(4, 2, 2.0, 1.0, 0.5, shared=True) == 4 * 2 * (2 + 1) + 0.5


def test_weights_and_histories_have_to_fit() -> None:
    size, machine = RankerSize(), machine_named("h200")
    assert size.weights == pytest.approx(104e9, rel=0.01)
    assert size.kept_bytes == 2 * 24 * 10_000 * 1_024 * 2
    assert not fits(size, machine, together(size, Rates(), machine, 1, 1))
    assert fits(size, machine, together(size, Rates(), machine, 8, 8))
    assert best(size, Rates(), machine, 1, 1e9, "overlapped") is None


def test_overlapping_is_at_least_as_good_as_not() -> None:
    size, machine = RankerSize(candidates=50), machine_named("h200")
    once = best(size, Rates(), machine, 8, 100.0, "together")
    overlapped = best(size, Rates(), machine, 8, 100.0, "overlapped")
    assert once is not None
    assert overlapped is not None
    assert overlapped.requests_a_second >= once.requests_a_second
    assert overlapped.latency_ms <= 100
