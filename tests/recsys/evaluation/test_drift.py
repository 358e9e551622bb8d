"""Distances and learned bands against known answers."""

from __future__ import annotations

import numpy as np
import pytest

from recsys.evaluation.drift import (
    ACCEPTED_DAYS,
    Past,
    expected_score,
    mix_distance,
    tail_bound,
    usual_band,
)


def past_of(scores, residuals=None, streaks=None, first_weekday=0):
    scores = np.asarray(scores, float)
    size = len(scores)
    return Past(
        scores=scores,
        residuals=np.zeros(size) if residuals is None else np.asarray(residuals, float),
        noise=np.full(size, 1e-6),
        streaks=np.zeros(size, np.int64) if streaks is None else np.asarray(streaks),
        weekdays=(first_weekday + np.arange(size)) % 7,
    )


def test_a_weekday_is_expected_at_its_usual_deviation():
    season = np.array([0, 0, 0, 0, 0, 3.0, 1.0])
    past = past_of(10 + season[np.arange(70) % 7])
    found = [expected_score(past, weekday) for weekday in range(7)]
    assert found == pytest.approx(10 + season, abs=0.75)
    assert np.argmax(found) == 5


def test_a_band_is_passed_about_as_often_as_it_is_meant_to_be():
    rng = np.random.default_rng(1)
    chance, passed, trials = 0.02, 0, 400
    for _ in range(trials):
        scores = rng.normal(size=120)
        past = past_of(scores, residuals=scores)
        band = usual_band(past, 1, 1e-6, "both", chance)
        passed += not band.low <= rng.normal() <= band.high
    assert passed / trials <= 2 * chance
    heavy = np.abs(rng.standard_t(3, 300))
    assert tail_bound(heavy, 0.001, "both") > tail_bound(
        np.abs(rng.normal(size=300)), 0.001, "both"
    )


def test_days_of_alarm_do_not_count_until_they_are_accepted():
    scores = [0.0] * 40 + [5.0] * (ACCEPTED_DAYS - 1)
    streaks = [0] * 40 + list(range(1, ACCEPTED_DAYS))
    assert expected_score(past_of(scores, streaks=streaks), 0) == pytest.approx(0, abs=1e-9)
    accepted = past_of([*scores, 5.0], streaks=[*streaks, ACCEPTED_DAYS])
    assert expected_score(accepted, 0) == pytest.approx(5, abs=1e-9)


def test_equal_mixes_have_no_distance_and_disjoint_ones_the_greatest():
    assert mix_distance(np.array([2.0, 6.0]), np.array([1.0, 3.0])) == 0
    assert mix_distance(np.array([5.0, 0.0]), np.array([0.0, 7.0])) == pytest.approx(1.0)
    assert np.isnan(mix_distance(np.zeros(2), np.ones(2)))


def test_less_than_a_week_expects_nothing():
    past = past_of([1.0] * 5)
    assert np.isnan(expected_score(past, 5))
    assert usual_band(past, 5, 0.1, "both", 0.01).high == np.inf
