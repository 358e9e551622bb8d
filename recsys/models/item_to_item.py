"""Item-to-item: what else appears near this item in people's histories (Linden et al., 2003).

Two events of one user, d events apart, add d ** -distance_power to the weight of the pair in the
direction of time, and ``reverse_weight`` times that in the other direction. Pairs further apart
than ``window`` do not count. A pair's weight is divided by powers of both items' event counts, so
that bestsellers are neither everyone's neighbour nor drowned by their own many pairs.

Only each item's ``num_neighbours`` strongest pairs are kept, as one ragged (CSR) table.

Axes: E events, V events a model may see, W distances in both directions, P pairs, N item rows,
B queries, M history values of a batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from recsys.data.batch import JaggedBatch
from recsys.data.dataset import concatenated_ranges
from recsys.data.top_k import TopK, select_top_k

Rows = NDArray[np.int64]

PAIRS_PER_BLOCK = 1 << 24
"""Pairs that are in memory at a time, about 1 GiB; one item's pairs always go together."""


@dataclass(frozen=True, kw_only=True)
class ItemToItemConfig:
    """Settings of ItemToItem; the defaults were chosen on validation of three Amazon sets."""

    num_neighbours: int = 200
    window: int = 20
    """Largest distance between two events that form a pair."""
    distance_power: float = 0.4
    reverse_weight: float = 0.3
    """Weight of a pair against the direction of time, relative to along it."""
    source_power: float = 0.3
    """Divides by (events of the history's item) ** source_power."""
    target_power: float = 0.15
    """Divides by (events of the recommended item) ** target_power."""
    history_power: float = 0.85
    """The r-th latest event of the history counts r ** -history_power."""
    max_history: int = 50

    def __post_init__(self) -> None:
        for name in ("num_neighbours", "window", "max_history"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if not 0 <= self.reverse_weight <= 1:
            raise ValueError(f"reverse_weight must be in [0, 1], got {self.reverse_weight}")


class Neighbours(NamedTuple):
    """Each item's neighbours, strongest first: item i owns rows[offsets[i]:offsets[i + 1]]."""

    offsets: Tensor
    """[N + 1] int64."""
    rows: Tensor
    """[P] int32."""
    weights: Tensor
    """[P] float32, all > 0."""


class _Events(NamedTuple):
    """The events a model may see, users one after the other without gaps."""

    rows: Rows
    """[V] item of each event."""
    first: Rows
    """[V] index of the first event of the same user."""
    end: Rows
    """[V] index after the last event of the same user."""


def _visible_events(item_rows: Rows, starts: Rows, ends: Rows) -> _Events:
    lengths = ends - starts
    ends_here = np.cumsum(lengths)
    return _Events(
        rows=np.asarray(item_rows[concatenated_ranges(starts, ends)]),
        first=np.repeat(ends_here - lengths, lengths),
        end=np.repeat(ends_here, lengths),
    )


def _item_blocks(counts: Rows, events_per_block: int) -> Iterator[tuple[int, int]]:
    """Cut the items into ranges of about ``events_per_block`` events, never within an item."""
    before = np.concatenate([[0], np.cumsum(counts)])
    first = 1  # row 0 is padding and has no neighbours
    while first < len(counts):
        end = int(np.searchsorted(before, before[first] + events_per_block, side="right")) - 1
        end = min(max(end, first + 1), len(counts))
        yield first, end
        first = end


def _pair_weights(
    events: _Events, anchors: Rows, num_items: int, config: ItemToItemConfig
) -> tuple[Rows, NDArray[np.float64]]:
    """Sum the weight of every (item, other item) pair that starts at one of the anchors.

    Returns:
        ``item * num_items + other`` of each distinct pair, ascending, and its weight.
    """
    reach = np.arange(1, config.window + 1)
    distances = np.concatenate([reach, -reach])  # [W]
    along = reach**-config.distance_power
    weight_of = np.concatenate([along, config.reverse_weight * along])  # [W]

    codes = []
    for column, distance in enumerate(distances):
        others = anchors + distance
        inside = (others >= events.first[anchors]) & (others < events.end[anchors])
        source = events.rows[anchors[inside]]
        target = events.rows[others[inside]]
        distinct = (source != target) & (target != 0)
        pair = source[distinct] * num_items + target[distinct]
        codes.append(pair * len(distances) + column)
    # Distance rides in the low digits of the pair's code: one sort of plain integers then groups
    # equal pairs, which is several times faster than an argsort of pairs beside weights.
    sorted_codes = np.sort(np.concatenate(codes))
    pairs, columns = np.divmod(sorted_codes, len(distances))
    heads = np.flatnonzero(np.diff(pairs, prepend=-1))
    if len(heads) == 0:
        return pairs, np.empty(0)
    return pairs[heads], np.add.reduceat(weight_of[columns], heads)


def _strongest(
    sources: Rows, targets: Rows, weights: NDArray[np.float32], limit: int
) -> NDArray[np.bool_ | np.int64]:
    """Order pairs by (source, weight descending, target) and keep ``limit`` per source.

    Takes pairs in (source, target) order. Positive floats compare like their bits read as
    integers, so source and weight fit one sort key.
    """
    key = (sources << 32) - weights.view(np.int32).astype(np.int64)
    order = torch.from_numpy(key).sort(stable=True).indices.numpy()
    begins = np.flatnonzero(np.diff(sources[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    kept: Rows = order[rank < limit]
    return kept


def count_neighbours(
    item_rows: Rows, starts: Rows, ends: Rows, num_item_rows: int, config: ItemToItemConfig
) -> Neighbours:
    """Build the neighbour table; see ItemToItem.fit for the arguments.

    Works through the items in blocks, so memory is that of the events plus one block.
    """
    events = _visible_events(item_rows, starts, ends)
    if len(events.rows) and not 0 <= events.rows.min() <= events.rows.max() < num_item_rows:
        raise ValueError(
            f"item rows must be in [0, {num_item_rows}), got {events.rows.min()} to "
            f"{events.rows.max()}; were the events and the catalogue built by different runs?"
        )
    counts = np.bincount(events.rows, minlength=num_item_rows)  # [N]
    by_item = np.argsort(events.rows, kind="stable")  # [V]
    item_begin = np.cumsum(counts) - counts
    popularity = np.maximum(counts, 1).astype(np.float64)
    source_scale, target_scale = (
        popularity**-config.source_power,
        popularity**-config.target_power,
    )

    lengths = np.zeros(num_item_rows, np.int64)
    rows, weights = [np.empty(0, np.int32)], [np.empty(0, np.float32)]
    for first, end in _item_blocks(counts, max(1, PAIRS_PER_BLOCK // (2 * config.window))):
        anchors = by_item[item_begin[first] : item_begin[end - 1] + counts[end - 1]]
        pairs, sums = _pair_weights(events, anchors, num_item_rows, config)
        source, target = np.divmod(pairs, num_item_rows)
        scaled = (sums * source_scale[source] * target_scale[target]).astype(np.float32)
        kept = _strongest(source, target, scaled, config.num_neighbours)
        lengths += np.bincount(source[kept], minlength=num_item_rows)
        rows.append(target[kept].astype(np.int32))
        weights.append(scaled[kept])
    return Neighbours(
        offsets=torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)])),
        rows=torch.from_numpy(np.concatenate(rows)),
        weights=torch.from_numpy(np.concatenate(weights)),
    )


class ItemToItem:
    """Scores items by their co-occurrence with the user's latest items."""

    def __init__(self, config: ItemToItemConfig, neighbours: Neighbours) -> None:
        num_pairs = int(neighbours.offsets[-1])
        if not num_pairs == len(neighbours.rows) == len(neighbours.weights):
            raise ValueError(
                f"{len(neighbours.rows)} neighbours and {len(neighbours.weights)} weights do not "
                f"fit offsets that end at {num_pairs}; fit the model again"
            )
        self.config = config
        self.neighbours = neighbours
        # Looked up, not computed per query: torch's powers differ in the last bit by where in a
        # tensor they stand. By recency, 1 is the latest; [max_history + 1].
        recency = torch.arange(config.max_history + 1, device="cpu").clamp(min=1)
        self._weights = recency.float() ** -config.history_power

    @classmethod
    def fit(
        cls,
        item_rows: Rows,
        starts: Rows,
        ends: Rows,
        num_item_rows: int,
        config: ItemToItemConfig,
    ) -> ItemToItem:
        """Count co-occurrences in the part of each user's sequence a model may see.

        Args:
            item_rows: All users' events, oldest first within a user, [E].
            starts: Where each user's visible events begin, [U].
            ends: Where they end (exclusive), [U].
            num_item_rows: Item rows with row 0.
            config: Weights and sizes.
        """
        return cls(config, count_neighbours(item_rows, starts, ends, num_item_rows, config))

    @property
    def num_item_rows(self) -> int:
        return len(self.neighbours.offsets) - 1

    def score(self, queries: JaggedBatch) -> Tensor:
        """Score every item for each query, [B, N].

        -inf means no evidence: the item is no neighbour of any item in the history. Row 0 and
        rows the model was not fitted on have no neighbours, so they are as good as absent.
        """
        history = queries["history"]
        if queries.batch_size == 1 and history.values.device.type == "cpu":
            return self._score_one(history.values)
        query = history.segments()  # [M]
        place = torch.arange(len(query), device=query.device)
        recency = history.offsets[1:][query] - place  # 1 is the latest
        known = (history.values < self.num_item_rows) & (recency <= self.config.max_history)
        weight = self._weights.to(recency.device)[recency[known]]
        return self._sum_neighbours(queries.batch_size, query[known], history.values[known], weight)

    def _score_one(self, history: Tensor) -> Tensor:
        """Score every item for one history [M]: the same sums in half of the time, [1, N]."""
        latest = history[-self.config.max_history :]
        weight = self._weights[1 : len(latest) + 1].flip(0).numpy()
        offsets, others, amounts = (part.numpy() for part in self.neighbours)
        known = latest.numpy() < self.num_item_rows
        row, weight = latest.numpy()[known], weight[known]
        begin, end = offsets[row], offsets[row + 1]
        pair = concatenated_ranges(begin, end)
        scores = np.zeros(self.num_item_rows, np.float32)
        np.add.at(scores, others[pair], np.repeat(weight, end - begin) * amounts[pair])
        scores[scores == 0] = -np.inf
        return torch.from_numpy(scores)[None]

    def similar(self, item_row: int, k: int) -> TopK:
        """List the strongest neighbours of one item: a batch of one list, [1, k]."""
        if not 0 <= item_row < self.num_item_rows:
            raise ValueError(f"item_row must be in [0, {self.num_item_rows}), got {item_row}")
        row = torch.tensor([item_row])
        return select_top_k(self._sum_neighbours(1, torch.zeros_like(row), row, torch.ones(1)), k)

    def _sum_neighbours(
        self, num_queries: int, query: Tensor, row: Tensor, weight: Tensor
    ) -> Tensor:
        """Add up weight x neighbour weight of [M] (query, item row) pairs, [B, N]."""
        offsets = self.neighbours.offsets
        begin, lengths = offsets[row], offsets[row + 1] - offsets[row]  # [M]
        before = lengths.cumsum(0) - lengths
        places = torch.arange(int(lengths.sum()), device=lengths.device)
        pair = places + torch.repeat_interleave(begin - before, lengths)
        cell = torch.repeat_interleave(query * self.num_item_rows, lengths)
        cell += self.neighbours.rows[pair]
        amount = torch.repeat_interleave(weight, lengths) * self.neighbours.weights[pair]
        scores = torch.zeros(num_queries * self.num_item_rows, device=weight.device)
        scores.index_add_(0, cell, amount)
        return scores.masked_fill_(scores == 0, -torch.inf).view(num_queries, self.num_item_rows)

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        save_file(self.neighbours._asdict(), directory / "item_to_item.safetensors")
        (directory / "config.json").write_text(json.dumps(asdict(self.config), indent=2) + "\n")

    @classmethod
    def load(cls, directory: Path) -> ItemToItem:
        config = ItemToItemConfig(**json.loads((directory / "config.json").read_text()))
        return cls(config, Neighbours(**load_file(directory / "item_to_item.safetensors")))
