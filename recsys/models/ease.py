"""Linear item-to-item weights in closed form (EASE, Steck, arXiv:1905.03375).

An item's score is the sum of learned weights from each item of the history. The weights are a ridge
regression of every item on all others, so a correlation through a third item is not counted twice,
as it is by co-occurrence. Weights are dense among the items with the most events; others have none.

Axes: E events, N item rows, K items with weights, B queries, k candidates of a query.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import Jagged
from recsys.models.item_weights.co_occurrence import CoOccurrence, UserItems
from recsys.models.item_weights.ease import shared_users

FILE = "ease.safetensors"
Rows = NDArray[np.int64]


L2 = 200.0
"""L2 penalty, in events of an item."""
MAX_ITEMS = 4096
"""Items with weights, those with the most events; memory and time grow with its square and cube:
64 MiB and 3 seconds."""


class Ease:
    """Item-to-item weights of a catalogue."""

    def __init__(self, item_rows: Tensor, weights: Tensor, num_item_rows: int) -> None:
        """Wrap fitted weights.

        Args:
            item_rows: Items with weights, [K] int64, ascending, none twice.
            weights: From each (row) to each (column), [K, K] float32.
        """
        if weights.shape != (len(item_rows), len(item_rows)):
            raise ValueError(
                f"weights must be [{len(item_rows)}, {len(item_rows)}] for as many items, got "
                f"{tuple(weights.shape)}"
            )
        if not bool(weights.isfinite().all()):
            raise ValueError("weights must be finite; fit them again with a larger l2")
        # The last row and column stand for items without weights.
        self.weights = functional.pad(weights, (0, 1, 0, 1))
        self.item_rows = item_rows
        self.places = torch.full((num_item_rows,), len(item_rows))
        self.places[item_rows] = torch.arange(len(item_rows))

    @classmethod
    def fit(
        cls,
        user_rows: Rows,
        item_rows: Rows,
        num_item_rows: int,
        l2: float = L2,
        max_items: int = MAX_ITEMS,
        device: torch.device | None = None,
    ) -> Ease:
        """Regress every item on the others; repeated items of a user count once.

        Args:
            user_rows: Of each event, [E].
            item_rows: Of each event, [E]; row 0 is no item.
        """
        counts = np.bincount(item_rows, minlength=num_item_rows)
        counts[0] = 0
        order = np.lexsort((np.arange(num_item_rows), -counts))[:max_items]
        kept = np.sort(order[counts[order] > 0])
        by_user = np.argsort(user_rows, kind="stable")
        ends = np.cumsum(np.unique(user_rows, return_counts=True)[1])
        starts = np.concatenate([[0], ends])[:-1].astype(np.int64)
        taken = UserItems.of(item_rows[by_user], starts, ends, None, num_item_rows, len(by_user))
        # Counts are exact in float32.
        gram = shared_users(CoOccurrence(taken), kept).to(device or "cpu").double()
        gram.diagonal().add_(l2)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
        weights = -inverse / inverse.diagonal()[None, :]
        weights.fill_diagonal_(0)
        return cls(torch.from_numpy(kept), weights.float().cpu(), num_item_rows)

    def score(self, history: Jagged, candidates: Tensor) -> Tensor:
        """Sum the weights from each history to its candidates, [B, k].

        Args:
            candidates: Item rows, [B, k]; unknown and appended items score 0.
        """
        return self.score_all(history).gather(1, self.places_of(candidates))

    def score_all(self, history: Jagged) -> Tensor:
        """Sum the weights from each history to every item with weights; 0 last, [B, K + 1]."""
        return functional.embedding_bag(
            self.places_of(history.values), self.weights, history.offsets[:-1], mode="sum"
        )

    def places_of(self, rows: Tensor) -> Tensor:
        """Index items among those with weights; K for all others."""
        inside = (rows >= 0) & (rows < len(self.places))
        return torch.where(inside, self.places[torch.where(inside, rows, 0)], len(self.item_rows))

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        state = {
            "weights": self.weights[:-1, :-1].contiguous(),
            "item_rows": self.item_rows,
            "num_item_rows": torch.tensor(len(self.places)),
        }
        save_file(state, directory / FILE)

    @classmethod
    def load(cls, directory: Path) -> Ease:
        state = load_file(directory / FILE)
        return cls(state["item_rows"], state["weights"], int(state["num_item_rows"]))
