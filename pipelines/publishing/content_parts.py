"""Parts of a bundle about texts: how items were encoded, and the search by a text."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from pipelines.candidates.blends import TEXT_SEARCH
from pipelines.engine.artifacts import plain, read_json
from pipelines.engine.stage import StageContext
from pipelines.searching.texts import item_texts
from recsys.models.text_search.search import TextSearch
from serving.bundle.manifest import ContentSource, EnrichmentSource


def content_source(context: StageContext) -> ContentSource:
    """Describe how items were encoded, so that appended items are encoded equally."""
    config = context.config
    made = read_json(context.inputs["embed_items"] / "content.json")
    enrichment = None
    if made["described_by"] is not None:
        settings = plain(config.enrichment)
        enrichment = EnrichmentSource(settings=settings, **made["described_by"])
    return ContentSource(
        encoder=config.content.encoder,
        text_columns=list(config.content.text_columns),
        settings=plain(config.content),
        table={
            "columns": dict(config.data.item_columns),
            "separator": config.data.separator,
            "list_separator": config.data.list_separator,
        },
        name=made["encoder"],
        columns=made["columns"],
        images=made["images"],
        enrichment=enrichment,
    )


def text_search(context: StageContext, order: str, items: pl.DataFrame) -> Path | None:
    """Locate the text search, extended to items that came after it was fitted."""
    fitted = context.inputs["fit_blend"] / order / TEXT_SEARCH
    if not fitted.exists():
        return None
    search = TextSearch.load(fitted)
    more = [text.text for text in item_texts(items)[search.num_item_rows - 1 :]]
    if not more:
        return fitted
    search.grown(more).save(context.output / TEXT_SEARCH)
    return context.output / TEXT_SEARCH
