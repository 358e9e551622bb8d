"""A small generated world with a known truth, as raw tables."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from pipelines.datasets.parsers import Tables, unix_seconds
from tests.recsys.testing.world_text import DOMAINS, START
from tests.recsys.testing.worlds import WorldConfig, world

TINY = WorldConfig(seed=11, num_users=60, num_items=96, num_requests=400, num_domains=2)


def tiny_tables() -> Tables:
    """Generate 60 users and 96 items of two domains.

    The segment of each user, which is all that decides the taste, is a column of the users.
    """
    made = world(TINY)
    irregular = {"times": "event_time", "propensities": "propensity"}
    columns = {
        irregular.get(name, name.removesuffix("s")): column
        for name, column in asdict(made.events).items()
    }
    catalogue, domains = made.catalogue, list(DOMAINS)
    segments = made.segment_of_user.tolist()
    return {
        "events": pl.DataFrame(columns).with_columns(unix_seconds("event_time")),
        "items": pl.DataFrame(
            {
                "item_id": catalogue.item_ids,
                "title": catalogue.titles,
                "description": catalogue.descriptions,
                "categories": catalogue.categories,
                "price": catalogue.prices,
                "domain": [domains[domain] for domain in made.domain_of_item.tolist()],
                "available_from": [datetime.fromtimestamp(START, UTC)] * len(catalogue.item_ids),
            }
        ),
        "users": pl.DataFrame(
            {
                "user_id": [f"user-{number}" for number in range(len(segments))],
                "segment": [f"segment-{segment}" for segment in segments],
            }
        ),
    }


def write_tiny_tables(folder: Path) -> None:
    """Write the world as events.parquet, items.parquet and users.parquet."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tiny_tables().items():
        table.write_parquet(folder / f"{name}.parquet")
