"""The folder of a backtest as peers see it: what was known before a step, and the step's queries.

Needs numpy and scipy alone, because each peer runs in an environment of its own.

Axes: E events, U users, Q queries, M targets, H history events of the queries, N item rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]
KEPT = 50
"""Places of a list that are kept."""
WARM_UP = 0
"""The step on which settings are chosen; it is not judged."""


@dataclass(frozen=True)
class Known:
    """All events before a moment, users one after another, each in order of time."""

    user_rows: Rows
    item_rows: Rows
    times: Rows
    num_users: int
    num_item_rows: int
    begin: int
    """Unix seconds."""

    @cached_property
    def taken(self) -> sp.csr_matrix:
        """Which user had which item, [U, N] of ones."""
        return ones(self.user_rows, self.item_rows, (self.num_users, self.num_item_rows))

    def counts(self, since: float = -np.inf) -> NDArray[np.float32]:
        """Count each item's events from a moment on, [N]."""
        recent = self.item_rows[self.times >= since]
        return np.bincount(recent, minlength=self.num_item_rows).astype(np.float32)


@dataclass(frozen=True)
class Queries:
    """What is requested in a step."""

    user_rows: Rows
    """[Q]"""
    moments: Rows
    """Unix seconds, [Q]."""
    history_rows: Rows
    """Items of all histories, one after another, oldest first, [H]."""
    history_times: Rows
    """[H]"""
    history_offsets: Rows
    """[Q + 1]"""
    targets: Rows
    """[M]"""
    target_offsets: Rows
    """[Q + 1]"""
    candidates: Flags
    """Items that lists may hold, [N]."""
    begin: int
    end: int

    def __len__(self) -> int:
        return len(self.user_rows)

    @cached_property
    def history_queries(self) -> Rows:
        """The query of each history event, [H]."""
        return np.repeat(np.arange(len(self)), np.diff(self.history_offsets))

    @cached_property
    def taken(self) -> sp.csr_matrix:
        """Which history has which item, [Q, N] of ones."""
        return ones(self.history_queries, self.history_rows, (len(self), len(self.candidates)))


def ones(rows: Rows, columns: Rows, shape: tuple[int, int]) -> sp.csr_matrix:
    """A sparse matrix of float32 ones, however often a pair occurs."""
    matrix = sp.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), shape=shape)
    matrix.data[:] = 1
    return matrix


class Backtest:
    """A backtest's folder."""

    def __init__(self, path: Path) -> None:
        """Read the events.

        Raises:
            ValueError: It is no folder of a backtest.
        """
        if not (path / "events.npz").exists():
            raise ValueError(
                f"{path} has no events.npz; give the folder that `recsys backtest` writes"
            )
        self.path = path
        with np.load(path / "events.npz", allow_pickle=False) as file:
            self.item_rows, self.offsets = file["item_rows"], file["offsets"]
            self.times, self.num_item_rows = file["times"], int(file["num_item_rows"])
        self.users = np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def steps(self) -> list[int]:
        """The steps that are judged."""
        folders = (self.path / "steps").glob("*/queries.npz")
        return sorted(int(path.parent.name) for path in folders if int(path.parent.name) > WARM_UP)

    def queries(self, step: int) -> Queries:
        """Read a step's queries with their histories."""
        with np.load(self.path / "steps" / str(step) / "queries.npz", allow_pickle=False) as file:
            users, ends = file["user_rows"], file["history_ends"]
            starts = self.offsets[users]
            offsets = np.concatenate([[0], np.cumsum(ends - starts)])
            places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], ends - starts)
            return Queries(
                user_rows=users,
                moments=file["moments"],
                history_rows=self.item_rows[places],
                history_times=self.times[places],
                history_offsets=offsets,
                targets=file["targets_values"],
                target_offsets=file["targets_offsets"],
                candidates=file["candidates"],
                begin=int(file["begin"]),
                end=int(file["end"]),
            )

    def known_before(self, begin: int) -> Known:
        """Take the events before a moment."""
        before = self.times < begin
        return Known(
            user_rows=self.users[before],
            item_rows=self.item_rows[before],
            times=self.times[before],
            num_users=len(self.offsets) - 1,
            num_item_rows=self.num_item_rows,
            begin=begin,
        )

    def lists(self, step: int, row: str) -> Path:
        """Where a peer's lists of a step lie."""
        return self.path / "steps" / str(step) / "lists" / f"peer.{row}.npz"

    def error(self, step: int, row: str) -> Path:
        """Where it is said why a peer has no lists of a step."""
        return self.lists(step, row).with_suffix(".error.txt")

    def choice(self, row: str) -> Path:
        """Where the settings of a row lie, with how they were chosen where they were."""
        return self.path / "peers" / f"{row}.json"

    def write_settings(self, row: str, settings: Mapping[str, Any]) -> None:
        """Keep a row's settings beside its lists; those that were chosen stay as they are."""
        path = self.choice(row)
        path.parent.mkdir(parents=True, exist_ok=True)
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        path.write_text(json.dumps({**found, "settings": settings}, indent=1) + "\n", "utf-8")

    def write_lists(self, step: int, row: str, item_rows: Rows, **fields: Any) -> None:
        """Write a row's lists, whole or not at all, and take an earlier error away."""
        path = self.lists(step, row)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part.npz")
        np.savez_compressed(part, item_rows=item_rows.astype(np.int32), **fields)
        part.replace(path)
        self.error(step, row).unlink(missing_ok=True)

    def write_error(self, step: int, row: str, text: str) -> None:
        """Say in one line why a peer has no lists of a step."""
        path = self.error(step, row)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(" ".join(text.split())[:400] + "\n", encoding="utf-8")
