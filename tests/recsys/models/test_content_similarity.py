from pathlib import Path

import pytest
import torch
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch
from recsys.models import content_similarity
from recsys.models.configs import ContentSimilarityConfig
from recsys.models.content_similarity import ContentSimilarity, Whitening
from tests.recsys.models.contracts import (
    assert_queries_are_independent,
    assert_scores_every_item,
    assert_unknown_input_is_scored,
)

pytestmark = pytest.mark.numerics

PLAIN = ContentSimilarityConfig()
AS_IT_IS = Whitening(torch.zeros(2), torch.eye(2))


def queries(*histories: list[int]) -> JaggedBatch:
    return JaggedBatch({"history": Jagged.from_lists(histories)})


def content(num_rows: int = 9, dim: int = 4) -> torch.Tensor:
    vectors = torch.randn(num_rows, dim, generator=torch.Generator().manual_seed(0))
    vectors[0] = 0
    return vectors


def test_the_score_is_the_cosine_to_the_recency_weighted_mean() -> None:
    vectors = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    model = ContentSimilarity(PLAIN, vectors, whitening=AS_IT_IS)
    scores = model.score(queries([1, 2]))[0]
    # Item 2 is the latest and counts 1, item 1 counts 1/2.
    length = 1.25**0.5
    expected = torch.tensor([-torch.inf, 0.5 / length, 1 / length, 1.5 / (length * 2**0.5)])
    torch.testing.assert_close(scores, expected)


def test_whitening_makes_every_direction_count_alike() -> None:
    """The first axis is ten times as long as the second; whitened, both are of one length."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(4001, 2, generator=generator) * torch.tensor([10.0, 1.0])
    vectors[0] = 0
    whitened = Whitening.fit(vectors)
    apart = (vectors[1:] - whitened.mean) @ whitened.directions
    covariance = apart.T @ apart / len(apart)
    torch.testing.assert_close(covariance, torch.eye(2), atol=5e-2, rtol=0)


def test_a_catalogue_of_one_text_tells_nothing() -> None:
    vectors = torch.full((5, 3), 0.3)
    scores = ContentSimilarity(ContentSimilarityConfig(), vectors).score(queries([1, 2]))
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
    scores = ContentSimilarity(ContentSimilarityConfig(), vectors).score(queries([1]))
    assert scores[0, 0] == -torch.inf


def test_only_the_columns_asked_for_are_compared() -> None:
    wide = torch.cat([content(), 5 * torch.randn(9, 3)], dim=1)
    model = ContentSimilarity(ContentSimilarityConfig(columns=4), wide)
    other = ContentSimilarity(ContentSimilarityConfig(), content())
    torch.testing.assert_close(model.score(queries([1, 2])), other.score(queries([1, 2])))


def test_items_without_content_and_histories_without_any_have_no_evidence() -> None:
    vectors = content()
    vectors[3] = 0
    scores = ContentSimilarity(ContentSimilarityConfig(), vectors).score(
        queries([1, 3], [3], [], [99, -5])
    )
    assert scores[0, 3] == -torch.inf
    assert torch.isfinite(scores[0, [1, 2, 4, 5]]).all()
    assert (scores[1:] == -torch.inf).all()


def test_events_beyond_the_window_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_similarity, "MAX_HISTORY", 2)
    model = ContentSimilarity(ContentSimilarityConfig(), content())
    scores = model.score(queries([8, 7, 1, 2], [1, 2]))
    torch.testing.assert_close(scores[0], scores[1])


def test_it_scores_like_any_retriever() -> None:
    model, asked = ContentSimilarity(PLAIN, content()), queries([1, 2], [3], [4, 5, 6])
    assert_scores_every_item(model, asked, 9)
    assert_unknown_input_is_scored(model, asked, 9)
    assert_queries_are_independent(model, asked)


def test_saved_and_loaded_scores_are_equal(tmp_path: Path) -> None:
    model = ContentSimilarity(ContentSimilarityConfig(history_power=0.5), content())
    model.save(tmp_path / "content")
    loaded = ContentSimilarity.load(tmp_path / "content")
    assert loaded.config == model.config
    assert torch.equal(loaded.score(queries([1, 2])), model.score(queries([1, 2])))


def test_a_grown_catalogue_leaves_the_old_scores_as_they_were(tmp_path: Path) -> None:
    old, grown = content(9), torch.cat([content(9), torch.ones(2, 4)])
    model = ContentSimilarity(ContentSimilarityConfig(), old)
    model.save(tmp_path)
    scores = ContentSimilarity.load(tmp_path, grown).score(queries([1, 2]))
    assert scores.shape == (1, 11)
    torch.testing.assert_close(scores[:, :9], model.score(queries([1, 2])))


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="history_power must be >= 0"):
        ContentSimilarityConfig(history_power=-1.0)
    with pytest.raises(ValueError, match=r"content must be \[N, F\]"):
        ContentSimilarity(PLAIN, torch.zeros(3))
    broken = content()
    broken[4, 1] = torch.nan
    with pytest.raises(ValueError, match="content of item row 4 is not finite"):
        ContentSimilarity(PLAIN, broken)
    with pytest.raises(ValueError, match="columns must be >= 1"):
        ContentSimilarityConfig(columns=0)
    with pytest.raises(ValueError, match="embeddings of width 2, the content's is 4"):
        ContentSimilarity(PLAIN, content(), whitening=AS_IT_IS)
