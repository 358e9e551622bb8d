"""Intervals cover as often as they say; sequences do at every look."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from recsys.evaluation.bootstrap import student_quantile
from recsys.evaluation.off_policy.estimators import (
    cascade_doubly_robust,
    ips,
    mean_of,
    snips,
)
from recsys.evaluation.off_policy.intervals import (
    betting_sequence,
    interval_of,
)
from recsys.evaluation.off_policy.logs import cascade
from tests.recsys.evaluation.off_policy.worlds import (
    draw_log,
    logged_actions,
    make_world,
    true_value,
    wrong_model,
)


def test_without_skew_the_interval_is_students():
    found = interval_of(mean_of(np.array([0.0, 1.0] * 50)))
    error = math.sqrt(0.25 * 100 / 99) / 10
    assert found.standard_error == pytest.approx(error)
    # Student's 0.975 quantile with 99 degrees of freedom.
    assert found.high - 0.5 == pytest.approx(1.98422 * error, rel=1e-4)
    assert 0.5 - found.low == pytest.approx(found.high - 0.5)


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(3, 3.18245), (5, 2.57058), (10, 2.22814), (30, 2.04227)]
)
def test_quantiles_of_students_distribution(degrees, quantile):
    assert student_quantile(0.975, degrees) == pytest.approx(quantile, rel=3e-3)
    assert student_quantile(0.975, 1e9) == pytest.approx(NormalDist().inv_cdf(0.975))


def test_lists_of_one_user_count_as_one():
    terms = np.random.default_rng(0).normal(size=50)
    repeated, users = np.repeat(terms, 20), np.repeat(np.arange(50), 20)
    alone = interval_of(mean_of(terms))
    together = interval_of(mean_of(repeated), users=users)
    assert together.standard_error == pytest.approx(alone.standard_error, rel=1e-12)
    assert interval_of(mean_of(repeated)).standard_error < 0.3 * alone.standard_error


def test_what_cannot_be_bounded_is_refused():
    with pytest.raises(ValueError, match="at least 2 independent lists or users, got 1"):
        interval_of(mean_of(np.ones(3)), users=np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1, got 95"):
        interval_of(mean_of(np.ones(3)), confidence=95)
    log = logged_actions(np.array([2.0]), np.ones(1), np.ones(1))
    with pytest.raises(ValueError, match=r"between 0 and 1, got 2\.0 to 2\.0"):
        betting_sequence(log, cascade(log))


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 3])
def test_intervals_and_sequences_cover_the_true_value(slots):
    number, repetitions = 2_000, 200
    world = make_world(3, slots=slots, spread=0.5, rate=0.1, fatigue=0.3)
    value = true_value(world)
    inside = dict.fromkeys(("ips", "snips", "cascade dr", "sequence"), 0)
    for seed in range(repetitions):
        drawn = draw_log(world, number, seed)
        log, weights = drawn.log, cascade(drawn.log)
        predicted, expected = wrong_model(world, drawn)
        found = {
            "ips": ips(log.earned, weights),
            "snips": snips(log.earned, weights),
            "cascade dr": cascade_doubly_robust(log.earned, log.slot_weights, predicted, expected),
        }
        for name, estimate in found.items():
            low, high, _ = interval_of(estimate)
            inside[name] += low <= value <= high
        bounds = betting_sequence(log, weights)
        inside["sequence"] += bool(((bounds.low <= value) & (value <= bounds.high)).all())
    # 95% less four standard deviations of 200 repetitions.
    least = repetitions * (0.95 - 4 * math.sqrt(0.95 * 0.05 / repetitions))
    assert all(count >= least for count in inside.values()), inside
