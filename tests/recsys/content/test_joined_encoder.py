from pathlib import Path

import numpy as np
import pytest

from recsys.content.embedding_cache import encode_cached
from recsys.content.encoder import HashEncoder, JoinedEncoder, WordEncoder

TEXTS = ["Prada candy perfume", "candy perfume by prada", "led bicycle lamp", ""]


def test_words_make_texts_alike_whatever_their_order() -> None:
    vectors = WordEncoder(4096).encode(TEXTS)
    assert vectors.shape == (4, 4096)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), [1, 1, 1, 0], rtol=1e-6)
    alike = vectors @ vectors.T
    # Three words of three and of four are shared.
    assert alike[0, 1] == pytest.approx(3 / (3 * 4) ** 0.5)
    assert abs(alike[0, 2]) < 0.4


def test_a_word_counts_once() -> None:
    once, twice = WordEncoder().encode(["lamp led", "lamp lamp led LED"])
    np.testing.assert_array_equal(once, twice)


def test_both_parts_lie_side_by_side() -> None:
    first, second = HashEncoder(16), WordEncoder(64)
    joined = JoinedEncoder(first, second, weight=1.5)
    vectors = joined.encode(TEXTS)
    assert (joined.dim, vectors.shape) == (80, (4, 80))
    np.testing.assert_array_equal(vectors[:, :16], first.encode(TEXTS))
    np.testing.assert_allclose(vectors[:, 16:], 1.5 * second.encode(TEXTS))
    assert joined.name == "hash-words-pairs-16+1.5xwords-64"


def test_the_cache_keeps_the_first_part_for_whoever_uses_it_alone(tmp_path: Path) -> None:
    first = HashEncoder(16)
    alone = encode_cached(TEXTS, first, tmp_path)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    joined = encode_cached(TEXTS, JoinedEncoder(first, WordEncoder(8)), tmp_path)
    np.testing.assert_array_equal(joined[:, :16], alone)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="dim must be >= 1, got 0"):
        WordEncoder(0)
    with pytest.raises(ValueError, match="weight must be > 0"):
        JoinedEncoder(HashEncoder(), WordEncoder(), weight=0.0)
