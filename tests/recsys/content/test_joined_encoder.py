import numpy as np
import pytest

from recsys.content.encoder import HashEncoder, JoinedEncoder, WordEncoder

TEXTS = ["Prada candy perfume", "candy perfume by prada", "led bicycle lamp", ""]


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


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="dim must be >= 1, got 0"):
        WordEncoder(0)
    with pytest.raises(ValueError, match="weight must be > 0"):
        JoinedEncoder(HashEncoder(), WordEncoder(), weight=0.0)
