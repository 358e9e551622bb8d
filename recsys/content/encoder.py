"""Item text to vectors: one interface over hashed words and sentence-transformers models.

Beside these, minilm.py is the default, read without their libraries; transformer_encoder.py pools
the states of any Hugging Face model, decoders included, and endpoint_encoder.py calls a server.

Every encoder gives L2-normalised rows. A text that is empty after cleaning, or has no word, gives
a row of zeros: nothing is known about the item, so it is similar to nothing.

Axes: n texts, D width.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
FULL_BATCH_TOKENS = 2048
"""Tokens of a batch on a CPU, where rates are the same from 1024 to 4096."""


class Encoder(Protocol):
    """Turns texts into vectors."""

    @property
    def name(self) -> str:
        """Identity of the vectors: encoders that differ in any vector differ in name."""

    @property
    def dim(self) -> int:
        """Width of the vectors, D."""

    @property
    def shard_rows(self) -> int:
        """Texts whose vectors a cache writes at once: what a killed run loses at most."""

    def encode(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> Vectors:
        """Encode, [n, D], rows of unit length or zeros; ``progress`` gets the texts done."""


def count_terms(text: str) -> Counter[str]:
    """Count the words of a text, and the pairs of words that follow each other."""
    words = re.findall(r"\w+", text.lower())
    return Counter([*words, *map(" ".join, pairwise(words))])


@lru_cache(maxsize=1 << 20)
def code_of(term: str) -> int:
    """Hash a term to 64 bits."""
    digest = hashlib.blake2b(term.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def batches_of_size(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Cut texts into batches of a size, longest first, so that the most memory is used first."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    for begin in range(0, len(order), batch_size):
        yield order[begin : begin + batch_size]


def batches_of_tokens(
    num_tokens: Sequence[int], full: int = FULL_BATCH_TOKENS
) -> Iterator[list[int]]:
    """Cut texts into batches of equal length, longest first, so that nothing is padding.

    Where a length has few texts, somewhat shorter ones join them: padding costs less than products
    of few rows.

    Args:
        num_tokens: Of each text, [n].
    """
    batch: list[int] = []
    for i in sorted(range(len(num_tokens)), key=lambda i: -num_tokens[i]):
        tokens = len(batch) * num_tokens[batch[0]] if batch else 0
        shorter = bool(batch) and num_tokens[i] < num_tokens[batch[0]]
        if tokens >= full or (shorter and tokens >= full // 4):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def encoded_in_batches(
    texts: Sequence[str],
    dim: int,
    batches: Iterable[list[int]],
    encode: Callable[[list[int]], NDArray[np.float32]],
    progress: Callable[[int], None] | None,
) -> Vectors:
    """Encode the texts that are not blank, [n, D] of unit length or zeros."""
    vectors = np.zeros((len(texts), dim), np.float32)
    done = 0
    for batch in batches:
        rows = [i for i in batch if texts[i].strip()]
        if rows:
            vectors[rows] = encode(rows)
        done += len(batch)
        if progress is not None:
            progress(done)
    return normalized(vectors)


def encodable(texts: Sequence[str]) -> list[str]:
    """Replace lone surrogates, which tokenizers do not take."""
    return [text.encode("utf-8", "replace").decode() for text in texts]


class HashEncoder:
    """Signed feature hashing of words and word pairs (Weinberger et al., arXiv:0902.2206).

    A baseline for machines without transformers and for fast tests: texts that share words are
    similar, meaning plays no part. A word counts by the square root of its occurrences.
    """

    shard_rows = 1024

    def __init__(self, dim: int = 384) -> None:
        self.dim = dim
        self.name = f"hash-words-pairs-{dim}"

    def encode(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> Vectors:
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for row, text in enumerate(texts):
            for term, count in count_terms(text).items():
                code = code_of(term)
                vectors[row, (code >> 1) % self.dim] += count if code & 1 else -count
        if progress is not None:
            progress(len(texts))
        return normalized(np.sign(vectors) * np.sqrt(np.abs(vectors)))


class SentenceTransformerEncoder:
    """A local sentence-transformers folder, with the pooling that it configures.

    Nothing is downloaded, and no code of the folder runs.
    """

    shard_rows = 1024

    def __init__(
        self, folder: Path, *, name: str, batch_size: int = 64, device: str | None = None
    ) -> None:
        """Load the model."""
        if not (folder / "modules.json").is_file():
            raise ValueError(f"{folder} holds no sentence-transformers model (no modules.json)")
        from sentence_transformers import SentenceTransformer

        try:
            self._model = SentenceTransformer(
                str(folder),
                device=device,
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs={"use_safetensors": True},
            )
        except (OSError, KeyError, ImportError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"cannot load the model {folder}: {reason}") from error
        self._batch_size, self.tokenizer = batch_size, self._model.tokenizer
        self.name = name
        self.dim = int(self._model.get_embedding_dimension())

    def encode(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> Vectors:
        texts = encodable(texts)
        size = self._batch_size
        batches = batches_of_size([len(text) for text in texts], 16 * size)
        encode = partial(self._model.encode, batch_size=size, show_progress_bar=False)
        return encoded_in_batches(
            texts, self.dim, batches, lambda rows: encode([texts[i] for i in rows]), progress
        )


def normalized(vectors: NDArray[np.floating]) -> Vectors:
    """Scale rows to unit length, [n, D]; rows of zeros stay zero."""
    wide = vectors.astype(np.float32)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    lengths[lengths == 0] = 1
    scaled: Vectors = wide / lengths
    return scaled


class PrefixedEncoder:
    """An encoder of a model that expects a prefix before texts, and another before queries."""

    def __init__(self, encoder: Encoder, passage: str, query: str) -> None:
        """Take the encoder; ``query`` is for whoever encodes queries with it."""
        self.encoder, self.passage_prefix, self.query_prefix = encoder, passage, query
        self.name = f"{encoder.name}-{code_of(passage):x}" if passage else encoder.name
        self.dim, self.shard_rows = encoder.dim, encoder.shard_rows
        self.concurrency = getattr(encoder, "concurrency", 1)

    def encode(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> Vectors:
        prefixed = [f"{self.passage_prefix}{text}" if text.strip() else "" for text in texts]
        return self.encoder.encode(prefixed, progress)
