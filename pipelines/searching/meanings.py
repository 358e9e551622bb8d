"""Words that the content encoder knows, and the values of categories, in the space of the items."""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from pipelines.engine.artifacts import cache_dir
from recsys.content.embedding_cache import encode_cached
from recsys.content.encoder import Encoder, HashEncoder, PrefixedEncoder, Vectors
from recsys.content.minilm import MINILM_PACKAGE, MiniLMEncoder
from recsys.models.text_search.meaning import Meanings
from recsys.models.text_search.tokens import ItemText, fold

MARKS = ("\u2581", "\u0120")
"""What begins a word in the vocabularies of SentencePiece and of byte-level BPE."""
MAX_VALUES = 1_000
"""Most values that a query may ask for, those of the most items."""
MIN_ITEMS = 2
"""Fewest items of such a value."""


def list_words(encoder: Encoder, most: int) -> dict[str, str]:
    """List the whole words of an encoder's vocabulary by their folds, the most frequent first.

    An endpoint does not say which words it knows, so it reads those of the packaged encoder.
    """
    tokenizer = getattr(encoder, "tokenizer", None)
    if tokenizer is None and importlib.util.find_spec(MINILM_PACKAGE):
        tokenizer = MiniLMEncoder().tokenizer
    vocabulary: dict[str, int] = getattr(tokenizer, "get_vocab", dict)()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    # WordPiece marks what continues a word, other vocabularies what begins one.
    words = [token[1:] for token in tokens if token[:1] in MARKS and token] or tokens
    folded: dict[str, str] = {}
    for word in words:
        if len(word) > 1 and word.isalpha():
            folded.setdefault(fold(word), word)
    return dict(islice(folded.items(), most))


def list_values(texts: Sequence[ItemText]) -> dict[str, list[int]]:
    """List the items of each value that a query may ask for."""
    owners = defaultdict[str, list[int]](list)
    for text in texts:
        for value in text.attributes:
            owners[value].append(text.item_row)
    shared = [value for value, rows in owners.items() if len(rows) >= MIN_ITEMS]
    shared.sort(key=lambda value: (-len(owners[value]), value))
    return {value: owners[value] for value in shared[:MAX_VALUES]}


def fit_meanings(
    texts: Sequence[ItemText],
    encoder: Encoder | None,
    content: Vectors,
    most_words: int,
    cache: Path | None = None,
) -> Meanings | None:
    """Encode words and values; None if the encoder knows no meanings, or nothing is left.

    Args:
        content: Vectors of the items, which begin with those of the encoder, [N, E].
        cache: Folder of the encoder's vectors, by default that of all content.
    """
    if encoder is None or isinstance(encoder, HashEncoder) or not most_words:
        return None
    prefix = ""
    if isinstance(encoder, PrefixedEncoder):
        prefix, encoder = encoder.query_prefix, encoder.encoder
    words, values = list_words(encoder, most_words), list_values(texts)
    items = np.asarray(content[:, : encoder.dim], np.float32)
    if not words or not values or not items.any():
        return None
    read = [f"{prefix}{word}" for word in (*words.values(), *values)]
    vectors = encode_cached(read, encoder, cache or cache_dir("embeddings"))
    return Meanings.build(list(words), vectors[: len(words)], items, values, vectors[len(words) :])
