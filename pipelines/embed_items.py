"""Stage embed_items: the text of every catalogue item as a vector, cached by the text's hash."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pipelines.artifacts import to_json
from pipelines.config import ContentConfig
from pipelines.console import log
from pipelines.model_inputs import CONTENT_FILE
from pipelines.stage import StageContext, StageRows
from recsys.content.embedding_cache import encode_cached
from recsys.content.encoder import Encoder, HashEncoder, MiniLMEncoder
from recsys.content.text import item_text


def embedding_cache_dir() -> Path:
    """Return where encoded texts are kept for all workspaces (RECSYS_DATA_CACHE/embeddings)."""
    root = Path(os.environ.get("RECSYS_DATA_CACHE", "~/.cache/recsys")).expanduser()
    return root / "embeddings"


def make_encoder(config: ContentConfig) -> Encoder | None:
    """Build the configured encoder; None where text is left out."""
    if config.encoder == "none":
        return None
    return MiniLMEncoder() if config.encoder == "minilm" else HashEncoder()


def text_of(item: Mapping[str, Any], config: ContentConfig) -> str:
    """Say in one line what a catalogue row is."""
    known = {name: item.get(name) for name in config.text_columns}
    further = [str(value) for name, value in known.items() if value and name not in TEXT_PARTS]
    return item_text(
        known.get("title"),
        description=known.get("description"),
        brand=known.get("brand"),
        categories=known.get("categories") or (),
        further=further,
    )


TEXT_PARTS = ("title", "description", "brand", "categories")


def embed_items(context: StageContext) -> StageRows:
    """Write [num_item_rows, D] float32; row 0 and items without text are zeros."""
    config = context.config.content
    items = pl.read_parquet(context.inputs["build_features"] / "items.parquet").sort("item_row")
    encoder = make_encoder(config)
    texts = [text_of(item, config) for item in items.iter_rows(named=True)]
    vectors = np.zeros((len(texts) + 1, encoder.dim if encoder else 0), np.float32)
    if encoder is not None:

        def told(done: int, total: int) -> None:
            if context.show_progress and log.is_terminal:
                log.print(f"  {done:,} of {total:,} texts", style="dim")

        vectors[1:] = encode_cached(texts, encoder, embedding_cache_dir(), progress=told)
    np.save(context.output / CONTENT_FILE, vectors)
    num_texts = sum(bool(text) for text in texts)
    summary = {
        "encoder": encoder.name if encoder else "none",
        "dim": vectors.shape[1],
        "num_items": len(texts),
        "num_texts": num_texts,
    }
    (context.output / "content.json").write_text(to_json(summary))
    return StageRows(rows_in=len(texts), rows_out=num_texts)
