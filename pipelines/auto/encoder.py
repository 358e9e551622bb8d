"""How long the encoder of texts takes on this machine, timed on a few texts before a plan is made.

What is encoded here goes into the cache of embeddings, so no text is encoded, or paid for, twice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.config.content import ContentConfig
from pipelines.inputs.content_models import cache_dir, make_encoder, text_of
from recsys.content.embedding_cache import encode_cached, missing_texts

BATCHES = (8, 64, 128)
"""Texts that are timed one batch after the other, 200 in all; the first one also loads weights."""
ENOUGH_SECONDS = 5.0
"""Seconds after which no further batch is timed."""


@dataclass(frozen=True, kw_only=True)
class TimedEncoder:
    """An encoder and its seconds for the texts of a catalogue."""

    name: str
    dim: int
    seconds: float
    """Time to load it and to encode every text that is not in the cache."""


def time_encoder(items: Path, content: ContentConfig) -> TimedEncoder | None:
    """Time the configured encoder on up to 200 texts of a catalogue; None without an encoder.

    Args:
        items: The catalogue's Parquet file.
        content: Names the encoder and the columns that make up a text.
    """
    begin = time.perf_counter()
    encoder = make_encoder(content)
    if encoder is None:
        return None
    cache = cache_dir("embeddings")
    rows = pl.read_parquet(items).iter_rows(named=True)
    missing = missing_texts([text_of(row, content) for row in rows], encoder, cache)
    drawn = np.random.default_rng(0).permutation(len(missing))
    done, start = 0, time.perf_counter()
    for size in BATCHES:
        batch = [missing[place] for place in drawn[done : done + size]]
        last = time.perf_counter()
        if not batch or last - start > ENOUGH_SECONDS:
            break
        encode_cached(batch, encoder, cache)
        done += len(batch)
        each = (time.perf_counter() - last) / len(batch)
    left = (len(missing) - done) * each if done else 0.0
    load = start - begin
    return TimedEncoder(name=encoder.name, dim=encoder.dim, seconds=load + left)
