"""Impressions: items that were shown, and those of them that users did not choose.

shown.parquet    user_row, item_row, event_time (microseconds) and request_id if there is one
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

SHOWN_FILE = "shown.parquet"


def write_shown(files: Sequence[Path], out: Path) -> None:
    """Write impressions of users and items that have rows, by user and time."""
    shown = pl.concat([pl.scan_parquet(file) for file in files], how="diagonal")
    for name in ("user", "item"):
        rows = pl.scan_parquet(out / "vocabularies" / f"{name}s.parquet")
        rows = rows.rename({"row": f"{name}_row", "id": f"{name}_id"})
        shown = shown.join(rows, on=f"{name}_id").drop(f"{name}_id")
    # Sorted by all columns: the same bytes for any number of partitions.
    order = sorted(shown.collect_schema().names(), key=lambda name: (name != "user_row", name))
    shown = shown.select(order).sort(order)
    shown.collect().write_parquet(out / SHOWN_FILE, compression="lz4")


def read_refused(directory: Path, chosen: pl.DataFrame, seconds: int) -> pl.DataFrame:
    """Find the items that were shown in the list of a choice and not chosen; place, item_row.

    The list is the latest that showed the item to its user before: the impressions of a request,
    or of a second if they name no requests. Items of it that the user chose as well are left out,
    and so are lists with a choice that is held out.

    Args:
        directory: The artefact of build_features.
        chosen: Choices: place, user_row, item_row, second, and until, the last second that is not
            held out.
        seconds: Longest time from an impression to a choice.
    """
    shown = pl.scan_parquet(directory / SHOWN_FILE).with_columns(at=pl.col("event_time") // 10**6)
    request = ["request_id"] if "request_id" in shown.collect_schema() else []
    shown = shown.with_columns(list=pl.coalesce(*request, pl.col("at").cast(pl.String)))
    near = shown.join(chosen.lazy().rename({"item_row": "target"}), on="user_row")
    found = near.filter((pl.col("second") - pl.col("at")).is_between(0, seconds)).collect()
    lists = found.filter(pl.col("item_row") == pl.col("target")).sort("place", "at")
    lists = lists.unique("place", keep="last").select("place", "list")
    found = found.join(lists, on=["place", "list"])
    events = pl.scan_parquet(directory / "events" / "**" / "*.parquet").select(
        "user_row", "item_row", then=pl.col("event_time").dt.epoch("s")
    )
    taken = found.lazy().join(events, on=["user_row", "item_row"]).collect()
    taken = taken.filter((pl.col("then") - pl.col("at")).is_between(0, seconds))
    late = taken.filter(pl.col("then") > pl.col("until"))
    refused = found.join(taken, on=["place", "item_row"], how="anti")
    return refused.join(late, on="place", how="anti").select("place", "item_row")
