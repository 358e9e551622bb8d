"""Records of served lists as columns: what charts are made of, and no ids of users or items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import orjson
import polars as pl

from pipelines.experiments.collected import LISTS as ARMS
from serving.metrics import DEGRADED_CODES, STAGES
from serving.online.store import RequestRecord

CODES = (*DEGRADED_CODES, "other")
"""Each is a bit of the column ``codes``, in this order."""
FAILED = ("late_source", "failed_source", "late_stage", "failed_stage", "failed_store")
"""Something was late or broke; every other code says what was not known, or not there."""
GROUPS = ("bundle", "surface")
COUNTS = ("lists", "late or failed part", "fallback", "no user", *CODES)
STAGE_COLUMNS = tuple(f"{stage}_ms" for stage in STAGES)
LISTS = pl.Schema(
    {
        "time_ms": pl.Int64(),
        "bundle": pl.Categorical(),
        "surface": pl.Categorical(),
        "fallback": pl.Categorical(),
        "named_user": pl.Boolean(),
        "codes": pl.UInt32(),
        "num_items": pl.UInt16(),
        **dict.fromkeys(STAGE_COLUMNS, pl.Float32()),
    }
)
"""A row a list."""
MINUTE_MS = 60_000
SOURCES = pl.Schema(
    {
        "minute_ms": pl.Int64(),
        "bundle": pl.Categorical(),
        "surface": pl.Categorical(),
        "source": pl.Categorical(),
        "items": pl.UInt32(),
    }
)
"""Items that were shown by source, counted by minute."""
_DOCUMENT = pl.Schema(
    {
        "unix_ms": pl.Int64(),
        "request_id": pl.String(),
        "bundle": pl.String(),
        "surface": pl.String(),
        "user_id": pl.String(),
        "degraded": pl.List(pl.String()),
        "fallback": pl.String(),
        "items": pl.List(pl.Struct({"source": pl.String()})),
        "timings_ms": pl.Struct({stage: pl.Float64() for stage in STAGES}),
        "experiment": pl.Struct({"name": pl.String(), "arm": pl.String()}),
    }
)


class Columns(NamedTuple):
    """Some lists."""

    lists: pl.DataFrame
    """`LISTS`."""
    sources: pl.DataFrame
    """`SOURCES`."""
    arms: pl.DataFrame
    """Lists of experiments, as `pipelines.experiments` reads them; users by hashes of their ids."""
    num_unreadable: int = 0


EMPTY = Columns(pl.DataFrame(schema=LISTS), pl.DataFrame(schema=SOURCES), pl.DataFrame(schema=ARMS))


def columns_of(records: Sequence[RequestRecord]) -> Columns:
    """Lay records out; those that are none are counted and left out."""
    documents, num_unreadable = _parsed([record.document for record in records])
    shown = documents["items"].list.len().fill_null(0)
    lists = documents.select(
        pl.col("unix_ms").alias("time_ms"),
        *(_category(name) for name in ("bundle", "surface")),
        # Most lists are made by no fallback.
        pl.col("fallback").cast(pl.Categorical),
        pl.col("user_id").is_not_null().alias("named_user"),
        _bits().alias("codes"),
        pl.lit(shown).clip(0, 65_535).cast(pl.UInt16).alias("num_items"),
        *(
            pl.col("timings_ms").struct.field(stage).cast(pl.Float32).alias(column)
            for stage, column in zip(STAGES, STAGE_COLUMNS, strict=True)
        ),
    )
    sources = (
        documents.select(
            (pl.col("unix_ms") // MINUTE_MS * MINUTE_MS).alias("minute_ms"),
            *(_category(name) for name in ("bundle", "surface")),
            pl.col("items").list.eval(pl.element().struct.field("source")).alias("source"),
        )
        .explode("source")
        .drop_nulls("source")
        .group_by("minute_ms", "bundle", "surface", "source")
        .agg(pl.len().alias("items"))
        .cast(SOURCES)
    )
    arms = documents.filter(pl.col("experiment").is_not_null()).select(
        "request_id",
        pl.when(pl.col("user_id").is_not_null())
        .then(pl.col("user_id").hash().cast(pl.String))
        .alias("user_id"),
        pl.col("experiment").struct.field("name").alias("experiment"),
        pl.col("experiment").struct.field("arm").alias("arm"),
        pl.col("unix_ms").alias("served_ms"),
    )
    return Columns(lists, sources, arms.drop_nulls(["experiment", "arm"]), num_unreadable)


def joined(parts: Sequence[Columns]) -> Columns:
    """Put several behind each other."""
    parts = [EMPTY, *parts]
    return Columns(
        pl.concat([part.lists for part in parts]),
        pl.concat([part.sources for part in parts]),
        pl.concat([part.arms for part in parts]),
        sum(part.num_unreadable for part in parts),
    )


def counts_of(lists: pl.DataFrame) -> pl.DataFrame:
    """Count lists by minute, bundle and surface, and how many of them had each code."""
    return (
        lists.group_by((pl.col("time_ms") // MINUTE_MS * MINUTE_MS).alias("minute_ms"), *GROUPS)
        .agg(
            pl.len().cast(pl.Int64).alias("lists"),
            pl.col("time_ms").min().alias("first_ms"),
            has_code(*FAILED).sum().alias("late or failed part"),
            pl.col("fallback").is_not_null().sum().alias("fallback"),
            (~pl.col("named_user")).sum().alias("no user"),
            *(has_code(code).sum().alias(code) for code in CODES),
        )
        .sort("minute_ms")
    )


def has_code(*codes: str) -> pl.Expr:
    """Whether a list has any of some codes."""
    mask = sum(1 << CODES.index(code) for code in codes)
    return (pl.col("codes") & mask) != 0


def _category(name: str) -> pl.Expr:
    return pl.col(name).fill_null("unknown").cast(pl.Categorical)


def _bits() -> pl.Expr:
    named = pl.col("degraded")
    bits = [
        named.list.contains(code).fill_null(False).cast(pl.UInt32) * (1 << place)
        for place, code in enumerate(DEGRADED_CODES)
    ]
    others = named.list.set_difference(list(DEGRADED_CODES)).list.len().fill_null(0) > 0
    bits.append(others.cast(pl.UInt32) * (1 << len(DEGRADED_CODES)))
    return pl.sum_horizontal(bits).cast(pl.UInt32)


def _parsed(documents: Sequence[bytes]) -> tuple[pl.DataFrame, int]:
    """Parse JSON in one go; where a document spoils it, one by one."""
    try:
        return _read(documents), 0
    except (pl.exceptions.PolarsError, ValueError):
        whole = [document for document in documents if _is_whole(document)]
        return _read(whole), len(documents) - len(whole)


def _read(documents: Sequence[bytes]) -> pl.DataFrame:
    if not documents:
        return pl.DataFrame(schema=_DOCUMENT)
    return pl.read_ndjson(b"\n".join(documents), schema=_DOCUMENT).drop_nulls("unix_ms")


def _is_whole(document: bytes) -> bool:
    try:
        orjson.loads(document)
        return _read([document]).height == 1
    except (pl.exceptions.PolarsError, ValueError):
        return False
