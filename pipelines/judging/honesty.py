"""Honesty of explanations: do the items they name also matter in another history.

That the named items of the history move a place in the list that is explained is how they are
chosen. So a random fifth of the other items is left out first, and the named ones then, compared
with as many random ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from recsys.evaluation.judges import separation
from serving.explanation.removal import DEPTH, LOST, influences
from serving.recommend import Made, Recommender
from serving.schemas import Request

LEFT_OUT = 0.2
"""Share of the items that are named nowhere, gone from the other history."""


def honesty(recommender: Recommender, *, num_users: int, k: int, seed: int) -> dict[str, Any]:
    """Hold the explanations of random users' lists against other histories."""
    rng = np.random.default_rng(seed)
    ids = recommender.bundle.users.user_ids
    chosen = rng.permutation(np.arange(1, len(ids)))[:num_users]
    named: list[int] = []
    random: list[int] = []
    num_slots = num_with = 0
    for row in chosen.tolist():
        slots, lost = _places_lost(recommender, ids[row], k, rng)
        num_slots += slots
        num_with += len(lost)
        named += [pair[0] for pair in lost if pair is not None]
        random += [pair[1] for pair in lost if pair is not None]
    by_name, by_chance = (torch.tensor(one, dtype=torch.float64) for one in (named, random))
    return {
        "num_slots": num_slots,
        "with_items": num_with / max(1, num_slots),
        "holds": float((by_name > 0).double().mean()),
        "random_holds": float((by_chance > 0).double().mean()),
        "separates": separation(by_name, by_chance),
    }


def _places_lost(
    recommender: Recommender, user_id: str, k: int, rng: np.random.Generator
) -> tuple[int, list[tuple[int, int] | None]]:
    """Count a list's items, and give the places that those with named items lose.

    None stands for an item that is no candidate in the other history.
    """
    now = 1_000 * ((recommender.bundle.users.newest_time or 0) + 1)
    request = Request(user_id=user_id, k=DEPTH)

    def make(without: np.ndarray[Any, np.dtype[np.int64]]) -> Made:
        return recommender.make(request, now_ms=max(1, now), without=without)

    def place(row: int, without: list[int]) -> int:
        ranked = make(np.array(without, np.int64)).ranked
        rows = [] if ranked is None else ranked.item_rows[:DEPTH].tolist()
        return rows.index(row) + 1 if row in rows else LOST

    whole = make(np.empty(0, np.int64))
    if whole.ranked is None:
        return 0, []
    listed = whole.ranked.item_rows[:k].tolist()
    found = influences(make, listed, recommender.bundle.item_weights).by_row
    history = list(dict.fromkeys(whole.query.history.tolist()))
    lost: list[tuple[int, int] | None] = []
    for row, influence in found.items():
        named = [one.item_row for one in influence.because]
        others = rng.permutation([one for one in history if one not in (*named, row)]).tolist()
        if not named or len(others) < len(named):
            continue
        gone = others[len(named) :][: int(LEFT_OUT * len(history))]
        before = place(row, gone)
        after = [place(row, [*gone, *rows]) for rows in (named, others[: len(named)])]
        lost.append(None if before == LOST else (after[0] - before, after[1] - before))
    return len(listed), lost
