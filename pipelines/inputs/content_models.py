"""The configured encoder, and where its files are.

Columns of the catalogue that are encoded with the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from features.tables import kind_of_column
from pipelines.config.content import ENCODERS, WITH_WORDS, ContentConfig
from pipelines.engine.artifacts import cache_dir, files_under, read_json
from recsys.content.columns import ColumnEncoder, EncodedColumn
from recsys.content.embedding_cache import encode_cached
from recsys.content.encoder import (
    Encoder,
    HashEncoder,
    PrefixedEncoder,
    SentenceTransformerEncoder,
    Vectors,
)
from recsys.content.endpoint_encoder import EndpointEncoder
from recsys.content.latent_words import LatentWords
from recsys.content.minilm import MiniLMEncoder
from recsys.content.prompt import item_text
from recsys.content.transformer_encoder import MODEL_ENDINGS, TransformerEncoder, model_digest


def make_encoder(config: ContentConfig) -> Encoder | None:
    """Build the configured encoder, without words; None where text is left out."""
    if config.encoder == "none":
        return None
    if config.encoder in ("minilm", WITH_WORDS):
        return MiniLMEncoder()
    if config.encoder == "hash":
        return HashEncoder()
    if config.encoder == "endpoint":
        assert config.endpoint is not None
        return _prefixed(EndpointEncoder(config.endpoint), config, {})
    path = Path(config.encoder)
    encoder: Encoder
    if (path / "modules.json").is_file():
        encoder = SentenceTransformerEncoder(path, name=f"{path.name}-{model_digest(path)}")
    else:
        encoder = TransformerEncoder(path, pooling=config.pooling, max_tokens=config.max_tokens)
    return _prefixed(encoder, config, read_prompts(path))


WORD_WEIGHT = 1.5
"""Length of the words' part; that of the meaning is 1."""


def read_words(config: ContentConfig, path: Path) -> LatentWords | None:
    """Read the words that a catalogue was encoded with; None if the encoder has none.

    Raises:
        ValueError: An earlier version hashed words, and there is no file of them.
    """
    if config.encoder != WITH_WORDS:
        return None
    if not path.is_file():
        raise ValueError(
            f"{path} is missing: an earlier version hashed the words of these items, which this "
            "one does not. Run the whole pipeline again (recsys run)"
        )
    return LatentWords.load(path)


def name_vectors(encoder: Encoder | None, words: LatentWords | None) -> str:
    """Name what an encoder and words make of texts."""
    name = "none" if encoder is None else encoder.name
    return name if words is None else f"{name}+{WORD_WEIGHT:g}x{words.name}"


def encode_texts(
    texts: Sequence[str],
    encoder: Encoder | None,
    words: LatentWords | None,
    progress: Callable[[int, int], None] | None = None,
) -> Vectors:
    """Encode texts by meaning, from the cache where it has them, then by words, [n, D]."""
    if encoder is None:
        return np.zeros((len(texts), 0), np.float32)
    vectors = encode_cached(texts, encoder, cache_dir("embeddings"), progress=progress)
    if words is None:
        return vectors
    return np.hstack([vectors, np.float32(WORD_WEIGHT) * words.encode(texts)])


def read_prompts(folder: Path) -> Mapping[str, str]:
    """Read the prefixes by kind of text that a model names; none if it adds one by itself."""
    file = folder / "config_sentence_transformers.json"
    document = read_json(file) if file.is_file() else {}
    return {} if document.get("default_prompt_name") else document.get("prompts") or {}


def _prefixed(encoder: Encoder, config: ContentConfig, prompts: Mapping[str, str]) -> Encoder:
    """Put the configured prefixes before texts and queries, else those of the model."""
    passage, query = config.passage_prefix, config.query_prefix
    if passage is None:
        passage = prompts.get("passage") or prompts.get("document") or ""
    query = prompts.get("query", "") if query is None else query
    return PrefixedEncoder(encoder, passage, query) if passage or query else encoder


def encoder_files(config: ContentConfig) -> Mapping[str, Path]:
    """List the files of an encoder that is given by path: a change of them is a change of it."""
    if config.encoder in ENCODERS:
        return {}
    path = Path(config.encoder)
    if not path.exists():
        raise ValueError(f"content.encoder: there is no file or folder {path.absolute()}")
    files = [path] if path.is_file() else files_under(path)
    return {
        f"content.encoder/{file.relative_to(path.parent)}": file
        for file in files
        if file.suffix in MODEL_ENDINGS
    }


TEXT_PARTS = ("title", "description", "brand", "categories")


def describe_item(item: Mapping[str, Any], config: ContentConfig) -> str:
    """Write a catalogue row in one line."""
    known = {name: item.get(name) for name in config.text_columns}
    further = [str(value) for name, value in known.items() if value and name not in TEXT_PARTS]
    return item_text(
        known.get("title"),
        description=known.get("description"),
        brand=known.get("brand"),
        categories=known.get("categories") or (),
        further=further,
    )


def column_named(items: pl.DataFrame, name: str, setting: str) -> pl.Series:
    """Take a column that a setting names."""
    if name not in items.columns:
        free = sorted(set(items.columns) - {"item_id", "item_row", "display_text"})
        raise ValueError(
            f"{setting}, which the items do not have; there are: {', '.join(free) or 'none'}"
        )
    return items[name]


def fit_columns(items: pl.DataFrame, config: ContentConfig) -> ColumnEncoder:
    """Look at the catalogue's columns that ``content.columns`` names."""
    fitted = []
    for name in config.columns:
        column = column_named(items, name, f"content.columns names {name!r}")
        fitted.append(EncodedColumn.fit(name, kind_of_column(column), column.to_list()))
    return ColumnEncoder(tuple(fitted), config.column_weight)


def column_values(items: pl.DataFrame, columns: ColumnEncoder) -> dict[str, list[Any]]:
    """Read the values of encoded columns; one that the items lack is missing."""
    names = [one.name for one in columns.columns if one.name in items.columns]
    return {name: items[name].to_list() for name in names}
