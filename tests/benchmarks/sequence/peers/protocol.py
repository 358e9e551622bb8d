"""What a peer's driver and the benchmark share: an epoch per line read, a result per line written.

Needs numpy alone, because each peer runs in an environment of its own.

Axes: U users, K list length.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

K = 10
Rows = NDArray[np.int64]


class Histories(NamedTuple):
    """Users' items in order; the last of each is what validation looks for."""

    item_rows: Rows
    """Items 1..num_items, users one after another."""
    offsets: Rows
    """[U + 1]"""
    num_items: int

    @classmethod
    def load(cls, path: Path) -> Histories:
        with np.load(path, allow_pickle=False) as arrays:
            return cls(arrays["item_rows"], arrays["offsets"], int(arrays["num_items"]))

    def users(self) -> list[Rows]:
        """Give each user's items, held-out one included."""
        return np.split(self.item_rows, self.offsets[1:-1])

    def held_out(self) -> Rows:
        """Give the held-out item of each user, [U]."""
        return self.item_rows[self.offsets[1:] - 1]


def ndcg(lists: Rows, held_out: Rows) -> float:
    """Average 1 / log2(rank + 1) over users whose list has the held-out item.

    Args:
        lists: Items best first, [U, K].
        held_out: [U]
    """
    _, places = np.nonzero(lists == held_out[:, None])
    return float((1 / np.log2(places + 2.0)).sum() / len(held_out))


def best_unseen(scores: NDArray[np.float32], histories: list[Rows]) -> Rows:
    """List the K best items of each user that are not in the history, [U, K].

    Args:
        scores: By item row, [U, 1 + num_items]; overwritten where seen.
        histories: Seen items of each user.
    """
    scores[:, 0] = -np.inf
    for row, history in zip(scores, histories, strict=True):
        row[history] = -np.inf
    best = np.argpartition(-scores, K, axis=1)[:, :K]
    order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1, kind="stable")
    return np.take_along_axis(best, order, axis=1)


def serve(train_epoch: Callable[[], float], lists: Callable[[], Rows], held_out: Rows) -> None:
    """Train an epoch for each line of standard input, and say its seconds and NDCG.

    Args:
        train_epoch: Trains, and returns the CPU seconds that training alone took.
        lists: Recommends K items to each user, [U, K].
    """
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries print where they like
    answers.write("ready\n")
    answers.flush()
    for _ in sys.stdin:
        begin = time.perf_counter()
        seconds = train_epoch()
        trained = time.perf_counter() - begin
        answers.write(
            json.dumps({"seconds": seconds, "call": trained, "ndcg": ndcg(lists(), held_out)})
            + "\n"
        )
        answers.flush()
