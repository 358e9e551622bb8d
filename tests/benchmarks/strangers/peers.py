"""What a team would try first: EASE, BM25 item-kNN, popularity, and what the user takes most.

One setting of each is chosen on the last training event of each user, and where items repeat also
whether the history is left out of lists. Then the peer is fitted on all events but those kept back.

Axes: U users, N items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import polars as pl
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy import linalg

from tests.benchmarks.strangers.measures import K, recall_and_ndcg
from tests.benchmarks.strangers.sets import Parted

History = Mapping[str, Sequence[str]]
Lists = dict[str, list[str]]
SETTINGS: dict[str, tuple[float, ...]] = {
    "EASE": (100.0, 400.0),
    "BM25 item-kNN": (0.0, 0.7),
    "item-to-item": (1.0, 5.0),
    "popularity": (0.0,),
    "own items": (0.0, 0.9, 0.97),
}
"""Regularisation; share of the length normalisation; number of last events; none; what an event
counts less for each later one of the user, 0 for not."""
ONLY_REPEATS = "own items"
RECENT = {f"popular of {days} days": days * 86_400 for days in (7, 30)}
"""Seconds of their windows; asked after a moment."""
USERS_AT_A_TIME = 500


class Lister(Protocol):
    """A fitted peer."""

    def lists(self, users: Sequence[str], *, leave_out: bool) -> Lists:
        """List the 10 best items of each user, with the history or without."""
        ...


Fit = Callable[[History, float], Lister]


class Matrix:
    """Who took what: binary, [U, N]."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.rows = {user: row for row, user in enumerate(history)}
        items = dict.fromkeys(item for taken in history.values() for item in taken)
        self.columns = {item: column for column, item in enumerate(items)}
        self.names = np.array(list(items))
        rows = np.repeat(np.arange(len(self.rows)), [len(taken) for taken in history.values()])
        columns = [self.columns[item] for taken in history.values() for item in taken]
        shape = (len(self.rows), len(self.columns))
        self.taken = sp.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), shape=shape)
        self.taken.data[:] = 1

    def last(self, users: Sequence[str], number: int) -> sp.csr_matrix:
        """Who took what among each user's last events, [users, N]."""
        pairs = [
            (row, self.columns[item])
            for row, user in enumerate(users)
            for item in dict.fromkeys(self.history[user][-number:])
        ]
        rows, columns = zip(*pairs, strict=True) if pairs else ((), ())
        shape = (len(users), len(self.names))
        return sp.csr_matrix((np.ones(len(pairs), np.float32), (rows, columns)), shape=shape)

    def own_scores(self, users: Sequence[str], decay: float) -> NDArray[np.float32]:
        """Count each user's own events, later ones more, [users, N]."""
        scores = np.zeros((len(users), len(self.names)), np.float32)
        for place, user in enumerate(users):
            taken = self.history[user]
            ages = np.arange(len(taken) - 1, -1, -1)
            weights = decay**ages if decay else 1 + 1e-6 * np.arange(len(taken))
            np.add.at(scores[place], [self.columns[item] for item in taken], weights)
        return scores


def weights_of(name: str, matrix: Matrix, setting: float) -> NDArray[np.float32]:
    """Fit a peer's item weights, [N, N], or one row of scores for all users, [1, N]."""
    x = matrix.taken
    count = np.asarray(x.sum(0), np.float32).ravel()
    if name == "popularity":
        return count[None]
    if name == "EASE":
        gram = (x.T @ x).toarray().astype(np.float32)
        gram[np.diag_indices_from(gram)] += setting
        inverse = linalg.inv(gram, overwrite_a=True, check_finite=False)
        weights = -inverse / np.diag(inverse)
    elif name == "item-to-item":
        weights = (x.T @ x).toarray().astype(np.float32)
        weights /= np.sqrt(count)[:, None] * np.sqrt(count)[None]
    else:
        length = np.asarray(x.sum(1)).ravel()
        rarity = np.log((x.shape[0] - count + 0.5) / (count + 0.5) + 1)
        damped = x.multiply(1 / (1 + setting * (length / length.mean()))[:, None])
        weights = (damped.multiply(rarity[None]).tocsr().T @ x).toarray().astype(np.float32)
        weights /= np.sqrt(count)[:, None] * np.sqrt(count)[None]
    weights[np.diag_indices_from(weights)] = 0
    return np.asarray(weights, np.float32)


class Fitted:
    """A peer with one setting on one matrix."""

    def __init__(self, name: str, matrix: Matrix, setting: float) -> None:
        self.name, self.matrix, self.setting = name, matrix, setting
        self.weights = None if name == ONLY_REPEATS else weights_of(name, matrix, setting)

    def lists(self, users: Sequence[str], *, leave_out: bool) -> Lists:
        """List the 10 best items of each user."""
        out: Lists = {}
        for begin in range(0, len(users), USERS_AT_A_TIME):
            some = users[begin : begin + USERS_AT_A_TIME]
            taken = self.matrix.taken[[self.matrix.rows[user] for user in some]]
            if self.weights is None:
                scores = self.matrix.own_scores(some, self.setting)
            elif len(self.weights) == 1:
                scores = np.repeat(self.weights, len(some), 0)
            elif self.name == "item-to-item":
                scores = np.asarray(self.matrix.last(some, int(self.setting)) @ self.weights)
            else:
                scores = np.asarray(taken @ self.weights)
            if leave_out:
                scores[taken.toarray() > 0] = -np.inf
            best = np.argsort(-scores, 1, kind="stable")[:, :K]
            out |= {
                user: row.tolist() for user, row in zip(some, self.matrix.names[best], strict=True)
            }
        return out


def inner(history: History) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Part each user's last training event from the rest; a user of one event has no target."""
    part = {user: list(taken[:-1]) for user, taken in history.items() if len(taken) > 1}
    return part, {user: history[user][-1] for user in part}


def own_peer(name: str) -> Fit:
    """Give the function that fits one of SETTINGS' peers."""
    matrices: dict[int, Matrix] = {}

    def fit(history: History, setting: float) -> Fitted:
        matrix = matrices.setdefault(id(history), Matrix(history))
        return Fitted(name, matrix, setting)

    return fit


def measure(
    fit: Fit, settings: Sequence[float], history: History, targets: Mapping[str, Mapping[str, str]]
) -> dict[str, list[float]]:
    """Choose a peer's setting and measure it.

    Args:
        fit: Fits the peer on a history with a setting.
        settings: To choose from, in the order that they are fitted.
        history: Each user's events in order, without those kept back.
        targets: ``new``, kept-back items that the user's history does not hold (the history is left
            out of every list), and where items repeat ``next``, all of them.

    Returns:
        R@10 and N@10 of each kind of target.
    """
    part, last = inner(history)
    known = {
        "new": {user: item for user, item in last.items() if item not in set(part[user])},
        "next": last,
    }
    ways = {"new": (True,), "next": (True, False)}
    tried: dict[tuple[str, float, bool], float] = {}
    for setting in settings:
        fitted = fit(part, setting)
        for kind in targets:
            for leave_out in ways[kind]:
                lists = fitted.lists(list(known[kind]), leave_out=leave_out)
                tried[kind, setting, leave_out] = recall_and_ndcg(lists, known[kind])[1]
    chosen = {
        kind: max((key for key in tried if key[0] == kind), key=lambda key: tried[key])
        for kind in targets
    }
    out = {}
    for setting in settings:
        wanted = [key for key in chosen.values() if key[1] == setting]
        fitted_whole = fit(history, setting) if wanted else None
        for kind, _, leave_out in wanted:
            assert fitted_whole is not None
            lists = fitted_whole.lists(list(targets[kind]), leave_out=leave_out)
            scores = recall_and_ndcg(lists, targets[kind])
            out[kind] = [round(value, 4) for value in scores]
    return {kind: out[kind] for kind in targets}


def recent_lists(log: Parted, seconds: int) -> Lists:
    """List what was popular in the last seconds before the moment, without each history."""
    since = log.given["time"].max() - seconds
    counts = log.given.filter(pl.col("time") > since)["item"].value_counts(sort=True)["item"]
    best = counts.to_list()
    lists: Lists = {}
    for user in log.target:
        seen = set(log.history[user])
        lists[user] = [item for item in best[: K + len(seen)] if item not in seen][:K]
    return lists
