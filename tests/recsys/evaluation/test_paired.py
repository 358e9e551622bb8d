import numpy as np
import pytest

from recsys.evaluation.config import PairedConfig
from recsys.evaluation.intervals import time_blocks
from recsys.evaluation.paired import paired, slice_losses
from tests.recsys.testing.refusals import assert_refused


def pair(num_users: int, gain: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Values of two systems whose true difference is ``gain``."""
    draw = np.random.default_rng(seed)
    before = draw.random(num_users)
    return before, before + gain + 0.1 * draw.standard_normal(num_users)


def test_known_difference_is_found_with_its_interval() -> None:
    before, after = pair(10_000, 0.01)
    found = paired(before, after)
    assert found.decision == "better"
    assert found.not_worse
    assert found.difference == pytest.approx(0.01, abs=0.003)
    # 0.1 / sqrt(10,000) = 0.001; 97.5% two-sided is 2.24 of these on each side.
    assert found.standard_error == pytest.approx(0.001, rel=0.03)
    assert found.high - found.low == pytest.approx(2 * 2.24 * 0.001, rel=0.06)
    assert found.relative == pytest.approx(found.difference / found.champion)


def test_weeks_that_differ_widen_the_interval_and_take_the_claim_back() -> None:
    draw = np.random.default_rng(1)
    blocks = np.repeat(np.arange(10), 1_000)
    before = draw.random(10_000)
    by_week = 0.01 + 0.05 * np.tile([1, -1], 5)
    after = before + by_week[blocks] + 0.05 * draw.standard_normal(10_000)
    assert paired(before, after).decision != "not enough evidence"
    found = paired(before, after, blocks=blocks)
    assert found.decision == "not enough evidence"
    assert found.time_low is not None
    assert found.widest == (found.time_low, found.time_high)


def test_blocks_of_time_keep_equal_times_together() -> None:
    times = np.array([5, 1, 1, 1, 9, 7, 3, 1])
    blocks = time_blocks(times, 4)
    assert len(set(blocks[times == 1])) == 1
    order = np.argsort(times, kind="stable")
    assert (np.diff(blocks[order]) >= 0).all()
    assert time_blocks(np.full(9, 3), 4) is None


def test_slice_that_lost_more_than_the_margin_is_harmed_alone() -> None:
    draw = np.random.default_rng(2)
    before = draw.random(4_000)
    new = np.arange(4_000) < 1_000
    after = before - 0.2 * new + 0.05 * draw.standard_normal(4_000)
    rare = np.arange(4_000) >= 3_990
    losses = slice_losses(before, after, {"new users": new, "others": ~new, "few": rare})
    assert {loss.name: loss.harmed for loss in losses} == {"new users": True, "others": False}


def test_among_many_slices_that_lost_the_margin_alone_none_is_harmed_by_chance() -> None:
    """Slices are judged together: one in a hundred alone would be refused by chance."""
    num_slices, num_users = 100, 120
    draw = np.random.default_rng(0)
    before = np.ones(num_slices * num_users)
    after = 0.9 + 0.1 * draw.standard_normal(len(before))
    groups = np.arange(len(before)) // num_users
    after[groups == 0] -= 0.1
    slices = {str(group): groups == group for group in range(num_slices)}
    config = PairedConfig()
    alone = [
        name
        for name, inside in slices.items()
        if slice_losses(before, after, {name: inside}, config)[0].harmed
    ]
    assert len(alone) > 1
    together = slice_losses(before, after, slices, config)
    assert [loss.name for loss in together if loss.harmed] == ["0"]


def test_what_cannot_be_compared_is_refused() -> None:
    zeros = np.zeros(3)
    assert_refused(
        {
            "same queries": lambda: paired(zeros, np.zeros(4)),
            "no query has a value of both": lambda: paired(np.full(3, np.nan), zeros),
            "infinite": lambda: paired(zeros, np.full(3, np.inf)),
        }
    )
