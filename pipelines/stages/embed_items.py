"""Stage embed_items: text and columns of every catalogue item as a vector.

Texts are cached by their hashes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import cache_dir, to_json
from pipelines.engine.console import log
from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.content_models import (
    column_values,
    describe_item,
    encoder_files,
    fit_columns,
    make_encoder,
)
from pipelines.inputs.tensors import CONTENT_FILE
from pipelines.stages.enrich_items import described_by, load_enrichment
from recsys.content.attribute_schema import build_extraction
from recsys.content.attributes import enriched_text
from recsys.content.columns import ColumnEncoder
from recsys.content.embedding_cache import encode_cached


def raw_files(config: RunConfig) -> Mapping[str, Path]:
    """List the files of an encoder that is given by path."""
    return encoder_files(config.content)


def embed_items(context: StageContext, columns: ColumnEncoder | None = None) -> StageRows:
    """Write [num_item_rows, D] float32; row 0 and items of which nothing is known are zeros.

    An item's text gains the attributes that enrichment found for it. Its columns follow the text's
    vector.
    """
    config = context.config.content
    items = pl.read_parquet(context.inputs["build_features"] / "items.parquet").sort("item_row")
    extraction = build_extraction(context.config.enrichment.attributes)
    known = load_enrichment(context.inputs["enrich_items"], extraction)
    encoder = make_encoder(config)
    rows = list(items.iter_rows(named=True))
    values = [known.get(row["item_row"]) for row in rows]
    texts = [describe_item(row, config) for row in rows]
    vectors = np.zeros((len(texts) + 1, encoder.dim if encoder else 0), np.float32)
    if encoder is not None:

        def report(done: int, total: int) -> None:
            if context.show_progress and log.is_terminal:
                log.print(f"  {done:,} of {total:,} texts", style="dim")

        pairs = zip(texts, values, strict=True)
        texts = [enriched_text(*one, extraction.schema) for one in pairs]
        vectors[1:] = encode_cached(texts, encoder, cache_dir("embeddings"), progress=report)
    columns = fit_columns(items, config) if columns is None else columns
    if columns.dim:
        encoded = columns.encode(column_values(items, columns), len(texts))
        vectors = np.hstack([vectors, np.pad(encoded, ((1, 0), (0, 0)))])
    np.save(context.output / CONTENT_FILE, vectors)
    num_texts = sum(bool(text) for text in texts)
    summary = {
        "encoder": encoder.name if encoder else "none",
        "dim": vectors.shape[1],
        "num_items": len(texts),
        "columns": columns.document(),
        "num_texts": num_texts,
        "num_enriched": len(known),
        "described_by": described_by(context.inputs["enrich_items"]) if known else None,
    }
    (context.output / "content.json").write_text(to_json(summary))
    return StageRows(rows_in=len(texts), rows_out=num_texts)
