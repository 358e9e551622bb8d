"""Amazon reviews 2014 (McAuley, UCSD), 5-core: the literature's exact sequences, to tables."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from pipelines.datasets.tables import Tables, unix_seconds


def amazon_five_core(directory: Path) -> Tables:
    """Parse interactions.parquet and items.parquet.

    ``position`` is the literature's order. Times, where there are any, have the resolution of a
    day, so within a day the order is the files', not the buyers'. Attribute ids stand in for names
    where no item has its names.
    """
    interactions = pl.read_parquet(directory / "interactions.parquet")
    times = [unix_seconds("timestamp")] if "timestamp" in interactions.columns else []
    events = interactions.select(
        pl.col("user").alias("user_id"),
        pl.col("item").alias("item_id"),
        *times,
        pl.col("position").alias("sequence_index"),
        pl.lit("review").alias("event_type"),
    )
    catalogue = pl.read_parquet(directory / "items.parquet")
    named = bool((catalogue["attributes"].list.len() > 0).any())
    numbered = pl.col("attribute_ids").list.eval(pl.format("attribute {}", pl.element()))
    items = catalogue.select(
        pl.col("item").alias("item_id"),
        pl.col("tags").alias("title"),
        (pl.col("attributes") if named else numbered).alias("categories"),
    )
    return Tables(events=events, items=items)
