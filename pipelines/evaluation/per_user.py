"""The per-user tables of stage evaluate: each model's rank of each held-out item, and its lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import torch

from recsys.data.batch import Jagged
from recsys.evaluation.ranking import RankingResult

RANK = "rank_"


def models_in(columns: Sequence[str]) -> tuple[str, ...]:
    """List the models of a per-user table by its columns."""
    return tuple(name.removeprefix(RANK) for name in columns if name.startswith(RANK))


def read_targets(table: Path) -> tuple[np.ndarray, Jagged]:
    """Read the users of a per-user table, [U], and the held-out items of each."""
    frame = pl.read_parquet(table, columns=["user_row", "item_row"])
    users, counts = np.unique(frame["user_row"].to_numpy(), return_counts=True)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
    return users, Jagged(torch.from_numpy(frame["item_row"].to_numpy().copy()), offsets)


def per_user_table(results: Mapping[str, RankingResult], listed: int, run: str) -> pl.DataFrame:
    """Build a table with one row for each user and held-out item."""
    first = next(iter(results.values()))
    queries = first.targets.segments().numpy()
    columns: dict[str, pl.Series] = {
        "user_row": pl.Series(first.user_rows.numpy()[queries]),
        "item_row": pl.Series(first.targets.values.numpy()),
    }
    for name, result in results.items():
        ranks = result.ranks.values.numpy()
        columns[f"rank_{name}"] = pl.Series(ranks).replace(0, None)
    for name, result in results.items():
        lists = result.top_k.item_rows[:, :listed].numpy()[queries]  # [M, K], -1 where short
        columns[f"top_k_{name}"] = (
            pl.Series(lists, dtype=pl.Array(pl.Int64, lists.shape[1]))
            .arr.to_list()
            .list.eval(pl.element().filter(pl.element() >= 0))
        )
    table = pl.DataFrame(columns).with_columns(pl.lit(run).alias("run"))
    return table.sort("user_row", "item_row")
