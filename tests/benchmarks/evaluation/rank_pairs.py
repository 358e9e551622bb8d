"""Tables of where two trainings of a model rank the same held-out items, and worlds of them.

A table counts users by the rank of their item in one system and in the other, in cells that keep
ranks 1 to 10 apart. ``gate_pairs.json`` holds, for each data set and system, one table of equal
pairs (two seeds, every pair of six or four) and one of unequal pairs (a training of half as many
passes, and the whole one). A world of users is drawn from a mixture of both, whose share of unequal
users makes the true NDCG@10 differ by what is wanted.

Axes: G cells of ranks, U users.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

FILE = Path(__file__).with_name("gate_pairs.json")
FIRST_RANKS = np.array([*range(1, 12), 15, 21, 31, 51, 101, 201])
"""First rank of each cell, [G]; the last one also holds items that are not ranked."""
NUM_CELLS = len(FIRST_RANKS)
LAST_RANKS = np.append(FIRST_RANKS[1:] - 1, 1_000)


class Pairs(NamedTuple):
    """Two systems of one kind on one data set."""

    name: str
    num_users: int
    """Users of the data set, of which worlds are resampled."""
    equal: Floats
    """Share of users by cell of the first and of the second system, [G, G]."""
    unequal: Floats
    """The same where the first system is the worse one."""


def rank_table(pairs: Iterable[tuple[Rows, Rows]]) -> Rows:
    """Count users by cell in both systems, over all pairs together, [G, G].

    Args:
        pairs: Ranks from 1 of the same users by two systems, 0 where an item is not ranked.
    """
    table = np.zeros(NUM_CELLS * NUM_CELLS, np.int64)
    for first, second in pairs:
        cells = [
            np.searchsorted(FIRST_RANKS, np.where(ranks > 0, ranks, 1 << 30), side="right") - 1
            for ranks in (first, second)
        ]
        table += np.bincount(cells[0] * NUM_CELLS + cells[1], minlength=len(table))
    return table.reshape(NUM_CELLS, NUM_CELLS)


def write_pairs(rows: Iterable[dict[str, object]]) -> None:
    """Write tables, one line each, in the place of those of the same names."""
    known = {row["name"]: row for row in json.loads(FILE.read_text())} if FILE.exists() else {}
    known |= {row["name"]: row for row in rows}
    FILE.write_text("[\n" + ",\n".join(json.dumps(row) for row in known.values()) + "\n]\n")


def load_pairs() -> list[Pairs]:
    """Read the tables; equal pairs are made symmetric, since the order of two seeds is chance."""
    found = []
    for row in json.loads(FILE.read_text()):
        equal, unequal = (
            np.array(row[kind], np.float64).reshape(NUM_CELLS, NUM_CELLS)
            for kind in ("equal", "unequal")
        )
        equal = equal + equal.T
        found.append(
            Pairs(row["name"], row["num_users"], equal / equal.sum(), unequal / unequal.sum())
        )
    return found


def true_ndcg(table: Floats) -> tuple[float, float]:
    """NDCG@10 of both systems in the population of a table."""
    gains = np.where(FIRST_RANKS <= 10, 1 / np.log2(FIRST_RANKS + 1), 0)
    return float(table.sum(1) @ gains), float(table.sum(0) @ gains)


def apart(pairs: Pairs, gap: float) -> Floats:
    """Mix both tables so that the second system's true NDCG@10 is higher by ``gap``, relative.

    Raises:
        ValueError: The unequal pairs are not so far apart.
    """
    tables = (pairs.equal, pairs.unequal)
    (low, _), (first, second) = (true_ndcg(table) for table in tables)
    # (1 - q) low + q second = (1 + gap) ((1 - q) low + q first), solved for q.
    share = gap * low / (second - low - (1 + gap) * (first - low))
    if not 0 <= share <= 1:
        raise ValueError(
            f"{pairs.name} has pairs {second / first - 1:.1%} apart, so none of {gap:.1%} can be "
            "drawn; train the weaker one for fewer passes"
        )
    mixed: Floats = (1 - share) * pairs.equal + share * pairs.unequal
    return mixed


def drawn_ranks(table: Floats, num_users: int, draw: np.random.Generator) -> tuple[Rows, Rows]:
    """Draw the ranks of both systems for users of a world, [U] each."""
    cells = draw.choice(table.size, num_users, p=table.reshape(-1))
    return _within(cells // NUM_CELLS, draw), _within(cells % NUM_CELLS, draw)


def _within(cells: Rows, draw: np.random.Generator) -> Rows:
    """Draw a rank of each cell, lower ranks more often as items thin out, [U]."""
    first, after = FIRST_RANKS[cells], LAST_RANKS[cells] + 1
    return np.floor(first * (after / first) ** draw.random(len(cells))).astype(np.int64)
