"""Open Bandit (ZOZO; Saito et al. 2020, arXiv:2008.07146): a fashion shop's impressions, to tables.

Each row shows one item at one of three positions and whether it was clicked, and with which
probability the policy shows that item at that position. There are no user ids: people whose four
hashed features agree count as one user, so histories of this set mean little; it is for off-policy
evaluation.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from pipelines.datasets.tables import Tables

POLICIES = ("random", "bts")
CAMPAIGNS = ("all", "men", "women")
USER_FEATURES = tuple(f"user_feature_{number}" for number in range(4))


def impressions(path: Path, policy: str, campaign: str) -> pl.DataFrame:
    """Read one policy's impressions of one campaign in the official columns.

    ``position`` counts from 1 and becomes ``slot``, from 0. The policy is the first part of
    ``request_id``.
    """
    rows = pl.read_csv(path, infer_schema=False).with_row_index("row")
    return rows.select(
        pl.concat_str(*USER_FEATURES, separator="-").alias("user_id"),
        pl.format(f"{campaign}-{{}}", "item_id").alias("item_id"),
        pl.col("timestamp").str.to_datetime(time_unit="us", time_zone="UTC").alias("event_time"),
        pl.lit(campaign).alias("domain"),
        pl.format(f"{policy}-{campaign}-{{}}", "row").alias("request_id"),
        (pl.col("position").cast(pl.Int64) - 1).alias("slot"),
        pl.col("propensity_score").cast(pl.Float64).alias("propensity"),
        pl.col("click").cast(pl.Int8),
        *USER_FEATURES,
    )


def item_context(path: Path, campaign: str) -> pl.DataFrame:
    """Read the items of one campaign; their hashed features stand in for categories."""
    hashed = [f"item_feature_{number}" for number in range(1, 4)]
    return pl.read_csv(path, infer_schema=False).select(
        pl.format(f"{campaign}-{{}}", "item_id").alias("item_id"),
        pl.concat_list(pl.format(f"{name} {{}}", name) for name in hashed).alias("categories"),
        pl.lit(campaign).alias("domain"),
        pl.col("item_feature_0").cast(pl.Float64),
    )


def open_bandit(directory: Path) -> Tables:
    """Parse <policy>_<campaign>.csv.gz and <policy>_<campaign>_item_context.csv.

    These are the official <policy>/<campaign>/<campaign>.csv and item_context.csv in one folder. A
    click is an event of its own beside its impression, with the same request.
    """
    parts = [
        impressions(directory / f"{policy}_{campaign}.csv.gz", policy, campaign)
        for policy in POLICIES
        for campaign in CAMPAIGNS
    ]
    shown = pl.concat(parts)
    clicked = shown.filter(pl.col("click") == 1)
    events = pl.concat(
        [
            shown.with_columns(pl.lit("impression").alias("event_type")),
            clicked.with_columns(pl.lit("click").alias("event_type")),
        ]
    )
    items = [item_context(directory / f"bts_{name}_item_context.csv", name) for name in CAMPAIGNS]
    return Tables(
        events=events.drop("click", *USER_FEATURES),
        items=pl.concat(items),
        users=shown.select("user_id", *USER_FEATURES).unique("user_id", maintain_order=True),
    )
