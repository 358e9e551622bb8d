"""Stage enrich_items: item attributes by a language model; off unless a model is named.

enrichment.parquet      item_row, item_id, attribute, values, model, prompt_version, time
not_enriched.parquet    item_row, item_id, reason
enrichment.json         model, kinds of attributes, counts and tokens of all runs
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.engine.artifacts import cache_dir, read_json, to_json
from pipelines.engine.console import log
from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.content_models import describe_item
from recsys.content.attribute_schema import Extraction, build_extraction
from recsys.content.attributes import Value
from recsys.content.endpoint import Endpoint
from recsys.content.enrichment import enrich
from recsys.content.enrichment_ledger import Enrichment
from recsys.content.prompt import type_of

ENRICHMENT_FILE = "enrichment.parquet"
ATTRIBUTE_COLUMNS: dict[str, Any] = {
    "item_row": pl.Int64,
    "item_id": pl.String,
    "attribute": pl.String,
    "values": pl.List(pl.String),
    "model": pl.String,
    "prompt_version": pl.String,
    "time": pl.String,
}
MISSING_COLUMNS: dict[str, Any] = {"item_row": pl.Int64, "item_id": pl.String, "reason": pl.String}


def load_enrichment(folder: Path, extraction: Extraction) -> dict[int, dict[str, Value]]:
    """Read the attributes of each item row that has any."""
    found: dict[int, dict[str, Value]] = {}
    rows = pl.read_parquet(folder / ENRICHMENT_FILE).select("item_row", "attribute", "values")
    for item_row, name, values in rows.iter_rows():
        is_list = type_of(extraction.schema["properties"][name]) == "array"
        found.setdefault(item_row, {})[name] = tuple(values) if is_list else values[0]
    return found


def described_by(folder: Path) -> dict[str, object]:
    """Describe the attributes' language model and prompt."""
    summary = read_json(folder / "enrichment.json")
    return {name: summary[name] for name in ("model", "prompt_version")}


def enrich_items(context: StageContext) -> StageRows:
    """Read attributes off every item's text, within the budget; without any, write empty tables."""
    config = context.config.enrichment
    items = pl.read_parquet(context.inputs["build_features"] / "items.parquet").sort("item_row")
    if config.model == "none" or not config.attributes:
        if config.model != "none":
            log.print("  enrichment.attributes names none, so none are read off the texts")
        return write_enrichment(context.output, items.clear(), None, {"model": "none"})
    assert config.endpoint is not None
    model = Endpoint(config.endpoint)
    texts = [describe_item(item, context.config.content) for item in items.iter_rows(named=True)]

    def report(done: int, total: int) -> None:
        if context.show_progress and log.is_terminal and (done % 100 == 0 or done == total):
            log.print(f"  {done:,} of {total:,} items", style="dim")

    extraction = build_extraction(config.attributes)
    result = enrich(texts, model, cache_dir("enrichment"), config, report)
    if result.budget_reached:
        log.print(
            f"  the enrichment budget is spent ({result.spent.total:,} tokens); items without "
            "attributes keep their own text. Raise enrichment.token_budget for more",
            style="yellow",
        )
    if result.num_left_out:
        log.print(
            f"  {result.num_left_out:,} items are left out: the model's answers broke the schema "
            f"{config.max_attempts} times (not_enriched.parquet has the reasons)",
            style="yellow",
        )
    summary = {
        "model": model.name,
        "prompt_version": extraction.version,
        "kinds": {name: type_of(one) for name, one in extraction.schema["properties"].items()},
        "num_left_out": result.num_left_out,
        "budget_reached": result.budget_reached,
        **result.spent._asdict(),
    }
    return write_enrichment(context.output, items, result, summary)


def write_enrichment(
    folder: Path, items: pl.DataFrame, result: Enrichment | None, summary: Mapping[str, Any]
) -> StageRows:
    """Write the two tables and the summary."""
    known: list[tuple[Any, ...]] = []
    missing: list[tuple[Any, ...]] = []
    for place, (row, item_id) in enumerate(items.select("item_row", "item_id").iter_rows()):
        assert result is not None
        attributes = result.attributes[place]
        if attributes is None:
            missing.append((row, item_id, result.reasons[place]))
            continue
        for name, (value, made) in attributes.items():
            values = [value] if isinstance(value, str) else list(value)
            known.append((row, item_id, name, values, *made))
    pl.DataFrame(known, ATTRIBUTE_COLUMNS, orient="row").write_parquet(folder / ENRICHMENT_FILE)
    pl.DataFrame(missing, MISSING_COLUMNS, orient="row").write_parquet(
        folder / "not_enriched.parquet"
    )
    num_enriched = len(items) - len(missing)
    counts = {"num_items": len(items), "num_enriched": num_enriched}
    (folder / "enrichment.json").write_text(to_json({**summary, **counts}))
    return StageRows(rows_in=len(items), rows_out=num_enriched)
