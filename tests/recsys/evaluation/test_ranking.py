import importlib
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.top_k import select_top_k
from recsys.evaluation.config import check_metric_name
from recsys.evaluation.ranking import (
    METRICS,
    RankingConfig,
    RankingResult,
    _target_ranks_on_device,
    evaluate_lists,
    evaluate_ranking,
    joined_results,
    list_ranks,
    target_ranks,
)
from tests.recsys.testing.refusals import assert_refused

KS = (1, 3, 10)


def ranked(
    scores: Tensor,
    targets: list[list[int]],
    *,
    exclude: list[list[int]] | None = None,
    ks: tuple[int, ...] = KS,
    batch_size: int = 2,
) -> RankingResult:
    """Evaluate ready-made scores [U, N]; user u has user_row u + 1."""
    starts = range(0, len(scores), batch_size)
    users = torch.arange(1, len(scores) + 1)
    batches = [JaggedBatch({"user": Jagged.one_each(users[i : i + batch_size])}) for i in starts]
    return evaluate_ranking(
        lambda batch: scores[batch["user"].values - 1],
        batches,
        Jagged.from_lists(targets),
        RankingConfig(ks=ks),
        exclude=None if exclude is None else Jagged.from_lists(exclude),
    )


def test_one_target_at_rank_three():
    result = ranked(torch.tensor([[0.0, 9, 8, 7, 6]]), [[3]])
    assert result.ranks.values.tolist() == [3]
    assert result.metrics == {
        **{"recall@1": 0, "ndcg@1": 0, "hit_rate@1": 0, "mrr@1": 0},
        **{"map@1": 0, "map@3": pytest.approx(1 / 3), "map@10": pytest.approx(1 / 3)},
        **{"precision@1": 0, "precision@3": pytest.approx(1 / 3), "precision@10": 0.1},
        **{"recall@3": 1, "ndcg@3": 0.5, "hit_rate@3": 1, "mrr@3": pytest.approx(1 / 3)},
        **{"recall@10": 1, "ndcg@10": 0.5, "hit_rate@10": 1, "mrr@10": pytest.approx(1 / 3)},
    }


def test_the_history_is_not_recommended_and_does_not_push_targets_down():
    result = ranked(torch.tensor([[0.0, 9, 8, 7]]), [[3]], exclude=[[1, 2]])
    assert result.ranks.values.tolist() == [1]
    assert result.top_k.item_rows[0, :2].tolist() == [3, -1]


def test_nan_scores_and_targets_of_different_users_are_refused():
    scores, spoilt = torch.zeros(3, 6), torch.zeros(3, 6)
    spoilt[1, 5] = torch.nan
    assert_refused(
        {
            "query 1 hold NaN": lambda: ranked(spoilt, [[1], [2], [3]]),
            "same users in the same order": lambda: ranked(scores, [[1]] * 2),
            "the same users in the same order": lambda: ranked(scores, [[1]] * 4),
            "exclude covers 1 queries, targets 3": lambda: ranked(scores, [[1]] * 3, exclude=[[1]]),
            "no query has a target": lambda: ranked(scores, [[]] * 3),
            r"score must return \[2, N\] .* got \(2,\)": lambda: ranked(scores[:, 0], [[1]] * 3),
            "metric must be one of .* got 'ndcg@0'": lambda: check_metric_name("ndcg@0"),
            "ks must be one or more list lengths": lambda: RankingConfig(ks=()),
        }
    )


@pytest.fixture(scope="module")
def ranx():
    """Ranx as plain Python: compiling it takes a minute, and these lists a second."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        # Its sources warn when they are compiled, which is when nobody imported it before.
        warnings.simplefilter("ignore")
        patch.setenv("NUMBA_DISABLE_JIT", "1")
        return importlib.import_module("ranx")


@pytest.mark.filterwarnings("ignore:.*unsafe cast from uint64 to int64")
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6), num_levels=st.integers(1, 12))
def test_metrics_agree_with_ranx(ranx, seed, num_levels):
    """ranx orders equal scores arbitrarily, so it is fed our order as strictly falling scores."""
    random = np.random.default_rng(seed)
    num_users, num_items = 7, 30
    scores = torch.from_numpy(random.integers(0, num_levels, (num_users, num_items))).float()
    targets = [
        random.choice(np.arange(1, num_items), random.integers(1, 15), replace=False).tolist()
        for _ in range(num_users)
    ]
    ks = (1, 4, 10, 40)
    result = ranked(scores, targets, ks=ks, batch_size=3)

    qrels = ranx.Qrels({f"u{u}": {f"i{i}": 1 for i in rows} for u, rows in enumerate(targets)})
    run = ranx.Run(
        {
            f"u{u}": {
                f"i{i}": float(-place)
                for place, i in enumerate(
                    sorted(range(1, num_items), key=lambda i, row=row: (-row[i], i))
                )
            }
            for u, row in enumerate(scores.tolist())
        }
    )
    theirs = ranx.evaluate(qrels, run, [f"{name}@{k}" for name in METRICS for k in ks])
    for name, value in theirs.items():
        assert result.metrics[name] == pytest.approx(value, abs=1e-6), name


def test_parts_that_are_joined_equal_the_whole():
    torch.manual_seed(3)
    scores, targets = torch.randn(5, 9), [[3], [1, 8], [2], [2, 5], [4]]
    whole = ranked(scores, targets)
    parts = [ranked(scores[rows], [targets[row] for row in rows]) for rows in ([0], [1, 2, 3], [4])]
    joined = joined_results(parts, RankingConfig(ks=KS))
    assert joined.metrics == whole.metrics
    assert joined.num_users == whole.num_users
    for name in ("targets", "ranks"):
        for mine, theirs in zip(getattr(joined, name), getattr(whole, name), strict=True):
            assert mine is theirs is None or mine.equal(theirs)
    assert joined.top_k.item_rows.equal(whole.top_k.item_rows)


def test_ranks_in_lists_and_by_the_way_of_a_gpu_are_those_of_every_score():
    torch.manual_seed(4)
    scores = torch.randint(0, 4, (6, 12)).float()
    scores[:, 0] = scores[2, 5] = -torch.inf
    targets = Jagged.from_lists([[3], [1, 11], [5], [], [0, 99, 7], [2, 2]])
    expected = target_ranks(scores, targets)
    assert torch.equal(_target_ranks_on_device(scores, targets), expected)
    lists, config = select_top_k(scores, 11), RankingConfig(ks=KS)
    assert torch.equal(list_ranks(lists.item_rows, targets).values, expected)
    queries = JaggedBatch({"user": Jagged.one_each(torch.arange(6))})
    by_score, by_list = (
        evaluate_lists(lists, own, queries, targets, config) for own in (scores, None)
    )
    assert torch.equal(by_score.ranks.values, by_list.ranks.values)
    assert by_list.per_user("mrr@1").isnan().tolist() == [False] * 3 + [True] + [False] * 2
