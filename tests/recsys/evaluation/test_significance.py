from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from recsys.data.batch import Jagged
from recsys.evaluation.significance import (
    EvaluatedRun,
    benjamini_hochberg,
    compare_runs,
    holm,
    sign_flip_p_values,
)

pytestmark = pytest.mark.numerics

METRICS = ["ndcg@10", "recall@10"]


def evaluated(
    users: list[int],
    targets: list[list[int]],
    ranks: list[list[int]],
    *,
    metrics: list[str] = METRICS,
    name: str = "x",
    data_digest: str = "d" * 8,
) -> EvaluatedRun:
    return EvaluatedRun.from_ranks(
        torch.tensor(users),
        Jagged.from_lists(targets),
        Jagged.from_lists(ranks),
        metrics,
        name=name,
        data_digest=data_digest,
    )


def run(name: str, ranks: list[int], *, data_digest: str = "d" * 8) -> EvaluatedRun:
    num_users = len(ranks)
    return evaluated(
        list(range(1, num_users + 1)),
        [[5]] * num_users,
        [[rank] for rank in ranks],
        name=name,
        data_digest=data_digest,
    )


def test_p_values_agree_with_all_sign_flips():
    generator = np.random.default_rng(0)
    differences = np.stack(
        [generator.integers(-1, 2, 12), generator.normal(0.4, 1, 12), np.zeros(12)], axis=1
    ).astype(float)
    signs = np.array(list(product([-1, 1], repeat=12)))
    sums, observed = np.abs(signs @ differences), np.abs(differences.sum(0))
    equal = np.isclose(sums, observed)
    exact = ((sums > observed) & ~equal).mean(0) + equal.mean(0) / 2
    found = sign_flip_p_values(differences, num_flips=200_000)
    assert found[:2] == pytest.approx(exact[:2], abs=0.005)
    assert found[2] == 1


@pytest.mark.parametrize("metric", ["hits", "gains"])
def test_shuffled_pairs_are_called_different_once_in_twenty(metric: str):
    generator = np.random.default_rng(7)
    values = np.r_[0, np.ones(10)] if metric == "hits" else np.r_[0, 1 / np.log2(range(2, 12))]
    # The columns are 1000 worlds of 500 users, 6% of whom have a hit in either run.
    chance = np.r_[0.94, np.full(10, 0.006)]
    differences = np.subtract(*generator.choice(values, (2, 500, 1000), p=chance))
    p_values = sign_flip_p_values(differences, num_flips=1000)
    # Three standard errors about 5%; worlds share flips but not users.
    assert 0.029 <= (p_values <= 0.05).mean() <= 0.071


def test_p_values_are_corrected_over_all_candidates_and_metrics():
    baseline = run("old", [8] * 40)
    candidate = run("new", [3] * 26 + [9] * 14)
    alone = compare_runs(baseline, [candidate])
    many = compare_runs(baseline, [candidate] + [run(f"copy{i}", [8] * 40) for i in range(9)])
    assert many[0].p_value == alone[0].p_value
    assert many[0].adjusted_p_value == pytest.approx(20 * many[0].p_value)
    assert alone[0].adjusted_p_value == pytest.approx(2 * alone[0].p_value)
    assert compare_runs(baseline, [candidate]) == alone


def test_runs_on_other_data_users_or_targets_are_refused_with_both_digests():
    baseline = run("old", [1, 2, 3])
    with pytest.raises(ValueError, match=r"different data: digest d{8} against e{8}"):
        compare_runs(baseline, [run("new", [1, 2, 3], data_digest="e" * 8)])

    fewer = run("new", [1, 2])
    with pytest.raises(ValueError, match="different users") as refused:
        compare_runs(baseline, [fewer])
    assert baseline.users_digest in str(refused.value)
    assert fewer.users_digest in str(refused.value)

    other = evaluated([1, 2, 3], [[5], [5], [6]], [[1], [2], [3]])
    with pytest.raises(ValueError, match="different targets") as refused:
        compare_runs(baseline, [other])
    assert baseline.targets_digest in str(refused.value)
    assert other.targets_digest in str(refused.value)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_benjamini_hochberg_agrees_with_scipy_and_is_milder_than_holm(p_values: list[float]):
    values = np.array(p_values)
    assert benjamini_hochberg(values) == pytest.approx(false_discovery_control(values))
    assert (benjamini_hochberg(values) <= holm(values) + 1e-12).all()
