"""Lists as tables; polars is imported where a table is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from serving.schemas import Reply

if TYPE_CHECKING:
    import polars as pl


def users_of(users: pl.DataFrame | Sequence[str]) -> list[str]:
    """Give user ids.

    Raises:
        ValueError: A table has no column ``user_id``.
    """
    import polars as pl

    if not isinstance(users, pl.DataFrame):
        return [str(user_id) for user_id in users]
    if "user_id" not in users.columns:
        raise ValueError(f"the frame needs a column user_id, it has {users.columns}")
    return users["user_id"].cast(pl.String).to_list()


def lists_of(user_ids: Sequence[str], replies: Sequence[Reply]) -> pl.DataFrame:
    """Put lists into one table, a row an item."""
    import polars as pl

    rows = [
        (user_id, slot, item.item_id, item.score, item.source, item.title, reply.request_id)
        for user_id, reply in zip(user_ids, replies, strict=True)
        for slot, item in enumerate(reply.items, start=1)
    ]
    schema = {
        "user_id": pl.String,
        "rank": pl.Int64,
        "item_id": pl.String,
        "score": pl.Float64,
        "source": pl.String,
        "title": pl.String,
        "request_id": pl.String,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")
