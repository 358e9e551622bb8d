"""Lists as tables; polars is imported on first use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from serving.schemas import Reply

if TYPE_CHECKING:
    import polars as pl


def user_ids(users: pl.DataFrame | Sequence[str]) -> list[str]:
    """Read user ids from a list, or from the column ``user_id`` of a frame."""
    columns = getattr(users, "columns", None)
    if columns is None:
        return [str(user_id) for user_id in users]
    if "user_id" not in columns:
        raise ValueError(f"users needs a column user_id, it has {list(columns)}; rename one")
    found = cast("pl.DataFrame", users)["user_id"]
    if found.null_count():
        row = found.is_null().arg_max()
        raise ValueError(f"user_id of row {row} is null; drop such rows, or fill them with any id")
    return [str(user_id) for user_id in found.to_list()]


def served_lists(users: Sequence[str], replies: Sequence[Reply]) -> pl.DataFrame:
    """Put lists into one table, a row an item."""
    rows = [
        (user_id, slot, item.item_id, item.score, item.source, item.title, reply.request_id)
        for user_id, reply in zip(users, replies, strict=True)
        for slot, item in enumerate(reply.items, start=1)
    ]
    return frame(rows, "user_id", "rank", "item_id", "score", "source", "title", "request_id")


def frame(rows: Sequence[tuple[Any, ...]], *columns: str) -> pl.DataFrame:
    """Build a table of texts, but for the columns ``rank`` and ``score``."""
    import polars as pl

    numbers = {"rank": pl.Int64, "score": pl.Float64}
    schema = {name: numbers.get(name, pl.String) for name in columns}
    return pl.DataFrame(list(rows), schema=schema, orient="row")
