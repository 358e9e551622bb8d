"""Histories and context features of many requests by the batch definitions, in Polars.

What training computes a feature by (`features.point_in_time`, an expression over rows ordered by
user and time) is computed here over the tables of the bundle and of the event log, each request a
user of its own whose last row is the request. Nothing of how serving computes them is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from features.point_in_time import FEATURES
from pipelines.parity.log import Document
from serving.bundle.load import Bundle
from serving.exclusions import read_cursor
from serving.online.store import RecentEvent

STALE = pl.duration(days=30)
KNOWN, LIVE, SENT, REQUEST = range(4)
ROWS = pl.Schema(
    {"request": pl.Int64(), "item_row": pl.Int64(), "time": pl.Int64(), "place": pl.Int64()}
)


class ByBatch(NamedTuple):
    """One request by the batch definitions."""

    moment: int
    features: Mapping[str, int]
    item_rows: Sequence[int]
    times: Sequence[int] | None


def batch_features(
    bundle: Bundle, documents: Sequence[Document], events: Sequence[Sequence[RecentEvent]]
) -> list[ByBatch]:
    """Compute histories and features of requests for a user or a session."""
    requests = _requests(bundle, documents)
    live, sent = _live(bundle, documents, events), _sent(bundle, documents)
    known = _known(bundle, requests)
    has_times = bundle.users.times is not None
    table = _merged(requests, known, live, sent) if has_times else _in_order(known, live, sent)
    asof = requests.select(
        "request",
        pl.lit(0, pl.Int64).alias("item_row"),
        (pl.col("moment") if has_times else _num_rows(requests, table)).alias("time"),
        pl.lit(0, pl.Int64).alias("place"),
        pl.lit(REQUEST, pl.Int64).alias("origin"),
    )
    columns = ["request", "item_row", "time", "place", "origin"]
    rows = pl.concat([table.select(columns), asof.select(columns)])
    order = ["request", "time", "origin", "place"]
    frame = rows.sort(order).rename({"request": "user_row", "time": "event_time"})
    found = frame.with_columns(
        FEATURES[name].expression.alias(f"context.{name}") for name in bundle.context_features
    )
    answers = found.filter(pl.col("origin") == REQUEST).sort("user_row")
    return _laid_out(bundle, requests, frame, answers)


def _requests(bundle: Bundle, documents: Sequence[Document]) -> pl.DataFrame:
    """Build a row for each request: its user's row, clock and moment."""
    fields = [document["request"] for document in documents]
    names = ("request", "user_row", "clock", "given", "forgotten")
    columns: tuple[list[Any], ...] = (
        list(range(len(fields))),
        [bundle.users.row_of(request.get("user_id", "")) or 0 for request in fields],
        [_clock(document) // 1_000 for document in documents],
        [request.get("context", {}).get("unix_time") for request in fields],
        [document.get("forgotten_ms") for document in documents],
    )
    schema = dict.fromkeys(names, pl.Int64())
    frame = pl.DataFrame(dict(zip(names, columns, strict=True)), schema=schema)
    newest = pl.lit(bundle.users.newest_time, pl.Int64)
    age = pl.duration(seconds=pl.col("clock") - newest)
    fresh = (age >= pl.duration(days=0)) & (age <= STALE)
    clock = pl.when(fresh | newest.is_null()).then(pl.col("clock")).otherwise(newest + 1)
    return frame.with_columns(
        pl.coalesce("given", clock).alias("moment"),
        pl.when(pl.col("given").is_null()).then(clock - pl.col("clock")).otherwise(0).alias("late"),
    )


def _clock(document: Document) -> int:
    """Return the clock of a list, or of its first page."""
    cursor = document["request"].get("cursor")
    if cursor is None:
        return int(document["unix_ms"])
    return read_cursor(cursor, document["unix_ms"]).now_ms


def _known(bundle: Bundle, requests: pl.DataFrame) -> pl.DataFrame:
    """List what the bundle knows of each request's user, strictly before its moment."""
    users, rows = bundle.users, requests["user_row"].unique().sort().to_list()
    nothing = np.empty(0, np.int64)
    items = [users.history(row) for row in rows]
    times = [users.history_times(row) for row in rows] if users.times is not None else None
    histories = pl.DataFrame(
        {
            "user_row": np.repeat(np.array(rows, np.int64), [len(own) for own in items]),
            "item_row": np.concatenate([nothing, *items]),
            "time": 0 if times is None else np.concatenate([nothing, *times]),
        }
    ).with_row_index("place")
    found = requests.join(histories.cast(pl.Int64), on="user_row", maintain_order="left_right")
    if times is None:
        return found.filter(pl.col("forgotten").is_null()).select(*ROWS)
    is_left = 1_000 * pl.col("time") >= pl.col("forgotten")
    kept = (pl.col("time") < pl.col("moment")) & is_left.fill_null(value=True)
    return found.filter(kept).select(*ROWS)


def _live(
    bundle: Bundle, documents: Sequence[Document], events: Sequence[Sequence[RecentEvent]]
) -> pl.DataFrame:
    """List the log's events of items that the bundle has and the request does not name itself."""
    row_of = bundle.catalogue.row_of
    rows = [
        (request, row_of(event.item_id), event.time_ms // 1_000, place)
        for request, (document, own) in enumerate(zip(documents, events, strict=True))
        for place, event in enumerate(own)
        if event.item_id not in (document["request"].get("session") or ())
    ]
    return pl.DataFrame(rows, schema=ROWS, orient="row").drop_nulls("item_row")


def _sent(bundle: Bundle, documents: Sequence[Document]) -> pl.DataFrame:
    """List the items that requests name; their times are set later."""
    row_of = bundle.catalogue.row_of
    rows = [
        (request, row_of(item_id), 0, place)
        for request, document in enumerate(documents)
        for place, item_id in enumerate(document["request"].get("session") or ())
    ]
    return pl.DataFrame(rows, schema=ROWS, orient="row").drop_nulls("item_row")


def _merged(
    requests: pl.DataFrame, known: pl.DataFrame, live: pl.DataFrame, sent: pl.DataFrame
) -> pl.DataFrame:
    """Put the log's events where they belong among those of the bundle; none counts twice."""
    last = known.group_by("request").agg(pl.col("time").max().alias("last"))
    of_request = requests.select("request", "moment", "late").join(last, on="request", how="left")
    new = live.join(known, on=["request", "item_row", "time"], how="anti", maintain_order="left")
    new = new.join(of_request, on="request", maintain_order="left")
    moved = pl.col("time") + pl.col("late")
    # Where the clock is moved back to the bundle's last day, what came after it stays after it.
    after = pl.when(pl.col("late") != 0).then(pl.max_horizontal(moved, "last")).otherwise(moved)
    new = new.with_columns(pl.min_horizontal(after, pl.col("moment") - 1).alias("time"))
    just_now = requests.select("request", pl.col("moment") - 1)
    own = sent.drop("time").join(just_now, on="request").rename({"moment": "time"})
    return _stacked(known, new, own)


def _in_order(known: pl.DataFrame, live: pl.DataFrame, sent: pl.DataFrame) -> pl.DataFrame:
    """Number the events of data that has an order and no times."""
    rows = _stacked(known, live, sent).sort("request", "origin", "place", maintain_order=True)
    return rows.with_columns(pl.int_range(pl.len()).over("request").alias("time"))


def _stacked(*parts: pl.DataFrame) -> pl.DataFrame:
    origins = (KNOWN, LIVE, SENT)
    return pl.concat(
        part.select(*ROWS, pl.lit(origin, pl.Int64).alias("origin"))
        for part, origin in zip(parts, origins, strict=True)
    )


def _num_rows(requests: pl.DataFrame, table: pl.DataFrame) -> pl.Series:
    counted = requests.select("request").join(
        table.group_by("request").len("count"), on="request", how="left", maintain_order="left"
    )
    return counted["count"].fill_null(0).cast(pl.Int64)


def _laid_out(
    bundle: Bundle, requests: pl.DataFrame, frame: pl.DataFrame, answers: pl.DataFrame
) -> list[ByBatch]:
    """Collect features and history of each request."""
    histories = (
        frame.filter(pl.col("origin") != REQUEST).group_by("user_row").agg("item_row", "event_time")
    )
    by_request = {row: (items, times) for row, items, times in histories.iter_rows()}
    names = [f"context.{name}" for name in bundle.context_features]
    user = pl.when(pl.col("forgotten").is_null()).then(pl.col("user_row")).otherwise(0)
    rows = requests.select("moment", user.alias("user")).with_columns(
        pl.lit(pl.Series(np.asarray(values))).gather(pl.col("user")).alias(f"user.{name}")
        for name, values in bundle.users.features.items()
    )
    rows = pl.concat([rows, answers.select(names)], how="horizontal")
    has_times = bundle.users.times is not None
    found = []
    for request, values in enumerate(rows.iter_rows(named=True)):
        moment = values.pop("moment")
        items, times = by_request.get(request, ([], []))
        found.append(ByBatch(moment, values, items, times if has_times else None))
    return found
