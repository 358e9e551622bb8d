"""What users take again: their own items by how often and how lately they took them.

Groceries and music are taken again; most items of a next basket were in an earlier one, and a
personal frequency that decays is hard to beat there (TIFU-kNN, Hu et al., arXiv:2006.00556). As a
table of weights between items, each item has the weight 1 from itself alone, so an item scores the
sum of r ** -history_power over its events, the r-th latest of the history.

Axes: N item rows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from recsys.models.item_weights.ease import check_powers
from recsys.models.item_weights.model import HistoryWeights, ItemWeights, WeightTable


@dataclass(frozen=True, kw_only=True)
class RepeatsConfig:
    """Whether what was taken before is a source, and its settings."""

    enabled: bool = True
    """Takes effect only where lists may hold the history (evaluation.exclude_history = false)."""
    history_power: tuple[float, ...] = (0.6, 0.0, 0.3, 1.0, 2.0)
    """An item's r-th latest event counts r ** -history_power, of which validation chooses."""
    max_history: int = 200
    """Latest events of a history that count."""

    def __post_init__(self) -> None:
        check_powers(self.history_power)
        if self.max_history < 1:
            raise ValueError(f"max_history must be >= 1, got {self.max_history}")


def repeats_model(num_item_rows: int, config: RepeatsConfig) -> ItemWeights:
    """Weigh every item by itself; the first power is taken."""
    each = torch.arange(num_item_rows)
    table = WeightTable(
        offsets=torch.cat([torch.zeros(1, dtype=torch.int64), each]),
        rows=each[1:].to(torch.int32),
        weights=torch.ones(num_item_rows - 1),
    )
    history = HistoryWeights(power=config.history_power[0], max_events=config.max_history)
    return ItemWeights(table, history, asdict(config))
