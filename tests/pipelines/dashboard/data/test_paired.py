"""Numbers from counts agree with recsys.evaluation on every user, whatever they hold out."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pipelines.dashboard.data.answers import Joined
from pipelines.dashboard.data.paired import (
    Pairs,
    interval,
    p_values,
)
from pipelines.dashboard.data.slices import CROSS, Slicing, crossed, everything
from recsys.data.batch import Jagged
from recsys.evaluation.bootstrap import bootstrap_intervals
from recsys.evaluation.config import BootstrapConfig
from recsys.evaluation.ranking import per_user_metric
from recsys.evaluation.significance import sign_flip_p_values
from tests.pipelines.dashboard.planted import world, write_features

METRICS = ("ndcg@10", "recall@50", "mrr@7", "hit_rate@1", "precision@20", "map@100")


def joined_of(users: np.ndarray, ranks: list[np.ndarray], **known: object) -> Joined:
    """Queries, without features if none are named."""
    count = len(users)
    plain = {
        "item_rows": np.arange(1, count + 1),
        "places": np.full(count, 5),
        "times": None,
        "features": None,
        "order": "given",
    }
    coded = tuple(one.astype(np.uint8) for one in ranks)
    return Joined(sides=(), user_rows=users, ranks=coded, dropped=(), **{**plain, **known})


def drawn_ranks(seed: int, num: int, *, gain: float = 0.0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shared = rng.normal(3.6, 1.3, num)
    exact = [np.ceil(np.exp(shared + rng.normal(0, 0.6, num) - move)) for move in (0, gain)]
    return [np.where(one <= 100, one, 0).astype(np.int64) for one in exact]


def jagged(users: np.ndarray, ranks: np.ndarray) -> Jagged:
    _, starts = np.unique(users, return_index=True)
    return Jagged(torch.from_numpy(ranks), torch.from_numpy(np.append(starts, len(users))))


@pytest.mark.parametrize("items_a_user", [1, 3])
@pytest.mark.parametrize("metric", METRICS)
def test_means_and_intervals_are_those_of_every_user(metric: str, items_a_user: int) -> None:
    users = np.repeat(np.arange(1, 1501), items_a_user)
    ranks = drawn_ranks(3, len(users), gain=0.1)
    found = Pairs(joined_of(users, ranks)).moments(0, 1, everything(len(users)), metric)
    by_user = [per_user_metric(jagged(users, one), metric).numpy() for one in ranks]
    difference = by_user[1] - by_user[0]
    assert found.first[0] == pytest.approx(by_user[0].mean(), abs=1e-12)
    assert found.difference[0] == pytest.approx(difference.mean(), abs=1e-12)
    assert found.standard_error[0] == pytest.approx(difference.std(ddof=1) / np.sqrt(1500))
    drawn = bootstrap_intervals({"d": difference}, BootstrapConfig(num_resamples=20_000))["d"]
    low, high = interval(found, 0.95)
    width = drawn.high - drawn.low
    assert low[0] == pytest.approx(drawn.low, abs=0.03 * width)
    assert high[0] == pytest.approx(drawn.high, abs=0.03 * width)


@pytest.mark.parametrize("gain", [0.0, 0.04, 0.08])
def test_p_values_are_the_sign_flip_tests(gain: float) -> None:
    users = np.arange(1, 401)
    ranks = drawn_ranks(5, len(users), gain=gain)
    found = Pairs(joined_of(users, ranks)).moments(0, 1, everything(len(users)), "ndcg@10")
    values = [per_user_metric(jagged(users, one), "ndcg@10").numpy() for one in ranks]
    slow = sign_flip_p_values((values[1] - values[0])[:, None], num_flips=40_000)[0]
    assert p_values(found)[0] == pytest.approx(slow, rel=0.08, abs=0.002)


def test_few_changed_users_have_the_exact_tests_p_value() -> None:
    """Sixteen users that all gain alike: 2 of 65,536 flips are as far out, and count half."""
    ranks = [np.zeros(200, np.int64), np.zeros(200, np.int64)]
    ranks[1][:16] = 1
    found = Pairs(joined_of(np.arange(1, 201), ranks)).moments(0, 1, everything(200), "hit_rate@10")
    assert p_values(found)[0] == pytest.approx(2 / 2**16, rel=2)


def test_a_users_items_of_one_slice_are_one_value() -> None:
    users = np.array([1, 1, 2, 2, 2, 3])
    ranks = [np.array([1, 0, 2, 0, 5, 0]), np.array([1, 1, 0, 0, 5, 1])]
    codes = np.array([0, 1, 0, 0, 1, 1], np.int32)
    halves = Slicing("half", ("left", "right"), codes, np.arange(6, dtype=np.int32))
    found = Pairs(joined_of(users, ranks)).moments(0, 1, halves, "recall@10")
    assert found.num_users.tolist() == [2, 3]
    assert found.first.tolist() == pytest.approx([(1 + 0.5) / 2, (0 + 1 + 0) / 3])
    assert found.second.tolist() == pytest.approx([(1 + 0) / 2, (1 + 1 + 1) / 3])


def test_crossing_gives_each_combination_of_a_query() -> None:
    first = Slicing("a", ("x", "y"), np.array([0, 1, 1], np.int32), np.array([0, 0, 2], np.int32))
    second = Slicing("b", ("u", "v"), np.array([1, 0, 1], np.int32), np.array([0, 1, 2], np.int32))
    both = crossed(first, second)
    assert both.group == f"a{CROSS}b"
    pairs = list(zip(both.queries.tolist(), [both.names[code] for code in both.codes], strict=True))
    assert pairs == [(0, "x x v"), (0, "y x v"), (2, "y x v")]


def test_slicings_are_those_of_the_log(tmp_path: Path) -> None:
    known = world(4, num_users=400)
    write_features(known, tmp_path)
    count = len(known.lengths)
    times = known.times[known.offsets[2:] - 1]
    ranks = [np.ones(count, np.uint8)] * 2
    found = Pairs(
        joined_of(
            np.arange(1, count + 1),
            ranks,
            item_rows=known.targets,
            places=known.lengths - 1,
            times=times,
            features=tmp_path,
        )
    ).slicings
    activity, category = found.get("user_activity"), found.get("category")
    assert activity is not None
    assert category is not None
    of_user = [activity.names[code] for code in activity.codes]
    assert [name == "new" for name in of_user] == known.new_users.tolist()
    assert [name == "heavy" for name in of_user] == known.heavy_users.tolist()
    books = category.codes == category.names.index("books")
    assert (
        category.queries[books].tolist() == np.flatnonzero(known.target_category("books")).tolist()
    )
    assert set(found.groups) >= {"item_popularity", "domain", "period", "recency", "history_length"}
    assert all(len(one.codes) == len(one.queries) for one in found.searched)


def test_slicings_of_users_with_several_items_are_by_item_and_by_user(tmp_path: Path) -> None:
    known = world(4, num_users=60)
    write_features(known, tmp_path)
    users = np.repeat(np.arange(1, 61), 2)
    items = np.stack([known.targets, known.targets % 299 + 1], axis=1).reshape(-1)
    ranks = [np.ones(120), np.full(120, 3)]
    places = np.repeat(known.lengths - 1, 2)
    found = Pairs(joined_of(users, ranks, item_rows=items, places=places, features=tmp_path))
    assert not found.one_each
    activity, category = (found.slicings.get(name) for name in ("user_activity", "category"))
    assert activity is not None
    assert category is not None
    assert activity.codes[::2].tolist() == activity.codes[1::2].tolist()
    assert len(category.codes) == 120
    by_user = found.moments(0, 1, activity, "mrr@10")
    assert by_user.num_users.sum() == 60
    assert by_user.second[by_user.num_users > 0] == pytest.approx(1 / 3)
    # A user with items of two categories counts in both.
    pairs = {
        (user, code) for user, code in zip(users[category.queries], category.codes, strict=True)
    }
    assert found.moments(0, 1, category, "mrr@10").num_users.sum() == len(pairs)
