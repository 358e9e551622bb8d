"""Ask a bundle after a moment: events before it are given, the first new item after it is right.

The moment is the 90% quantile of the times; users with events on both sides are asked, full
catalogue, the history left out. Peers are fitted on the same events.

    RECSYS_DATA_MIRROR=... python -m tests.benchmarks.strangers.benchmark_moment --budget 5m
    ... --label "last event" --set splits.kind=leave_one_out

Writes results/strangers/moment.{json,md}; runs that are not made keep their numbers,
and ``--logs`` without any lays the page out again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pipelines.datasets.fetch import fetch
from pipelines.datasets.registry import find_dataset
from tests.benchmarks.harness import Row
from tests.benchmarks.strangers.benchmark_strangers import ask_bundle, run_package
from tests.benchmarks.strangers.kept_runs import run_logs
from tests.benchmarks.strangers.measures import K, recall_and_ndcg, without
from tests.benchmarks.strangers.peers import SETTINGS, Matrix, measure, own_peer
from tests.benchmarks.strangers.sets import Log, Parted

MOMENT = 0.9
RECENT_DAYS = (7, 30)
DAY = 86_400


def films() -> Log:
    """MovieLens-100K with titles: ratings of six months."""
    found = fetch(find_dataset("movielens-100k"))
    events = pl.read_parquet(str(found.table("events"))).select(
        user="user_id", item="item_id", time=pl.col("event_time").dt.epoch("s")
    )
    items = pl.read_parquet(str(found.table("items")))
    labels = pl.col("categories").list.join("|")
    return Log(events, items.select(item="item_id", title="title", labels=labels))


def fiction() -> Log:
    """IFDB: plays and wishes of nineteen years; 42% of the items have texts."""
    folder = Path(os.environ["RECSYS_DATA_MIRROR"]) / "ifdb"
    events = pl.read_parquet(folder / "events.parquet").select("user", "item", "time", "kind")
    items = pl.read_parquet(folder / "items.parquet")
    return Log(events, items.select("item", "title", "description", labels="categories"))


LOGS = {"films": films, "fiction": fiction}


def parted(log: Log) -> tuple[pl.DataFrame, Parted]:
    """Return the events before the moment, and each asked user's history and first new item."""
    events = log.events.sort("time", maintain_order=True)
    at = events["time"].quantile(MOMENT)
    given, later = events.filter(pl.col("time") <= at), events.filter(pl.col("time") > at)
    history: dict[str, list[str]] = {}
    for user, item in given.select("user", "item").iter_rows():
        history.setdefault(user, []).append(item)
    target: dict[str, str] = {}
    for user, item in later.select("user", "item").iter_rows():
        if user in history and user not in target and item not in history[user]:
            target[user] = item
    return given, Parted(history, target)


def fit_peers(given: pl.DataFrame, log: Parted) -> dict[str, list[float]]:
    """Fit and measure peers, what was popular in the last days among them."""
    targets = {"new": log.target}
    found = {
        name: measure(own_peer(name), settings, log.history, targets)["new"]
        for name, settings in SETTINGS.items()
        if name != "own items"
    }
    taken = Matrix(log.history)
    for days in RECENT_DAYS:
        since = given["time"].max() - days * DAY
        best = given.filter(pl.col("time") > since)["item"].value_counts(sort=True)["item"]
        lists = dict.fromkeys(
            log.target, best.to_list()[: 10 * K + max(map(len, log.history.values()))]
        )
        scores = recall_and_ndcg(without(lists, taken.history), log.target)
        found[f"popular of {days} days"] = [round(value, 4) for value in scores]
    return found


def rows_of(numbers: Mapping[str, Any]) -> list[Row]:
    """Lay out each run beside the best peer."""
    rows = []
    for name, one in numbers.items():
        peer, (_, best) = max(one["peers"].items(), key=lambda pair: pair[1][1])
        rows += [
            Row(name=f"{name}: users asked", value=one["asked"]),
            Row(name=f"{name}: first bundle", value=one["first_bundle_s"], unit="s"),
            Row(name=f"{name}: end", value=one["total_s"], unit="s"),
            Row(name=f"{name}: R@10", value=one["served"][0]),
            Row(name=f"{name}: N@10", value=one["served"][1], peer=f"{peer} {best:.4f}",
                ratio=round(one["served"][1] / best, 3)),
            Row(name=f"{name}: standard error of N@10", value=one["standard_error"]),
        ]  # fmt: skip
    return rows


def standard_error(lists: Mapping[str, list[str]], target: Mapping[str, str]) -> float:
    """Standard error of N@10 over users."""
    each = [recall_and_ndcg(lists, {user: item})[1] for user, item in target.items()]
    return float(np.std(each, ddof=1) / len(each) ** 0.5)


def measured(name: str, work: Path, budget: str, settings: list[str]) -> dict[str, Any]:
    """Train on the events before the moment, ask the bundle, and fit peers on the same events."""
    log = LOGS[name]()
    given, apart = parted(log)
    tables = {"log.csv": given} | ({} if log.items is None else {"catalogue.csv": log.items})
    found = run_package(tables, work, budget, settings)
    lists = without(ask_bundle(work, list(apart.target)), apart.history)
    served = [round(value, 4) for value in recall_and_ndcg(lists, apart.target)]
    found |= {"served": served, "asked": len(apart.target), "peers": fit_peers(given, apart)}
    return found | {"standard_error": round(standard_error(lists, apart.target), 4)}


if __name__ == "__main__":
    run_logs(__doc__, list(LOGS), measured, rows_of, name="moment", budget="5m")
