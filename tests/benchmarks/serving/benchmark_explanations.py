"""Whether the history items that explanations name hold places up, and what explanations cost.

Of random users of a bundle the list is explained, and made without the named items, without as many
random items of the history, and without as many of the 20 latest, which the named ones are mostly
of. That the named ones move a place is how they are chosen, so all is done once more in another
history: one that a random fifth of its other items are gone from before. One thread.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from serving.explanation.removal import LOST, MAX_LATEST
from serving.explanation.served_list import explain_list
from serving.recommend import Made, Recommender
from serving.schemas import Request
from serving.settings import ServingOptions
from tests.benchmarks.harness import Row, command_line, write_results

K = 10
NOW_MS = 893_300_000_000
"""After the last event of MovieLens-100K."""


def places(made: Made) -> dict[int, int]:
    if made.ranked is None:
        return {}
    return {row: place for place, row in enumerate(made.ranked.item_rows[:200].tolist(), start=1)}


class User:
    """One user's lists, whole and without items of the history."""

    def __init__(self, recommender: Recommender, user_id: str, rng: np.random.Generator) -> None:
        self.recommender, self.rng = recommender, rng
        self.request = Request(user_id=user_id, k=K)
        begin = time.perf_counter()
        made = recommender.make(self.request, now_ms=NOW_MS)
        self.list_ms = 1e3 * (time.perf_counter() - begin)
        record: Any = SimpleNamespace(
            request_id=made.reply.request_id, time_ms=0, document=recommender.record(made)
        )
        begin = time.perf_counter()
        self.explained = explain_list(recommender, record, None, names_history=True)
        self.explain_ms = 1e3 * (time.perf_counter() - begin)
        self.history = list(dict.fromkeys(made.query.history[::-1].tolist()))

    def places(self, without: list[int]) -> dict[int, int]:
        request = self.request.model_copy(update={"k": 200})
        rows = np.array(without, np.int64)
        return places(self.recommender.make(request, now_ms=NOW_MS, without=rows))

    def others(self, pool: list[int], own: int, number: int) -> list[int]:
        free = [row for row in pool if row != own]
        return self.rng.choice(free, min(number, len(free)), replace=False).tolist()


def moved(user: User, found: dict[str, list[float]]) -> None:
    """Note of every explained slot which removals make its place worse, and by how much."""
    row_of = user.recommender.bundle.catalogue.row_of
    whole = user.places([])
    for slot in user.explained.items:
        own = row_of(slot.item_id) or 0
        found["slots with named items"].append(float(bool(slot.because)))
        if not slot.because or own not in whole:
            continue
        named = [row_of(one.item_id) or 0 for one in slot.because]
        removals = {
            "named": named,
            "random": user.others(user.history, own, len(named)),
            "random of the latest": user.others(user.history[:MAX_LATEST], own, len(named)),
        }
        kept_out = user.others([row for row in user.history if row not in named], own, 10**6)
        gone = kept_out[: len(user.history) // 5]
        changed = user.places(gone)
        for name, rows in removals.items():
            after = user.places(rows).get(own, LOST)
            found[f"{name}: worse place"].append(float(after > whole[own]))
            found[f"{name}: places lost"].append(after - whole[own])
            if own in changed:
                after = user.places([*gone, *rows]).get(own, LOST)
                found[f"{name}: worse place in another history"].append(float(after > changed[own]))


def measured(recommender: Recommender, num_users: int) -> list[Row]:
    """Explain the lists of random users."""
    rng = np.random.default_rng(0)
    ids = recommender.bundle.users.user_ids
    chosen = rng.choice(np.arange(1, len(ids)), num_users, replace=False)
    found: dict[str, list[float]] = defaultdict(list)
    users = [User(recommender, ids[row], rng) for row in chosen.tolist()]
    for user in users:
        moved(user, found)
    rows = [
        Row(
            name="slots with named items",
            value=100 * np.mean(found["slots with named items"]),
            unit="%",
        ),
        Row(
            name="its explanation",
            value=statistics.median(user.explain_ms for user in users),
            unit="ms",
            peer=f"the list {statistics.median(user.list_ms for user in users):.2g} ms, slowest "
            f"{max(user.explain_ms for user in users):.0f} ms",
        ),
    ]
    for name in ("named", "random", "random of the latest"):
        lost = statistics.median(found[f"{name}: places lost"])
        worse = 100 * np.mean(found[f"{name}: worse place"])
        rows.append(
            Row(
                name=f"worse place in another history without {name} items",
                value=100 * np.mean(found[f"{name}: worse place in another history"]),
                unit="%",
                peer=f"in the same one {worse:.1f}%, median {lost:.0f} places",
            )
        )
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--bundle", type=Path, default=Path("runs/movielens-100k/bundles/current"))
    parser.add_argument("--users", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    recommender = Recommender.load(options.bundle, ServingOptions(profile="fast"))
    rows = measured(recommender, options.users)
    ranker = "without" if recommender.bundle.ranker is None else "with its"
    notes = (
        f"Bundle {recommender.bundle.version} of the demo (MovieLens-100K), profile fast, "
        f"{ranker} ranker; {options.users} users drawn with seed 0, lists of {K}. "
        "A place is by score, among 200; behind them is 201."
    )
    write_results("explanations", rows, notes=notes)


if __name__ == "__main__":
    main()
