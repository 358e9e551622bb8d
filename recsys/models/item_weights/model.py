"""A ragged table of weights between items, and the scores that a history has by it.

An item's score is the sum of its weights from the items of the history, each by how late it is
there. Tables hold each item's strongest weights alone, so a query costs by its history and not by
the catalogue's square.

Axes: P weights, N item rows, B queries, M history values of a batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch, all_finite
from recsys.data.bounds import check_bounds
from recsys.data.dataset import concatenated_ranges
from recsys.kernels.one_query.op import WeightsOfOne

Rows = NDArray[np.int64]
FILE = "weights.safetensors"


DENSE_UP_TO = 8
"""Item rows for each weight of a history up to which scores of all rows are laid out."""


def _last_places(rows: NDArray[np.integer[Any]], num_item_rows: int) -> NDArray[np.bool_]:
    """Mark the last place of each row, [M]."""
    place = np.arange(len(rows))
    last = np.empty(num_item_rows, np.int64)
    last[rows] = place
    marked: NDArray[np.bool_] = last[rows] == place
    return marked


class WeightTable(NamedTuple):
    """Each item's weights, strongest first: item i owns rows[offsets[i]:offsets[i + 1]]."""

    offsets: Tensor
    """[N + 1] int64."""
    rows: Tensor
    """[P] int32, the items that get the weights."""
    weights: Tensor
    """[P] float32, none 0."""

    def check(self) -> None:
        """Refuse a table whose parts do not fit each other."""
        offsets, rows, weights = self
        cut = offsets[0] == 0 and bool((offsets.diff() >= 0).all())
        if not cut or not int(offsets[-1]) == len(rows) == len(weights):
            raise ValueError("its offsets do not cut its weights; release the bundle again")
        num_rows = len(offsets) - 1
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < num_rows:
            raise ValueError(
                f"it names item rows {int(rows.min())} to {int(rows.max())} of {num_rows}; "
                "release the bundle again"
            )
        if not all_finite(weights):
            raise ValueError("its weights are not finite; fit it and release the bundle again")

    def grown(self, num_item_rows: int) -> WeightTable:
        added = self.offsets[-1:].expand(num_item_rows - len(self.offsets) + 1)
        return self._replace(offsets=torch.cat([self.offsets, added]))


@dataclass(frozen=True, kw_only=True)
class HistoryWeights:
    """How much each event of a history counts."""

    power: float = 0.0
    """The r-th latest event counts r ** -power ..."""
    decay: float = 1.0
    """... times decay ** (r - 1)."""
    max_events: int = 200
    """Latest events that count at all."""
    distinct: bool = False
    """Whether an item counts once, where it occurs last; else each time."""

    def __post_init__(self) -> None:
        check_bounds(self, "history_", power=">= 0", decay="(0, 1]")
        check_bounds(self, max_events=">= 1")


class ItemWeights:
    """Scores items by the weights from a user's latest items."""

    def __init__(
        self, table: WeightTable, history: HistoryWeights, settings: Mapping[str, Any] | None = None
    ) -> None:
        self.num_item_rows = len(table.offsets) - 1
        self.table, self.history, self.settings = table, history, dict(settings or {})
        # Looked up, not computed per query: torch's powers differ in the last bit by where in a
        # tensor they stand. By recency, 1 is the latest; [max_events + 1].
        recency = torch.arange(history.max_events + 1, device="cpu").clamp(min=1)
        self._weights = recency.float() ** -history.power * history.decay ** (recency - 1)
        self._latest_last = self._weights[1:].flip(0).numpy()

    def to(self, device: torch.device | str) -> ItemWeights:
        table = WeightTable(*(part.to(device) for part in self.table))
        return ItemWeights(table, self.history, self.settings)

    def score(self, queries: JaggedBatch) -> Tensor:
        """Score every item for each query, [B, N].

        -inf means no evidence: no item of the history has a weight for the item. Row 0 and rows
        the model was not fitted on have no weights, so they are as good as absent.
        """
        history = queries["history"]
        if queries.batch_size == 1 and history.values.device.type == "cpu":
            # The same sums, with no work that grows with the catalogue where it is large.
            own, some = self.laid_out_scores(history.values.numpy())
            some = np.flatnonzero(own) if some is None else some[own[some] != 0]
            scores = torch.full((1, self.num_item_rows), -torch.inf)
            scores[0, torch.from_numpy(some)] = torch.from_numpy(own[some])
            return scores
        query = history.segments()  # [M]
        place = torch.arange(len(query), device=query.device)
        recency = history.offsets[1:][query] - place  # 1 is the latest
        known = (history.values < self.num_item_rows) & (recency <= self.history.max_events)
        if self.history.distinct:
            known &= self._is_last(query, history.values)
        weight = self._weights.to(recency.device)[recency[known]]
        return self._sum(queries.batch_size, query[known], history.values[known], weight)

    @cached_property
    def of_one(self) -> WeightsOfOne:
        """Ranks for one history at a time by compiled functions."""
        return WeightsOfOne(self._arrays, self._latest_last, distinct=self.history.distinct)

    @cached_property
    def _arrays(self) -> tuple[NDArray[Any], ...]:
        return tuple(part.numpy() for part in self.table)

    def strongest_seeds(self, item_rows: Rows, history: Rows) -> Rows:
        """Find the event of the history that adds most to each item's score, [k]; 0 if none does.

        Args:
            history: Item rows, oldest first.
        """
        offsets, rows, weights = self._arrays
        best, seeds = np.zeros(len(item_rows)), np.zeros(len(item_rows), np.int64)
        if len(item_rows) == 0:
            return seeds
        order = np.argsort(item_rows)
        latest = history[-self.history.max_events :][::-1]
        for seed, counts in zip(latest.tolist(), self._latest_last[::-1], strict=False):
            if seed >= self.num_item_rows:
                continue
            own = slice(offsets[seed], offsets[seed + 1])
            place = order[np.searchsorted(item_rows, rows[own], sorter=order) % len(order)]
            listed = item_rows[place] == rows[own]
            place, weight = place[listed], weights[own][listed] * counts
            stronger = weight > best[place]
            best[place[stronger]], seeds[place[stronger]] = weight[stronger], seed
        return seeds

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        save_file(self.table._asdict(), directory / FILE)
        document = {"history": asdict(self.history), "settings": self.settings}
        (directory / "config.json").write_text(json.dumps(document, indent=2) + "\n")

    @classmethod
    def load(cls, directory: Path) -> ItemWeights:
        document = json.loads((directory / "config.json").read_text())
        table = WeightTable(**load_file(directory / FILE))
        kept = document["settings"].items()
        settings = {key: tuple(one) if isinstance(one, list) else one for key, one in kept}
        return ItemWeights(table, HistoryWeights(**document["history"]), settings)

    def laid_out_scores(self, history: Rows) -> tuple[NDArray[np.float32], Rows | None]:
        """Score one history by item row, [N], and list the rows that may have a score.

        None are all rows, of which those without a score have 0; other places hold anything.
        """
        latest = history[-self.history.max_events :]
        weight = self._latest_last[len(self._latest_last) - len(latest) :]
        offsets, others, amounts = self._arrays
        if len(latest) and latest.max() >= self.num_item_rows:
            known = latest < self.num_item_rows
            latest, weight = latest[known], weight[known]
        if self.history.distinct:
            kept = _last_places(latest, self.num_item_rows)
            latest, weight = latest[kept], weight[kept]
        begin, end = offsets[latest], offsets[latest + 1]
        pair = concatenated_ranges(begin, end)
        other, amount = others[pair], np.repeat(weight, end - begin) * amounts[pair]
        if self.num_item_rows < DENSE_UP_TO * len(other):
            scores = np.zeros(self.num_item_rows, np.float32)
            np.add.at(scores, other, amount)
            return scores, None
        rows = other[_last_places(other, self.num_item_rows)].astype(np.int64)
        scores = np.empty(self.num_item_rows, np.float32)
        scores[rows] = 0
        np.add.at(scores, other, amount)
        return scores, rows

    def _is_last(self, query: Tensor, row: Tensor) -> Tensor:
        """Mark each item's last occurrence in its history, [M] bool."""
        code = query * (int(row.max()) + 1 if len(row) else 1) + row
        found, group = torch.unique(code, return_inverse=True)
        place = torch.arange(len(code), device=code.device)
        last = torch.zeros_like(found).scatter_reduce_(0, group, place, "amax")
        return place == last[group]

    def _sum(self, num_queries: int, query: Tensor, row: Tensor, weight: Tensor) -> Tensor:
        """Add up weight x table weight of the events that count, [M] each, as [B, N]."""
        offsets = self.table.offsets
        begin, lengths = offsets[row], offsets[row + 1] - offsets[row]  # [M]
        before = lengths.cumsum(0) - lengths
        places = torch.arange(int(lengths.sum()), device=lengths.device)
        pair = places + torch.repeat_interleave(begin - before, lengths)
        cell = torch.repeat_interleave(query * self.num_item_rows, lengths)
        cell += self.table.rows[pair]
        amount = torch.repeat_interleave(weight, lengths) * self.table.weights[pair]
        scores = torch.zeros(num_queries * self.num_item_rows, device=weight.device)
        scores.index_add_(0, cell, amount)
        return scores.masked_fill_(scores == 0, -torch.inf).view(num_queries, self.num_item_rows)


class ItemNeighbours(NamedTuple):
    """The nearest items of each item, strongest first; the item tower reads their ids too.

    They are counted in the events that the model is fitted on: a new item has none, and a refit
    counts them again. No weight depends on which they are.
    """

    rows: Tensor
    """[N, K] int64; 0 where there are fewer."""
    shares: Tensor
    """[N, K] float32, of an item they sum to 1, or to 0 where it has none."""

    @classmethod
    def of(cls, neighbours: WeightTable, num_neighbours: int) -> ItemNeighbours:
        """Keep at most ``num_neighbours`` others of each item, with the shares of their weights."""
        lengths = neighbours.offsets.diff()
        item = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        other = neighbours.rows.long() != item
        item, rows = item[other], neighbours.rows[other].long()
        first = torch.searchsorted(item, item)  # of the same item
        place = torch.arange(len(item)) - first
        kept = place < num_neighbours
        item, place = item[kept], place[kept]
        table = torch.zeros(len(lengths), num_neighbours, dtype=torch.int64)
        weights = torch.zeros(len(lengths), num_neighbours)
        table[item, place] = rows[kept]
        weights[item, place] = neighbours.weights[other][kept]
        return cls(table, weights / weights.sum(1, keepdim=True).clamp(min=1e-30))


EASE_FILE = "ease.safetensors"


class Ease:
    """Dense weights among the items with the most events; others have none."""

    def __init__(self, item_rows: Tensor, weights: Tensor, num_item_rows: int) -> None:
        """Wrap fitted weights.

        Args:
            item_rows: Items with weights, [K] int64, ascending, none twice.
            weights: From each (row) to each (column), [K, K] float32.
        """
        if not bool(weights.isfinite().all()):
            raise ValueError("weights must be finite; fit them again with a larger l2")
        # The last row and column stand for items without weights.
        self.weights = functional.pad(weights, (0, 1, 0, 1))
        self.item_rows = item_rows
        self.places = torch.full((num_item_rows,), len(item_rows))
        self.places[item_rows] = torch.arange(len(item_rows))

    def score(self, history: Jagged, candidates: Tensor) -> Tensor:
        """Sum the weights from each history to its candidates, [B, k].

        Args:
            candidates: Item rows, [B, k]; unknown and appended items score 0.
        """
        places = self.index_places(history.values)
        every = functional.embedding_bag(places, self.weights, history.offsets[:-1], mode="sum")
        return every.gather(1, self.index_places(candidates))

    def index_places(self, rows: Tensor) -> Tensor:
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
        save_file(state, directory / EASE_FILE)

    @classmethod
    def load(cls, directory: Path) -> Ease:
        state = load_file(directory / EASE_FILE)
        return cls(state["item_rows"], state["weights"], int(state["num_item_rows"]))
