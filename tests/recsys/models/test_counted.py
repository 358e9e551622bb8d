"""Models that count: popularity, neighbours, regressions, content."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from recsys.data.batch import Jagged
from recsys.data.dataset import Sequences
from recsys.fitting.own_model import check_retriever
from recsys.models import content_similarity, item_to_item
from recsys.models.configs import ContentSimilarityConfig, ItemToItemConfig, PopularityConfig
from recsys.models.content_similarity import ContentSimilarity, Whitening
from recsys.models.item_to_item import item_to_item_model
from recsys.models.item_weights.ease import fit_ease
from recsys.models.item_weights.model import Ease, ItemWeights
from recsys.models.popularity import Popularity
from tests.recsys.testing.refusals import assert_refused
from tests.recsys.testing.tensors import history_queries

pytestmark = pytest.mark.numerics

DAY = 86_400


def popularity(rows, times, num_item_rows: int, config: PopularityConfig) -> Popularity:
    return Popularity.fit(lambda: iter([(rows, times)]), num_item_rows, config)


@pytest.mark.parametrize("name", ["popularity", "item to item", "content"])
def test_keeps_the_contract_of_every_retriever(
    name: str, tastes: Sequences, tmp_path: Path
) -> None:
    rows, ends, vectors = tastes.item_rows, tastes.train_end, content(41)
    vectors[3] = 0
    popular, pairs = PopularityConfig(half_life_days=5.0), ItemToItemConfig(window=5)
    by_content = ContentSimilarityConfig(history_power=0.5)
    model, load = {
        "popularity": (popularity(rows, tastes.times, 41, popular), Popularity.load),
        "item to item": (
            item_to_item_model(rows, tastes.offsets[:-1], ends, 41, pairs),
            ItemWeights.load,
        ),
        "content": (ContentSimilarity(by_content, vectors), ContentSimilarity.load),
    }[name]
    asked = history_queries([1, 2, 40], [0], [], [99, 5])
    check_retriever(lambda _: model, load, asked, 41, tmp_path)


def test_events_in_parts_age_from_the_newest_of_all_parts() -> None:
    rows, times = np.array([1, 2, 2, 3]), np.array([0, 2, 10, 30]) * DAY
    config = PopularityConfig(half_life_days=5.0)
    whole = popularity(rows, times, 5, config)
    old, new = (rows[:3], times[:3]), (rows[3:], times[3:])
    for parts in ([old, new], [new, old]):
        counted = Popularity.fit(lambda parts=parts: iter(parts), 5, config)
        assert torch.equal(counted.item_scores, whole.item_scores)
    expected = [-torch.inf, 2**-6, 2 ** -(28 / 5) + 2 ** -(20 / 5), 1.0, 0.0]
    for scores in whole.score(history_queries([1], [], [99])):
        torch.testing.assert_close(scores, torch.tensor(expected))


def test_a_log_of_years_ago_keeps_its_order_below_what_happens_today() -> None:
    """Ratings of 28 years ago, one item viewed today: the others still have an order."""
    rows = np.array([1, 2, 2, 2, 3, 3, 4])
    times = np.array([0, 0, 0, 0, 0, 0, 28 * 365]) * DAY
    model = popularity(rows, times, 6, PopularityConfig(half_life_days=30.0))
    order = torch.sort(model.item_scores, descending=True, stable=True).indices
    assert order.tolist() == [4, 2, 3, 1, 5, 0]
    assert bool((model.item_scores[1:5] > 0).all())


PLAIN = ItemToItemConfig(
    window=2,
    distance_power=1.0,
    reverse_weight=0.5,
    source_power=0.0,
    target_power=0.0,
    history_power=1.0,
)


def fit(sequences: list[list[int]], config: ItemToItemConfig, num_item_rows: int) -> ItemWeights:
    offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in sequences])]).astype(np.int64)
    rows = np.array([row for rows in sequences for row in rows], np.int64)
    return item_to_item_model(rows, offsets[:-1], offsets[1:], num_item_rows, config)


def slow_scores(
    sequences: list[list[int]], history: list[int], config: ItemToItemConfig, num_item_rows: int
) -> list[float]:
    """The definition, pair by pair."""
    weight: dict[tuple[int, int], float] = defaultdict(float)
    count = [0] * num_item_rows
    for rows in sequences:
        for place, row in enumerate(rows):
            count[row] += 1
            for other_place, other in enumerate(rows):
                distance = other_place - place
                if row == other or 0 in (row, other) or not 1 <= abs(distance) <= config.window:
                    continue
                direction = 1.0 if distance > 0 else config.reverse_weight
                weight[row, other] += direction * abs(distance) ** -config.distance_power
    scores = [0.0] * num_item_rows
    for recency, row in enumerate(reversed(history), start=1):
        for (source, target), value in weight.items():
            if source == row and recency <= config.max_history:
                scale = count[source] ** config.source_power * count[target] ** config.target_power
                scores[target] += value / scale * recency**-config.history_power
    return scores


@settings(deadline=None, max_examples=60)
@given(
    sequences=st.lists(st.lists(st.integers(0, 7), max_size=9), min_size=1, max_size=6),
    history=st.lists(st.integers(0, 7), max_size=6),
    pairs_per_block=st.sampled_from([1, 30, 1 << 24]),
)
def test_agrees_with_the_definition_pair_by_pair(
    sequences: list[list[int]], history: list[int], pairs_per_block: int
) -> None:
    config = replace(PLAIN, window=3, max_history=4, source_power=0.3, target_power=0.15)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(item_to_item, "PAIRS_PER_BLOCK", pairs_per_block)
        scores = fit(sequences, config, 8).score(history_queries(history))[0]
    expected = torch.tensor(slow_scores(sequences, history, config, 8))
    torch.testing.assert_close(scores.nan_to_num(neginf=0.0), expected)


def test_only_the_visible_part_of_a_sequence_counts() -> None:
    rows = np.array([1, 2, 3, 1, 4], np.int64)
    model = item_to_item_model(rows, np.array([0, 3]), np.array([2, 4]), 5, PLAIN)
    assert model.score(history_queries([1]))[0].nan_to_num(neginf=0).tolist() == [0, 0, 1, 0, 0]


def test_the_strongest_neighbours_are_kept_and_ties_go_to_the_lower_row() -> None:
    sequences = [[1, 5], [1, 5], [1, 4], [1, 3], [1, 2]]
    model = fit(sequences, replace(PLAIN, num_neighbours=3), 6)
    offsets, rows, weights = model.table
    assert rows[offsets[1] : offsets[2]].tolist() == [5, 2, 3]
    assert weights[offsets[1] : offsets[2]].tolist() == [2.0, 1.0, 1.0]


def test_a_score_is_the_sum_over_the_history() -> None:
    weights = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    model = Ease(torch.tensor([2, 5]), weights, 7)
    history = Jagged.from_lists([[2, 5, 2, 6, 99], []])
    found = model.score(history, torch.tensor([[5, 2, 1, -1, 50], [2, 5, 0, 0, 0]]))
    assert found.tolist() == [[4, 3, 0, 0, 0], [0, 0, 0, 0, 0]]


def test_only_the_items_with_the_most_events_have_weights(tmp_path: Path) -> None:
    """Of more users than a block, each with a few items of 1 to 8, some twice."""
    rng, users = np.random.default_rng(0), np.repeat(np.arange(1500), 4)
    items = rng.integers(1, 9, len(users)) * (rng.random(len(users)) < 0.9)
    model = fit_ease(users, items, 9, max_items=3)
    counts = np.bincount(items, minlength=9)[1:]
    assert set(model.item_rows.tolist()) == {*(np.argsort(-counts, kind="stable")[:3] + 1).tolist()}
    model.save(tmp_path)
    loaded = Ease.load(tmp_path)
    assert torch.equal(loaded.weights, model.weights)
    assert torch.equal(loaded.places, model.places)


CONTENT_PLAIN = ContentSimilarityConfig()
AS_IT_IS = Whitening(torch.zeros(2), torch.eye(2))


def content(num_rows: int = 9, dim: int = 4) -> torch.Tensor:
    vectors = torch.randn(num_rows, dim, generator=torch.Generator().manual_seed(0))
    vectors[0] = 0
    return vectors


def test_the_score_is_the_cosine_to_the_recency_weighted_mean() -> None:
    vectors = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    model = ContentSimilarity(CONTENT_PLAIN, vectors, whitening=AS_IT_IS)
    scores = model.score(history_queries([1, 2]))[0]
    # Item 2 is the latest and counts 1, item 1 counts 1/2.
    length = 1.25**0.5
    expected = torch.tensor([-torch.inf, 0.5 / length, 1 / length, 1.5 / (length * 2**0.5)])
    torch.testing.assert_close(scores, expected)


def test_a_catalogue_of_one_text_tells_nothing() -> None:
    vectors = torch.full((5, 3), 0.3)
    scores = ContentSimilarity(ContentSimilarityConfig(), vectors).score(history_queries([1, 2]))
    assert torch.equal(scores, torch.full((1, 5), -torch.inf))


def few_words(num_texts: int, *, width: int = 384, seed: int = 0) -> torch.Tensor:
    """Unit vectors with most columns zero, as hashed words give, [num_texts, width]."""
    generator = torch.Generator().manual_seed(seed)
    present = torch.rand(num_texts, width, generator=generator) < 0.05
    words = torch.randn(num_texts, width, generator=generator) * present
    return functional.normalize(words, dim=1)


def assert_whitened(vectors: torch.Tensor, fitted: Whitening) -> None:
    """Directions must be the inverse root of the covariance plus its ridge, in double."""
    known = vectors[1:].double()
    apart = known - known.mean(0)
    covariance = apart.T @ apart / len(known)
    ridge = covariance.trace() / len(known) * torch.eye(covariance.shape[0]).double()
    directions = fitted.directions.double()
    # Directions are rounded to float32: by half its eps, times the ratio of the longest to the
    # shortest, which the ridge bounds by sqrt(N + 1).
    bound = 4 * torch.finfo(torch.float32).eps * (len(known) + 1) ** 0.5
    found = directions @ (covariance + ridge) @ directions
    torch.testing.assert_close(found, torch.eye(len(found)).double(), atol=bound, rtol=0)


@pytest.mark.parametrize("num_items", [2, 24, 500])
def test_texts_that_span_one_direction_are_whitened(num_items: int) -> None:
    """LAPACK does not converge on these: with AVX-512 on some, with AVX2 on others."""
    for seed in (0, 8, 14, 24, 27, 44, 62, 74, 94, 97, 141, 143):
        texts = few_words(2, seed=seed)
        vectors = torch.cat([torch.zeros(1, 384), texts[torch.arange(num_items) % 2]])
        assert_whitened(vectors, Whitening.fit(vectors))


def test_one_item_is_compared_as_it_is() -> None:
    vectors = torch.cat([torch.zeros(1, 384), few_words(1)])
    assert torch.equal(Whitening.fit(vectors).directions, torch.eye(384))
    scores = ContentSimilarity(ContentSimilarityConfig(), vectors).score(history_queries([1]))
    assert scores[0, 0] == -torch.inf


def test_only_the_columns_asked_for_are_compared() -> None:
    wide = torch.cat([content(), 5 * torch.randn(9, 3)], dim=1)
    model = ContentSimilarity(ContentSimilarityConfig(columns=4), wide)
    other = ContentSimilarity(ContentSimilarityConfig(), content())
    torch.testing.assert_close(
        model.score(history_queries([1, 2])), other.score(history_queries([1, 2]))
    )


def test_of_wide_content_what_varies_most_is_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    noise = 1e-3 * torch.randn(9, 3, generator=torch.Generator().manual_seed(1))
    wide = torch.cat([content(), noise], dim=1)
    wide[0] = 0
    whole = ContentSimilarity(CONTENT_PLAIN, content(), whitening=Whitening.fit(content()))
    monkeypatch.setattr(content_similarity, "MAX_DIRECTIONS", 4)
    model, asked = ContentSimilarity(CONTENT_PLAIN, wide), history_queries([1, 2], [7])
    assert model.vectors.shape == (9, 4)
    torch.testing.assert_close(model.score(asked), whole.score(asked), atol=0.05, rtol=0)
    model.save(tmp_path)
    longer = torch.cat([wide, torch.ones(1, 7)])
    for loaded in (ContentSimilarity.load(tmp_path), ContentSimilarity.load(tmp_path, longer)):
        torch.testing.assert_close(loaded.score(asked)[:, :9], model.score(asked))


def test_items_without_content_and_histories_without_any_have_no_evidence() -> None:
    vectors = content()
    vectors[3] = 0
    scores = ContentSimilarity(ContentSimilarityConfig(), vectors).score(
        history_queries([1, 3], [3], [], [99, -5])
    )
    assert scores[0, 3] == -torch.inf
    assert torch.isfinite(scores[0, [1, 2, 4, 5]]).all()
    assert (scores[1:] == -torch.inf).all()


def test_events_beyond_the_window_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_similarity, "MAX_HISTORY", 2)
    model = ContentSimilarity(ContentSimilarityConfig(), content())
    scores = model.score(history_queries([8, 7, 1, 2], [1, 2]))
    torch.testing.assert_close(scores[0], scores[1])


def test_a_grown_catalogue_leaves_the_old_scores_as_they_were(tmp_path: Path) -> None:
    old, grown = content(9), torch.cat([content(9), torch.ones(2, 4)])
    model = ContentSimilarity(ContentSimilarityConfig(), old)
    model.save(tmp_path)
    scores = ContentSimilarity.load(tmp_path, grown).score(history_queries([1, 2]))
    assert scores.shape == (1, 11)
    torch.testing.assert_close(scores[:, :9], model.score(history_queries([1, 2])))


def test_bad_input_is_refused() -> None:
    broken = content()
    broken[4, 1] = torch.nan
    assert_refused(
        {
            "content of item row 4 is not finite": lambda: ContentSimilarity(CONTENT_PLAIN, broken),
            "embeddings of width 2, the content's is 4": lambda: ContentSimilarity(
                CONTENT_PLAIN, content(), whitening=AS_IT_IS
            ),
        }
    )
