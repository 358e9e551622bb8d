"""The two-tower's query tower for one request at a time: ``TwoTower.query_vectors`` for a request.

Axes: M events of the history, D width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from recsys.layers.attention.latest import LatestEvent, unit_vector
from recsys.models.item_tower import NORM_FLOOR
from recsys.models.two_tower import TwoTower


class OneQuery:
    """Encodes single queries with a history; the model must not change afterwards."""

    def __init__(self, model: TwoTower) -> None:
        tower = model.query_tower
        attention = tower.attention
        self._inputs = model.all_item_inputs()
        # The latest event last.
        self._recency = tower.recency.weight.detach().flip(0)
        self._num_events = len(self._recency)
        self._latest = LatestEvent(
            tower.attention_norm,
            (attention.query.weight, attention.query.bias),
            (attention.key, attention.value.transpose(1, 2)),
            (attention.output.weight, attention.output.bias),
            tower.hidden,
        )
        norm = tower.output_norm
        self._norm = (norm.weight.detach(), norm.bias.detach(), norm.eps)
        tables = [] if tower.features is None else tower.features.tables.values()
        self._tables = [
            (feature, tower.features.weight(table.name).detach())
            for table in tables
            for feature in table.features
            if tower.features is not None
        ]

    def query_vector(self, item_rows: Tensor, features: Mapping[str, int]) -> Tensor:
        """Encode a query as a unit vector, [D].

        Args:
            item_rows: History, rows of the catalogue, oldest first, at least one.
            features: Row of each ``user.<name>`` and ``context.<name>`` that the model reads.
        """
        values = self._inputs.index_select(0, item_rows[-self._num_events :])
        values += self._recency[-values.shape[0] :]
        state = self._latest(values, None)
        state = torch.layer_norm(state, state.shape, *self._norm)
        for feature, weight in self._tables:
            state += weight[features[feature]]
        return unit_vector(state, NORM_FLOOR)
