"""Open Bandit: one of its two policies valued on the other's log, where the truth is known.

Each impression is a single action in one of three positions. The logging policy's propensities are
the log's. What the evaluated policy does is not logged for each impression, but it knows no
context: its chances are its propensities where they never change (``random``), else how often it
showed each item in each position of a campaign over the week (``bts``).

    python -m tests.benchmarks.evaluation.open_bandit FOLDER --policy bts --campaign men

FOLDER has the official <policy>/<campaign>/<campaign>.csv (https://research.zozo.com/data.html) as
<policy>_<campaign>.csv.gz.

Axes: n impressions, A items of a campaign.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pipelines.off_policy.evaluation import Material, OffPolicyConfig, build_document
from recsys.evaluation.off_policy.estimators import RateModel, fitted_folds, fold_of, mean_of
from recsys.evaluation.off_policy.intervals import interval_of
from recsys.evaluation.off_policy.logs import Floats, Integers, LoggedLists
from tests.recsys.evaluation.off_policy.worlds import logged_actions

POLICIES = ("random", "bts")
CAMPAIGNS = ("all", "men", "women")
USER_FEATURES = tuple(f"user_feature_{number}" for number in range(4))
KEY = ["domain", "slot", "item_id"]


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


def evaluate_open_bandit(
    folder: Path, policy: str, config: OffPolicyConfig, campaigns: Sequence[str] = ()
) -> dict[str, Any]:
    """Value a policy on the other one's impressions.

    Args:
        folder: ``<policy>_<campaign>.csv.gz``, as the loader reads them.
        policy: ``random`` or ``bts``.
        campaigns: By default all.

    Raises:
        ValueError: There is no such policy, campaign or file.
    """
    if policy not in POLICIES:
        raise ValueError(
            f"Open Bandit has no policy {policy!r}; name {' or '.join(POLICIES)}: it is valued on "
            "the other one's log"
        )
    chosen = tuple(campaigns) or CAMPAIGNS
    if wrong := set(chosen) - set(CAMPAIGNS):
        raise ValueError(
            f"Open Bandit has no campaign {', '.join(sorted(wrong))}; it has {', '.join(CAMPAIGNS)}"
        )
    other = next(name for name in POLICIES if name != policy)
    logged, own = (_read(folder, name, chosen) for name in (other, policy))
    material = material_of(logged, own)
    truth = mean_of(own["click"].to_numpy().astype(np.float64))
    interval = interval_of(truth, confidence=config.confidence)
    return build_document(
        material,
        config,
        {
            "policy": policy,
            "logging": other,
            "reward": "click",
            "unit": "impression",
            "lists_in_log": logged.height,
            "left_out": {},
            "known_share": 0.0,
            "truth": {"value": truth.value, "low": interval.low, "high": interval.high},
        },
    )


def _read(folder: Path, policy: str, campaigns: Sequence[str]) -> pl.DataFrame:
    parts = []
    for campaign in campaigns:
        path = folder / f"{policy}_{campaign}.csv.gz"
        if not path.exists():
            raise ValueError(f"{path} is missing; name a folder with <policy>_<campaign>.csv.gz")
        parts.append(impressions(path, policy, campaign))
    return pl.concat(parts).sort("event_time", maintain_order=True)


def chances_of(own: pl.DataFrame) -> pl.DataFrame:
    """Give a policy's chance of each item in each position of a campaign, from its own log."""
    cells = own.group_by(KEY).agg(
        pl.len().alias("shown"),
        pl.col("propensity").mean().alias("constant"),
        (pl.col("propensity").max() - pl.col("propensity").min()).alias("spread"),
    )
    if cells["spread"].max() == 0:
        return cells.select(*KEY, pl.col("constant").alias("chance"))
    total = pl.col("shown").sum().over("domain", "slot")
    return cells.select(*KEY, (pl.col("shown") / total).alias("chance"))


def material_of(logged: pl.DataFrame, own: pl.DataFrame) -> Material:
    """Take a log, and the other policy's own log for its chances."""
    chances = chances_of(own)
    joined = logged.join(chances, on=KEY, how="left", maintain_order="left")
    log = logged_actions(
        joined["click"].to_numpy().astype(np.float64),
        joined["propensity"].to_numpy(),
        joined["chance"].fill_null(0.0).to_numpy(),
    )
    # An impression's slot is its row of the reward model's table, whose lists have one slot.
    cells = pl.concat([logged.select(KEY), chances.select(KEY)]).unique(maintain_order=True)
    cells = cells.with_columns(
        pl.struct("domain", "slot").rank("dense").cast(pl.Int64).sub(1).alias("place"),
        pl.struct("domain", "item_id").rank("dense").cast(pl.Int64).alias("row"),
    )
    placed = joined.join(cells, on=KEY, how="left", maintain_order="left")
    rows, places = placed["row"].to_numpy(), placed["place"].to_numpy()
    table = cells.join(chances, on=KEY, how="left").with_columns(pl.col("chance").fill_null(0.0))
    predicted, expected = _predictions(log, rows, places, table)
    number = len(log)
    return Material(
        log=log,
        predicted=predicted[:, None],
        expected=expected[:, None],
        below=np.zeros((number, 1)),
        users=np.arange(number),
        times_ms=joined["event_time"].dt.epoch("ms").to_numpy(),
    )


def _predictions(
    log: LoggedLists, rows: Integers, places: Integers, table: pl.DataFrame
) -> tuple[Floats, Floats]:
    """Predict the logged item's clicks and the policy's mean, by other impressions, [n]."""
    cell_rows, cell_places = table["row"].to_numpy(), table["place"].to_numpy()
    chances = table["chance"].to_numpy()
    num_places, num_rows = int(cell_places.max()) + 1, int(cell_rows.max()) + 1
    there = np.zeros((len(log), num_places), np.bool_)
    there[np.arange(len(log)), places] = True
    items = np.where(there, rows[:, None], 0)
    rewards = np.where(there, log.rewards, 0.0)
    folds = fold_of(np.arange(len(log)))
    models: list[RateModel] = fitted_folds(items, rewards, there, num_rows, folds)
    predicted, expected = np.zeros(len(log)), np.zeros(len(log))
    for fold, model in enumerate(models):
        own = folds == fold
        predicted[own] = model.items[rows[own]] * model.slots[places[own]]
        rates = chances * model.items[cell_rows] * model.slots[cell_places]
        expected[own] = np.bincount(cell_places, rates, minlength=num_places)[places[own]]
    return predicted, expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of <policy>_<campaign>.csv.gz")
    parser.add_argument("--policy", choices=POLICIES, required=True)
    parser.add_argument("--campaign", nargs="*", choices=CAMPAIGNS, default=[])
    options = parser.parse_args()
    found = evaluate_open_bandit(
        options.folder, options.policy, OffPolicyConfig(), options.campaign
    )
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
