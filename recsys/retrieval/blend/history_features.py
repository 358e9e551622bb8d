"""What ties a candidate to the history of its query, as numbers that a ranker reads.

Sources say how each of them ranks an item; these say why it might be taken: how it goes with the
whole history by linear item-to-item weights, how like it is to the latest events by content, by
category and by behaviour, and how much more or less popular it is than what the user takes.

Axes: B queries, k candidates of a query, H events that are looked at, N item rows, F width, X
numbers of a candidate.
"""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import Jagged, latest
from recsys.models.ease import Ease
from recsys.models.item_tower import ItemCatalogue

HISTORY_NUMBERS = (
    *(f"linear.{what}" for what in ("history", "z_score", "latest")),
    *(
        f"{kind}.{what}"
        for kind in ("content", "category", "behaviour")
        for what in ("last", "few", "all", "best")
    ),
    *(f"events.above_{what}" for what in ("history", "few")),
    "history.events",
)
"""Names of the X numbers. linear: summed weights of the history, the same in standard deviations of
the list, those of the latest 10 events. content, category, behaviour: cosine with the last event,
mean of the latest 5 and 50, largest of the latest 20; behaviour's is of a trained model's item
vectors, 0 without. events: log of the item's training events above the mean
of the history's, and of the latest 5. history: log of its length."""
LATEST, FEW, MANY, SOME = 10, 5, 50, 20
VECTORS = "behaviour.safetensors"
BLOCK = 128
"""Queries at a time."""


class HistoryFeatures:
    """Numbers of candidates against histories, the same in training and in serving."""

    def __init__(
        self, catalogue: ItemCatalogue, linear: Ease, vectors: Tensor | None = None
    ) -> None:
        """Take what is known of items.

        Args:
            catalogue: May have more rows than the weights and the vectors know.
            linear: Item-to-item weights.
            vectors: Unit vectors of a model that was trained on what people took, [at most N, F],
                where there is one.
        """
        size = len(catalogue.content)
        known = torch.zeros(size, 0) if vectors is None else vectors.detach().float().cpu()[:size]
        known = functional.pad(known, (0, 0, 0, size - len(known)))
        self.linear = linear
        made = (catalogue.content.float(), _category_table(catalogue))
        self._tables = (*(functional.normalize(table, dim=1) for table in made), known)

    def save(self, directory: Path) -> None:
        """Write the weights, and the vectors where there are any; the catalogue stands apart."""
        self.linear.save(directory)
        vectors = self._tables[2]
        if vectors.shape[1]:
            save_file({"vectors": vectors.contiguous()}, directory / VECTORS)

    @classmethod
    def load(cls, directory: Path, catalogue: ItemCatalogue) -> HistoryFeatures:
        """Read what ``save`` wrote, for a catalogue that may have grown."""
        path = directory / VECTORS
        vectors = load_file(path)["vectors"] if path.exists() else None
        return cls(catalogue, Ease.load(directory), vectors)

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """Give unit vectors of content, of categories and of behaviour, [N, F] each."""
        return self._tables

    @property
    def num_items(self) -> int:
        """Item rows that it knows, N."""
        return len(self._tables[0])

    def to(self, device: torch.device) -> HistoryFeatures:
        """Copy to where histories, candidates and counts are."""
        there = copy.copy(self)
        there.linear = self.linear.to(device)
        there._tables = tuple(table.to(device) for table in self._tables)
        return there

    def numbers(self, history: Jagged, candidates: Tensor, item_counts: Tensor) -> Tensor:
        """Number candidates, [B, k, X] float32; 0 at holes.

        Args:
            history: Item rows of B queries, oldest first.
            candidates: Item rows, [B, k]; below 1 are holes.
            item_counts: Training events of each item, [N]; rows beyond it have none.
        """
        parts = [
            self._of_block(history.take(rows), candidates[rows], item_counts)
            for rows in torch.split(torch.arange(len(candidates), device=candidates.device), BLOCK)
        ]
        if not parts:
            return torch.zeros(*candidates.shape, len(HISTORY_NUMBERS), device=candidates.device)
        return torch.cat(parts)

    def _of_block(self, history: Jagged, candidates: Tensor, item_counts: Tensor) -> Tensor:
        there = candidates > 0
        size = self.num_items
        known = torch.where(there & (candidates < size), candidates, 0)
        padded = history.padded(MANY).flip(1)  # [B, H], latest first
        padded = torch.where((padded > 0) & (padded < size), padded, 0)
        columns = [*self._linear(history, candidates, there)]
        for table in self._tables:
            columns += _cosines(table, known, padded)
        events = log_events(item_counts, size)
        own, past, met = events[known], events[padded], (padded > 0).float()
        for count in (MANY, FEW):
            mean = (past * met)[:, :count].sum(1) / met[:, :count].sum(1).clamp(min=1)
            columns.append(own - mean[:, None])
        lengths = history.lengths().float().log1p()[:, None].expand_as(own)
        return torch.stack([*columns, lengths], dim=2).masked_fill(~there[:, :, None], 0)

    def _linear(self, history: Jagged, candidates: Tensor, there: Tensor) -> list[Tensor]:
        scores = self.linear.score(history, candidates)
        recent = self.linear.score(latest(history, LATEST), candidates)
        count = there.sum(1, keepdim=True).clamp(min=1)
        mean = scores.masked_fill(~there, 0).sum(1, keepdim=True) / count
        spread = (scores - mean).masked_fill(~there, 0).square().sum(1, keepdim=True) / count
        return [scores, (scores - mean) / spread.sqrt().clamp(min=1e-6), recent]


def _cosines(table: Tensor, candidates: Tensor, history: Tensor) -> list[Tensor]:
    """Compare unit vectors [N, F] of candidates [B, k] and of events, the latest first, [B, H]."""
    if table.shape[1] == 0:
        return [torch.zeros(candidates.shape, device=candidates.device)] * 4
    met = (history > 0).float()[:, None]  # [B, 1, H]
    cosines = table[candidates] @ table[history].transpose(1, 2) * met  # [B, k, H]
    means = [
        cosines[:, :, :count].sum(2) / met[:, :, :count].sum(2).clamp(min=1)
        for count in (FEW, MANY)
    ]
    return [cosines[:, :, 0], *means, cosines[:, :, :SOME].amax(2)]


def _category_table(catalogue: ItemCatalogue) -> Tensor:
    """Mark the categories of each item, [N, categories] float32."""
    categories = catalogue.categories
    width = int(categories.values.max()) + 1 if len(categories.values) else 0
    table = torch.zeros(categories.batch_size, width)
    table[categories.segments(), categories.values] = 1
    table[0] = 0
    return table


def log_events(item_counts: Tensor, size: int) -> Tensor:
    """Take log1p of counts, with 0 for items behind them, [size]."""
    counts = item_counts[:size].float().log1p()
    return functional.pad(counts, (0, size - len(counts)))
