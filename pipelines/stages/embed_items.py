"""Stage embed_items: text and columns of every catalogue item as a vector.

Texts are cached by their hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.config.content import ContentConfig
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import read_json, to_json
from pipelines.engine.console import log
from pipelines.engine.stage import StageContext, StageRows
from pipelines.executor.ray_cluster import ray_cluster
from pipelines.inputs.content_models import cache_dir, encoder_files, make_encoder, text_of
from pipelines.inputs.item_columns import column_values, fit_columns
from pipelines.inputs.tensors import CONTENT_FILE
from pipelines.stages.enrich_items import load_enrichment
from recsys.content.attributes import enriched_text
from recsys.content.columns import ColumnEncoder
from recsys.content.embedding_cache import encode_cached, in_turn
from recsys.content.encoder import Encoder, HashEncoder, Vectors
from recsys.content.joined_encoder import JoinedEncoder


def raw_files(config: RunConfig) -> Mapping[str, Path]:
    """Name the files of an encoder that is given by path."""
    return encoder_files(config.content)


def encoded_on_ray(
    config: RunConfig, encoder: Encoder, batches: Iterable[list[str]]
) -> Iterator[Vectors]:
    """Encode each batch as a task of the Ray cluster, [n, D]."""
    todo = list(batches)
    if isinstance(encoder, HashEncoder) or len(todo) < 2:
        yield from in_turn(encoder, todo)
        return
    with ray_cluster(config.ray) as run:
        yield from run(encoded_on_node, [(config.content, texts) for texts in todo])


def encoded_on_node(task: tuple[ContentConfig, list[str]]) -> Vectors:
    """Encode a batch where this runs, [n, D]; words that are put beside are not this task's."""
    config, texts = task
    encoder = encoder_here(config)
    return (encoder.first if isinstance(encoder, JoinedEncoder) else encoder).encode(texts)


@lru_cache(maxsize=1)
def encoder_here(config: ContentConfig) -> Encoder:
    """Load a task's encoder once a process."""
    encoder = make_encoder(config)
    assert encoder is not None
    return encoder


def described_by(folder: Path) -> dict[str, str]:
    """Name the language model and the prompt behind the attributes of items."""
    summary = read_json(folder / "enrichment.json")
    return {name: summary[name] for name in ("model", "prompt_version")}


def embed_items(context: StageContext, columns: ColumnEncoder | None = None) -> StageRows:
    """Write [num_item_rows, D] float32; row 0 and items of which nothing is known are zeros.

    An item's text gains the topics, summary and queries that enrichment found for it; its columns
    stand behind the text's vector.

    Args:
        context: The run's.
        columns: How columns were encoded before; None looks at the catalogue.
    """
    config = context.config.content
    items = pl.read_parquet(context.inputs["build_features"] / "items.parquet").sort("item_row")
    known = load_enrichment(context.inputs["enrich_items"])
    encoder = make_encoder(config)
    texts = [
        enriched_text(text_of(item, config), known.get(item["item_row"]))
        for item in items.iter_rows(named=True)
    ]
    vectors = np.zeros((len(texts) + 1, encoder.dim if encoder else 0), np.float32)
    if encoder is not None:

        def report(done: int, total: int) -> None:
            if context.show_progress and log.is_terminal:
                log.print(f"  {done:,} of {total:,} texts", style="dim")

        cache = cache_dir("embeddings")
        if context.config.engine == "ray":
            encoding = partial(encoded_on_ray, context.config)
            vectors[1:] = encode_cached(texts, encoder, cache, progress=report, encoding=encoding)
        else:
            vectors[1:] = encode_cached(texts, encoder, cache, progress=report)
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
