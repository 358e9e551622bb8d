"""Lists that were shown, split by time, with what a server knows of each candidate.

Read from a part of MIND (Microsoft News): ``impressions.parquet`` and ``histories.parquet``. Every
feature of a candidate is counted in requests strictly before its own, as a server's counters are.

Axes: R requests, M candidates in all, H events of a history, F features, U users.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
FEATURES = (
    "list.length",
    "history.length",
    "item.in_history",
    "item.in_histories",
    "shown.before",
    "clicked.before",
    "odds.before",
    "odds.lately",
    "odds.in_list",
    "shown.hours_since_first",
    "shown.minutes_since_last",
    "shown.never",
)
"""List and history: log of their lengths. Item: whether it is in the history, and log of the number
of earlier histories that have it. Shown and clicked: log counts. Odds: log odds of a click, shrunk
to the mean: ever, by a half-life of three hours, and the latter less its mean in the list."""
HALF_LIFE = 3 * 3600.0
SHRUNK = 20.0
"""Shown items that count as if they were clicked as often as the mean."""
MEAN_RATE = 0.04
TRAIN_SHARE, VALIDATION_SHARE = 0.6, 0.2
ARRAYS = ("users", "hours", "offsets", "items", "clicked", "features")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Requests in order of time."""

    users: Rows
    """[R]"""
    hours: Rows
    """Hour of the day from 1, [R]."""
    histories: list[Rows]
    """Item rows of each request, oldest first."""
    offsets: Rows
    """[R + 1]"""
    items: Rows
    """Item rows from 1 of the candidates, [M]."""
    clicked: Floats
    """[M]"""
    features: Floats
    """[M, F]"""
    num_items: int

    def save(self, path: Path) -> None:
        """Write the arrays, for machines that cannot read Parquet."""
        ends = np.cumsum([len(one) for one in self.histories])
        arrays = {name: getattr(self, name) for name in ARRAYS}
        np.savez_compressed(
            path, events=np.concatenate(self.histories), ends=ends, size=self.num_items, **arrays
        )

    @classmethod
    def load(cls, path: Path) -> Shown:
        """Read what ``save`` wrote."""
        with np.load(path, allow_pickle=False) as file:
            histories = np.split(file["events"], file["ends"][:-1])
            arrays = {name: file[name] for name in ARRAYS}
            return cls(histories=histories, num_items=int(file["size"]), **arrays)

    def requests(self, split: str) -> Rows:
        """Return the requests of a split: the earliest 60% train, the next 20% select."""
        count = len(self.users)
        first, second = int(TRAIN_SHARE * count), int((TRAIN_SHARE + VALIDATION_SHARE) * count)
        bounds = {"train": (0, first), "validation": (first, second), "test": (second, count)}
        return np.arange(*bounds[split])

    def candidates(self, requests: Rows) -> Rows:
        """List the places of the candidates of requests, [M]."""
        return np.concatenate([np.arange(self.offsets[r], self.offsets[r + 1]) for r in requests])

    def of_candidates(self) -> Rows:
        """Return the request of each candidate, [M]."""
        return np.repeat(np.arange(len(self.users)), np.diff(self.offsets))


class Counters:
    """What is known of each item before a moment."""

    def __init__(self) -> None:
        self.shown: defaultdict[int, float] = defaultdict(float)
        self.clicked: defaultdict[int, float] = defaultdict(float)
        self.lately: dict[int, tuple[float, float, float]] = {}
        self.first: dict[int, float] = {}
        self.in_histories: defaultdict[int, int] = defaultdict(int)

    def features(self, item: int, now: float) -> list[float]:
        """Return the features of an item that do not depend on the request."""
        shown, clicked = self.shown[item], self.clicked[item]
        last, few_shown, few_clicked = self.lately.get(item, (now, 0.0, 0.0))
        faded = 0.5 ** ((now - last) / HALF_LIFE)
        return [
            np.log1p(self.in_histories[item]),
            np.log1p(shown),
            np.log1p(clicked),
            log_odds(clicked, shown),
            log_odds(few_clicked * faded, few_shown * faded),
            0.0,
            np.log1p((now - self.first.get(item, now)) / 3600),
            np.log1p((now - last) / 60),
            float(shown == 0),
        ]

    def count(self, item: int, clicked: float, now: float) -> None:
        """Add one shown item."""
        self.shown[item] += 1
        self.clicked[item] += clicked
        last, few_shown, few_clicked = self.lately.get(item, (now, 0.0, 0.0))
        faded = 0.5 ** ((now - last) / HALF_LIFE)
        self.lately[item] = (now, few_shown * faded + 1, few_clicked * faded + clicked)
        self.first.setdefault(item, now)


def log_odds(clicked: float, shown: float) -> float:
    """Return the log odds of a click, shrunk to the mean rate."""
    rate = (clicked + SHRUNK * MEAN_RATE) / (shown + SHRUNK)
    return float(np.log(rate / (1 - rate)))


def read(folder: Path) -> Shown:
    """Read the data and count the features of each candidate."""
    import polars as pl

    shown = pl.read_parquet(folder / "impressions.parquet")
    told = pl.read_parquet(folder / "histories.parquet").sort("time", "request")
    lists = shown.sort("slot").group_by("request").agg("item", "clicked")
    told = told.join(lists, on="request", maintain_order="left")
    rows: dict[str, int] = {}
    users = {user: row for row, user in enumerate(told["user"].unique(maintain_order=True), 1)}
    counters, waiting = Counters(), []
    items, clicked, features, histories = [], [], [], []
    for now, history, own, clicks in told.select("time", "history", "item", "clicked").iter_rows():
        # Requests of the same second do not know of each other.
        while waiting and waiting[0][0] < now:
            then, past, one, outcome = waiting.pop(0)
            for item, click in zip(one, outcome, strict=True):
                counters.count(item, click, then)
            for item in set(past):
                counters.in_histories[item] += 1
        past = [rows.setdefault(item, len(rows) + 1) for item in history.split()]
        one = [rows.setdefault(item, len(rows) + 1) for item in own]
        known = np.array([counters.features(item, now) for item in one])
        known[:, 5] = known[:, 4] - known[:, 4].mean()
        inside = np.isin(one, past).astype(float)
        about = np.tile([np.log(len(one)), np.log1p(len(past))], (len(one), 1))
        features.append(np.column_stack([about, inside, known]))
        items.append(np.array(one))
        clicked.append(np.array(clicks, np.float64))
        histories.append(np.array(past, np.int64))
        waiting.append((now, past, one, clicks))
    return Shown(
        users=np.array([users[user] for user in told["user"]]),
        hours=1 + (told["time"].to_numpy() // 3600) % 24,
        histories=histories,
        offsets=np.append(0, np.cumsum([len(one) for one in items])),
        items=np.concatenate(items),
        clicked=np.concatenate(clicked),
        features=np.concatenate(features),
        num_items=len(rows) + 1,
    )


def auc(scores: Floats, clicked: Floats, weights: Floats) -> float:
    """Area under the ROC curve of weighted candidates; ties count half."""
    order = np.argsort(scores, kind="stable")
    distinct = np.unique(scores[order], return_inverse=True)[1]
    positive = np.bincount(distinct, (weights * clicked)[order])
    negative = np.bincount(distinct, (weights * (1 - clicked))[order])
    below = np.cumsum(negative) - negative / 2
    return float((positive * below).sum() / (positive.sum() * negative.sum()))


def grouped_auc(scores: Floats, clicked: Floats, users: Rows) -> tuple[Floats, Floats]:
    """AUC within each user that has both classes, and the number of its candidates, [U] each.

    Users are numbered from 0; without both classes the weight is 0.
    """
    found, weights = np.zeros(users.max() + 1), np.zeros(users.max() + 1)
    order = np.argsort(users, kind="stable")
    for own in np.split(order, np.flatnonzero(np.diff(users[order])) + 1):
        if 0 < clicked[own].sum() < len(own):
            found[users[own[0]]] = auc(scores[own], clicked[own], np.ones(len(own)))
            weights[users[own[0]]] = len(own)
    return found, weights


def log_loss(chances: Floats, clicked: Floats) -> float:
    """Mean negative log likelihood."""
    chances = chances.clip(1e-7, 1 - 1e-7)
    return float(-(clicked * np.log(chances) + (1 - clicked) * np.log(1 - chances)).mean())


def calibration_error(chances: Floats, clicked: Floats, num_bins: int = 10) -> float:
    """Mean distance of predicted and observed rates over bins of as many candidates."""
    bins = np.array_split(np.argsort(chances, kind="stable"), num_bins)
    return float(np.mean([abs(chances[one].mean() - clicked[one].mean()) for one in bins]))
