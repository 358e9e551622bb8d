"""Generated worlds with a known truth, to tables."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from pipelines.datasets.parsers import RawTables, unix_seconds
from tests.recsys.testing.world_text import DOMAINS
from tests.recsys.testing.worlds import frozen_world


def find_tables(name: str) -> RawTables:
    """Generate a frozen world as raw tables.

    The segment of each user, which is all that decides the taste, is a column of the users.
    """
    world = frozen_world(name)
    events, catalogue, truth = world.events, world.catalogue, world.truth
    columns = {
        "user_id": events.user_ids,
        "item_id": events.item_ids,
        "event_time": events.times,
        "event_type": events.event_types,
        "value": events.values,
        "domain": events.domains,
        "session_id": events.session_ids,
        "request_id": events.request_ids,
        "slot": events.slots,
        "propensity": events.propensities,
    }
    if len(events.hints):
        columns["hint"] = events.hints
    domains = list(DOMAINS)
    items = {
        "item_id": catalogue.item_ids,
        "title": catalogue.titles,
        "description": catalogue.descriptions,
        "categories": catalogue.categories,
        "price": catalogue.prices,
        "domain": [domains[domain] for domain in truth.domain_of_item.tolist()],
        "available_from": [
            datetime.fromtimestamp(second, UTC) for second in world.available_from.tolist()
        ],
    }
    segments = truth.segment_of_user.tolist()
    users = {
        "user_id": [f"user-{number}" for number in range(len(segments))],
        "segment": [f"segment-{segment}" for segment in segments],
    }
    return RawTables(
        events=pl.DataFrame(columns).with_columns(unix_seconds("event_time")),
        items=pl.DataFrame(items),
        users=pl.DataFrame(users),
    )


def write_tables(name: str, folder: Path) -> None:
    """Write a frozen world as events.parquet, items.parquet and users.parquet."""
    folder.mkdir(parents=True, exist_ok=True)
    find_tables(name).write(folder)
