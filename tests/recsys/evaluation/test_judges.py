"""Rubrics and what is measured of judges, in worlds whose good lists are known."""

import numpy as np
import pytest
import torch

from recsys.data.batch import Jagged
from recsys.evaluation.config import BootstrapConfig
from recsys.evaluation.judges import (
    RUBRICS,
    Known,
    available_rubrics,
    click_agreement,
    measure_biases,
    planted_lists,
    rank_correlation,
    separation,
)

U, N, TOPICS, K = 240, 180, 6, 10
BY_RUBRIC = {"popular": "personal", "duplicates": "distinct", "off_taste": "relevance"}


def jagged(rows):
    values = torch.tensor([value for row in rows for value in row], dtype=torch.int64)
    lengths = torch.tensor([0, *map(len, rows)])
    return Jagged(values, lengths.cumsum(0))


def world(seed):
    """Users with two of six topics, Zipf popularity; good lists are of their topics, by weight."""
    rng = np.random.default_rng(seed)
    topic = np.concatenate([[-1], np.arange(N) % TOPICS])
    weight = np.concatenate([[0], 1 / (1 + np.arange(N) // TOPICS) ** 0.7])
    histories, good = [[]], []
    for _ in range(U):
        own = rng.choice(TOPICS, 2, replace=False)
        chance = weight * np.where(np.isin(topic, own), 1.0, 0.04)
        chance /= chance.sum()
        drawn = rng.choice(N + 1, 20 + K, replace=False, p=chance)
        histories.append(drawn[:20].tolist())
        left = chance.copy()
        left[drawn[:20]] = 0
        left[~np.isin(topic, own)] = 0
        good.append(rng.choice(N + 1, K, replace=False, p=left / left.sum()).tolist())
    content = rng.normal(size=(N + 1, 16))
    content[1:] += 2.0 * np.eye(TOPICS, 16)[topic[1:]]
    content[0] = 0
    known = Known(
        histories=jagged(histories),
        categories=jagged([[], *([int(one) + 1] for one in topic[1:])]),
        num_categories=TOPICS + 1,
        content=torch.from_numpy(content),
    )
    return known, torch.tensor(good), torch.arange(1, U + 1)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rubrics_separate_planted_lists_from_good_ones(seed):
    known, good, users = world(seed)
    generator = torch.Generator().manual_seed(seed)
    planted = planted_lists(good, users, known, generator)
    assert set(planted) == set(BY_RUBRIC)
    for kind, lists in planted.items():
        rubric = RUBRICS[BY_RUBRIC[kind]]
        scores, bad = rubric(good, users, known), rubric(lists, users, known)
        assert separation(scores, bad) >= 0.9, kind
        for row, user in zip(lists.tolist(), users.tolist(), strict=True):
            assert len(set(row)) == K
            assert kind == "duplicates" or not set(row) & set(known.items(user).tolist())


@pytest.mark.parametrize("name", ["relevance", "distinct", "diversity", "personal"])
def test_a_rubric_is_a_share_and_knows_no_order(name):
    known, good, users = world(3)
    scores = RUBRICS[name](good, users, known)
    assert scores.shape == (U,)
    assert bool(((scores >= 0) & (scores <= 1)).all())
    found = measure_biases(lambda lists, of: RUBRICS[name](lists, of, known), good, users, scores)
    assert found.position == pytest.approx(0, abs=1e-9)
    empty = RUBRICS[name](torch.zeros(2, K, dtype=torch.int64), users[:2], known)
    assert bool(empty.isfinite().all())


def test_rubrics_by_hand():
    content = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    known = Known(
        histories=jagged([[], [1, 2], [1, 2], [3]]),
        categories=jagged([[], [1], [1], [2], [1, 2]]),
        num_categories=3,
        content=content,
        first_seen=torch.tensor([np.nan, 0.0, 0.5, 1.0, np.nan]),
    )
    user = torch.tensor([3])
    lists = torch.tensor([[1, 2]])
    assert RUBRICS["distinct"](lists, user, known).item() == 0
    assert RUBRICS["distinct"](torch.tensor([[1, 3]]), user, known).item() == 1
    assert RUBRICS["diversity"](lists, user, known).item() == 0
    assert RUBRICS["personal"](lists, user, known).item() == 0
    assert RUBRICS["personal"](torch.tensor([[1, 4]]), user, known).item() == 0.5
    assert RUBRICS["freshness"](lists, user, known).item() == 0.25
    assert RUBRICS["relevance"](lists, user, known).item() == 0
    # Two users have both 1 and 2, nobody else has either.
    assert RUBRICS["relevance"](torch.tensor([[2]]), torch.tensor([1]), known).item() == 1


def test_data_that_are_missing_leave_their_rubrics_out():
    known, _, _ = world(4)
    assert "freshness" not in available_rubrics(known)
    bare = Known(
        histories=known.histories,
        categories=jagged([[]] * (N + 1)),
        num_categories=1,
        content=torch.empty(N + 1, 0),
    )
    assert set(available_rubrics(bare)) == {"relevance", "personal"}


def test_agreement_with_clicks_is_that_of_the_pairs_of_one_user():
    hits = {"a": torch.tensor([True, True, False, False]), "b": torch.tensor([False] * 4)}
    right = {"a": torch.tensor([2.0, 2.0, 0.0, 0.0]), "b": torch.tensor([1.0] * 4)}
    config = BootstrapConfig(num_resamples=200)
    found = click_agreement(right, hits, config)
    assert (found.mean, found.num_users) == (1.0, 2)
    wrong = click_agreement({"a": -right["a"], "b": right["b"]}, hits, config)
    assert wrong.mean == 0.0
    assert click_agreement(right, {"a": hits["b"], "b": hits["b"]}, config) is None


def test_correlation_and_biases_of_judges_that_are_known():
    one = torch.tensor([1.0, 2.0, 3.0, float("nan")])
    assert rank_correlation(one, 10 * one) == pytest.approx(1)
    assert rank_correlation(one, -one) == pytest.approx(-1)
    assert np.isnan(rank_correlation(one, torch.ones(4)))
    lists, users = torch.arange(1, 41).reshape(10, 4), torch.arange(10)
    first = measure_biases(lambda rows, _: rows[:, 0].double(), lists, users, lists[:, 0])
    assert first.position > 0.2
    assert first.length == 0

    def length(rows, _):
        return (rows > 0).sum(1) + rows.amax(1) * 0.1

    long = measure_biases(length, lists, users, length(lists, users))
    assert long.position == pytest.approx(0)
    assert long.length < -1
