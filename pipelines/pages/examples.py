"""Examples of users: their history, the held-out item, and each model's list.

Chosen by rule: for each outcome (every model finds the item, only one does, none does) the user of
median history length. User ids are left out, because reports are shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.evaluation.per_user import RANK
from recsys.data.dataset import Sequences

LISTED = 10
HISTORY = 8
MAX_TITLE = 300


@dataclass(frozen=True, kw_only=True)
class Example:
    """One user."""

    found_by: list[str]
    """Models that have a held-out item among the first places."""
    num_history: int
    history: list[str]
    """Titles of the latest items, newest first."""
    held_out: list[str]
    lists: dict[str, list[tuple[str, bool]]]
    """Title of each listed item and whether it is a hit, by model."""
    ranks: dict[str, int | None]
    """Rank of the first held-out item that a model finds, over the whole catalogue."""


def chosen_users(
    table: pl.LazyFrame, models: Sequence[str], lengths: np.ndarray, depth: int = LISTED
) -> list[tuple[tuple[str, ...], int]]:
    """Choose the user row of median history length for each outcome that occurs.

    If none of them occurs, the commonest other outcome is shown.

    Args:
        lengths: Events before the split of each user row, [U].
    """
    users = table.group_by("user_row").agg(
        (pl.col(f"{RANK}{model}").min() <= depth).fill_null(False).alias(model) for model in models
    )
    frame = users.sort("user_row").collect()
    frame = frame.with_columns(pl.Series("length", lengths[frame["user_row"].to_numpy()]))
    occurring = frame.group_by(models).len().sort("len", *models, descending=True)
    found_by = [
        tuple(model for model, finds in zip(models, row, strict=True) if finds)
        for row in occurring.select(models).iter_rows()
    ]
    alone = [(model,) for model in models] if len(models) > 1 else []
    wanted = [outcome for outcome in (tuple(models), *alone, ()) if outcome in found_by]
    chosen = []
    for outcome in wanted or found_by[:1]:
        same = [pl.col(model) == (model in outcome) for model in models]
        rows = frame.filter(pl.all_horizontal(same)).sort("length", "user_row")
        chosen.append((outcome, int(rows["user_row"][rows.height // 2])))
    return chosen


def read_titles(items: Path, rows: Iterable[int]) -> Mapping[int, str]:
    """Read the display texts of some item rows, each cut at `MAX_TITLE`."""
    frame = pl.scan_parquet(items).filter(pl.col("item_row").is_in(sorted(set(rows))))
    title = pl.col("display_text").str.slice(0, MAX_TITLE)
    return dict(frame.select("item_row", title).collect().iter_rows())


def read_examples(
    table: Path, items: Path, sequences: Sequences, models: Sequence[str]
) -> list[Example]:
    """Choose the users of the test split's per-user table and look up their titles.

    Args:
        table: Per-user Parquet of the evaluate stage.
        items: Catalogue of the build_features artefact.
    """
    ends, starts = sequences.validation_end, sequences.offsets[:-1]
    lazy = pl.scan_parquet(table)
    chosen = chosen_users(lazy, models, np.asarray(ends - starts))
    users = [user for _, user in chosen]
    frame = lazy.filter(pl.col("user_row").is_in(users)).collect()
    parts = {user: frame.filter(pl.col("user_row") == user) for user in users}
    pasts = {
        user: np.asarray(sequences.item_rows[max(starts[user], ends[user] - HISTORY) : ends[user]])
        for user in users
    }
    listed = {
        (user, model): part[f"top_k_{model}"][0].to_list()[:LISTED]
        for user, part in parts.items()
        for model in models
    }
    shown = {*frame["item_row"].to_list(), *(row for rows in listed.values() for row in rows)}
    titles = read_titles(items, shown.union(*(past.tolist() for past in pasts.values())))
    examples = []
    for outcome, user in chosen:
        part = parts[user]
        held_out = part["item_row"].to_list()
        ranks = {model: part[f"{RANK}{model}"].drop_nulls().to_list() for model in models}
        examples.append(
            Example(
                found_by=list(outcome),
                num_history=int(ends[user] - starts[user]),
                history=[titles.get(row, "?") for row in pasts[user][::-1].tolist()],
                held_out=[titles.get(row, "?") for row in held_out[:HISTORY]],
                lists={
                    model: [(titles.get(row, "?"), row in held_out) for row in listed[user, model]]
                    for model in models
                },
                ranks={model: min(found, default=None) for model, found in ranks.items()},
            )
        )
    return examples
