"""Stage embed_items: text, words and columns of every catalogue item as a vector.

Texts are cached by their hashes; ``words.safetensors`` keeps how words were encoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.config.content import WITH_WORDS
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import to_json
from pipelines.engine.console import log
from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.content_models import (
    column_values,
    describe_item,
    encode_texts,
    encoder_files,
    fit_columns,
    make_encoder,
    name_vectors,
)
from pipelines.inputs.tensors import CONTENT_FILE, WORDS_FILE
from pipelines.stages.enrich_items import described_by, load_enrichment
from recsys.content.attribute_schema import build_extraction
from recsys.content.attributes import enriched_text
from recsys.content.columns import ColumnEncoder
from recsys.content.latent_words import LatentWords


def raw_files(config: RunConfig) -> Mapping[str, Path]:
    """List the files of an encoder that is given by path."""
    return encoder_files(config.content)


def embed_items(
    context: StageContext, columns: ColumnEncoder | None = None, words: LatentWords | None = None
) -> StageRows:
    """Write [num_item_rows, D] float32; row 0 and items of which nothing is known are zeros.

    An item's text gains the attributes that enrichment found for it. Its words and columns follow
    the text's vector; how both are encoded is fitted here, unless it is given.
    """
    config = context.config.content
    items = pl.read_parquet(context.inputs["build_features"] / "items.parquet").sort("item_row")
    extraction = build_extraction(context.config.enrichment.attributes)
    known = load_enrichment(context.inputs["enrich_items"], extraction)
    encoder = make_encoder(config)
    rows = list(items.iter_rows(named=True))
    values = [known.get(row["item_row"]) for row in rows]
    pairs = zip((describe_item(row, config) for row in rows), values, strict=True)
    texts = [enriched_text(*one, extraction.schema) for one in pairs]

    def report(done: int, total: int) -> None:
        if context.show_progress and log.is_terminal:
            log.print(f"  {done:,} of {total:,} texts", style="dim")

    if config.encoder == WITH_WORDS:
        words = LatentWords.fit(texts) if words is None else words
        words.save(context.output / WORDS_FILE)
    encoded = encode_texts(texts, encoder, words, report)
    columns = fit_columns(items, config) if columns is None else columns
    if columns.dim:
        encoded = np.hstack([encoded, columns.encode(column_values(items, columns), len(texts))])
    vectors = np.pad(encoded, ((1, 0), (0, 0)))
    np.save(context.output / CONTENT_FILE, vectors)
    num_texts = sum(bool(text) for text in texts)
    summary = {
        "encoder": name_vectors(encoder, words),
        "text_encoder": name_vectors(encoder, None),
        "text_dim": encoder.dim if encoder else 0,
        "dim": vectors.shape[1],
        "num_items": len(texts),
        "columns": columns.document(),
        "num_texts": num_texts,
        "num_enriched": len(known),
        "described_by": described_by(context.inputs["enrich_items"]) if known else None,
    }
    (context.output / "content.json").write_text(to_json(summary))
    return StageRows(rows_in=len(texts), rows_out=num_texts)
