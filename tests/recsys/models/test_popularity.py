from pathlib import Path

import numpy as np
import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.models.configs import PopularityConfig
from recsys.models.popularity import Popularity

DAY = 86_400
QUERIES = JaggedBatch({"history": Jagged.from_lists([[1], [], [99]])})


def test_an_event_counts_half_after_the_half_life() -> None:
    rows, times = np.array([1, 2, 2, 3]), np.array([10 * DAY, 0, 10 * DAY, 5 * DAY])
    model = Popularity.fit(rows, times, 5, PopularityConfig(half_life_days=5.0))
    assert model.score(QUERIES)[0].tolist() == [-torch.inf, 1.0, 1.25, 0.5, 0.0]


def test_events_in_parts_age_from_the_newest_of_all_parts() -> None:
    rows, times = np.array([1, 2, 2, 3]), np.array([0, 2, 10, 30]) * DAY
    config = PopularityConfig(half_life_days=5.0)
    whole = Popularity.fit(rows, times, 5, config)
    old, new = (rows[:3], times[:3]), (rows[3:], times[3:])
    for parts in ([old, new], [new, old]):
        counted = Popularity.fit_parts(lambda parts=parts: iter(parts), 5, config)
        assert torch.equal(counted.item_scores, whole.item_scores)
    assert whole.item_scores[2] == 2 ** -(28 / 5) + 2 ** -(20 / 5)


def test_every_query_gets_the_same_full_list_even_with_an_unknown_history() -> None:
    scores = Popularity.fit(np.array([2]), None, 4, PopularityConfig()).score(QUERIES)
    assert scores.shape == (3, 4)
    assert torch.isfinite(scores[:, 1:]).all()
    assert (scores == scores[0]).all()


def test_saved_and_loaded_scores_are_equal(tmp_path: Path) -> None:
    times = np.array([3, 1, 2]) * DAY
    model = Popularity.fit(np.array([1, 2, 2]), times, 4, PopularityConfig(half_life_days=2.0))
    model.save(tmp_path / "popularity")
    loaded = Popularity.load(tmp_path / "popularity")
    assert loaded.config == model.config
    assert torch.equal(loaded.score(QUERIES), model.score(QUERIES))


@pytest.mark.parametrize("half_life", [0.0, -1.0, float("inf"), float("nan")])
def test_a_half_life_that_means_nothing_is_refused(half_life: float) -> None:
    with pytest.raises(ValueError, match="half_life_days must be > 0"):
        PopularityConfig(half_life_days=half_life)


def test_a_row_outside_the_catalogue_is_refused() -> None:
    with pytest.raises(ValueError, match=r"item row 9 is not in \[0, 4\)"):
        Popularity.fit(np.array([9]), None, 4, PopularityConfig())


def test_a_log_of_years_ago_keeps_its_order_below_what_happens_today() -> None:
    """Ratings of 28 years ago, one item viewed today: the others still have an order."""
    rows = np.array([1, 2, 2, 2, 3, 3, 4])
    times = np.array([0, 0, 0, 0, 0, 0, 28 * 365]) * DAY
    model = Popularity.fit(rows, times, 6, PopularityConfig(half_life_days=30.0))
    order = torch.sort(model.item_scores, descending=True, stable=True).indices
    assert order.tolist() == [4, 2, 3, 1, 5, 0]
    assert bool((model.item_scores[1:5] > 0).all())
