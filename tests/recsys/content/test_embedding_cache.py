from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from recsys.content.embedding_cache import encode_cached
from recsys.content.encoder import HashEncoder, Vectors

TEXTS = [f"item number {i} of {'many ' * (i % 7)}" for i in range(50)]


class CountingEncoder(HashEncoder):
    """Keeps the texts it was given."""

    def __init__(self, dim: int = 16, fail_after: int | None = None) -> None:
        super().__init__(dim)
        self.requested: list[str] = []
        self.fail_after = fail_after

    def encode(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> Vectors:
        if self.fail_after is not None and len(self.requested) >= self.fail_after:
            raise KeyboardInterrupt
        self.requested += texts
        return super().encode(texts, progress)


def test_a_second_run_encodes_nothing_and_gives_the_same_bits(tmp_path):
    first = encode_cached(TEXTS, HashEncoder(16), tmp_path, shard_rows=7)
    encoder = CountingEncoder()
    again = encode_cached(TEXTS[::-1], encoder, tmp_path)
    assert encoder.requested == []
    assert np.array_equal(first[::-1], again)


def test_a_stopped_run_loses_one_shard_at_most(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        encode_cached(TEXTS, CountingEncoder(fail_after=30), tmp_path, shard_rows=10)
    encoder = CountingEncoder()
    encode_cached(TEXTS, encoder, tmp_path)
    assert len(encoder.requested) == 20


def shards(folder: Path, ending: str) -> list[Path]:
    return sorted(folder.glob(f"*/shard-*.{ending}"))


@pytest.mark.parametrize("ending", ["npy", "json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_shard_is_encoded_again_and_healed(tmp_path, ending, damage):
    truth = encode_cached(TEXTS, HashEncoder(16), tmp_path, shard_rows=10)
    shard = shards(tmp_path, ending)[2]
    content = shard.read_bytes()
    if damage == "gone":
        shard.unlink()
    else:
        cut, middle = content[:-9], len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 0x80]) + content[middle + 1 :]
        shard.write_bytes(cut if damage == "cut" else flipped)
    encoder = CountingEncoder()
    assert np.array_equal(encode_cached(TEXTS, encoder, tmp_path, shard_rows=10), truth)
    assert len(encoder.requested) == 10
    encoder = CountingEncoder()
    encode_cached(TEXTS, encoder, tmp_path)
    assert encoder.requested == []


def test_an_encoder_that_gives_nan_is_refused_and_nothing_is_kept(tmp_path):
    class Broken(HashEncoder):
        def encode(
            self, texts: Sequence[str], progress: Callable[[int], None] | None = None
        ) -> Vectors:
            return np.full((len(texts), 16), np.nan, np.float32)

    with pytest.raises(ValueError, match="expected \\(1, 16\\) finite values"):
        encode_cached(["a"], Broken(16), tmp_path)
    assert shards(tmp_path, "npy") == []
    assert encode_cached([], HashEncoder(16), tmp_path).shape == (0, 16)
