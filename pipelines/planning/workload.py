"""The workload: sizes of a shop and of a training step, checked.

Axes: G GPUs, B labels of a GPU's batch, C uniform negatives, M history values, R different rows, D
width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Tables = Literal["adam", "rowwise_adam", "dense"]
Floats = NDArray[np.float64]
FLOAT = 4
"""Bytes of a float32: weights and optimizer state of trained tables."""
MAX_GPUS = 65_536
LIMITS = {
    "items": (1, 1e12),
    "users": (0, 1e12),
    "batch": (1, 1 << 22),
    "negatives": (0, 1 << 22),
    "events_per_day": (1, 1e15),
    "history": (1, 1e5),
    "skew": (0, 3),
    "head": (0, 1e9),
}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A two-tower over a shop of this size."""

    items: int
    users: int = 0
    """Rows of a table of user ids; 0 where users are their histories alone, as in the presets."""
    dim: int = 64
    events_per_day: float = 1e6
    """Labels of one pass."""
    batch: int = 8_192
    """Labels of a step on each GPU."""
    history: float = 25.0
    """Events that a history has on average."""
    negatives: int = 8_192
    tables: Tables = "rowwise_adam"
    """How table rows move; ``optimizer.tables`` of a run."""
    skew: float = 1.0
    """Exponent of Zipf's law of the ids: 0 is even, 1 the usual."""
    head: float = 0.0
    """Items at the top that are about equally frequent (Mandelbrot's shift of the ranks); 0 makes
    the first by far the most frequent."""

    def __post_init__(self) -> None:
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if not math.isfinite(value) or not least <= value <= most:
                raise ValueError(f"{name} must be between {least:g} and {most:g}, got {value:g}")
        if self.dim % 4 or not 4 <= self.dim <= 4_096:
            raise ValueError(
                f"dim must be a multiple of 4 between 4 and 4096 (rows are read 16 bytes at a "
                f"time), got {self.dim}; take {min(4_096, max(4, -(-self.dim // 4) * 4))}"
            )
        if self.tables not in get_args(Tables):
            raise ValueError(f"tables must be one of {get_args(Tables)}, got {self.tables!r}")

    @property
    def values(self) -> float:
        """History values of a GPU's batch, M."""
        return self.batch * self.history

    def candidates(self, gpus: int) -> int:
        """Count what each label is ranked against: every GPU's labels and the uniform negatives."""
        return self.batch * gpus + self.negatives

    def score_elements(self, gpus: int) -> float:
        """Count the matrix of scores of one GPU, B x (G B + C)."""
        return float(self.batch * self.candidates(gpus))

    @property
    def value_elements(self) -> float:
        """Numbers of the history's values, M x D."""
        return self.values * self.dim

    def item_rows_of_a_step(self, gpus: int) -> float:
        """Expect the different item rows that one GPU reads, R; uniform ones hardly repeat."""
        draws = self.values + self.batch * gpus
        drawn = distinct_rows(self.items, draws, self.skew, head=self.head)
        even = min(self.negatives, self.items) * (1 - drawn / self.items)
        return min(float(self.items), drawn + even)

    @property
    def hottest_events(self) -> float:
        """Expect how often the most frequent item occurs in a GPU's histories."""
        edges, shares = _ranks(self.items, self.skew, self.head)
        in_first = np.clip((2 - edges[:-1]) / np.diff(edges), 0, 1)
        return self.values * float((in_first * shares * np.diff(edges)).sum())

    @property
    def user_rows_of_a_step(self) -> float:
        """Different user rows that a GPU's batch reads."""
        return distinct_rows(self.users, self.batch, self.skew) if self.users else 0.0

    @property
    def dense_weights(self) -> int:
        """Weights of the towers besides their tables (``models/two_tower.py``)."""
        attention, hidden = 4 * self.dim**2, 4 * self.dim**2
        return attention + hidden + round(2 * self.history) * self.dim + 16 * self.dim

    @property
    def state_words(self) -> float:
        """Words of optimizer state a table row has, in row widths."""
        return 1 + 1 / self.dim if self.tables == "rowwise_adam" else 2.0

    def table_bytes(self, rows: int) -> tuple[float, float]:
        """Count the bytes of a table's weights and of its optimizer's state."""
        weights = float(rows * self.dim * FLOAT)
        return weights, weights * self.state_words


def _ranks(rows: int, skew: float, head: float) -> tuple[Floats, Floats]:
    """Split ranks into 4,000 parts: their edges, and the share of one rank in each."""
    edges = np.geomspace(1, rows + 1, 4_000)
    widths = np.diff(edges)
    weights = (np.sqrt(edges[1:] * edges[:-1]) + head) ** -skew
    return edges, weights / (weights * widths).sum()


def distinct_rows(rows: int, draws: float, skew: float, *, head: float = 0.0) -> float:
    """Expect how many different rows are drawn with density (rank + head)^-skew."""
    edges, share = _ranks(rows, skew, head)
    return float((np.diff(edges) * -np.expm1(-draws * share)).sum())
