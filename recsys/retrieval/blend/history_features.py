"""Features of a candidate against the history of its query.

The score of the whole history by linear item-to-item weights (EASE), cosine similarity to the
latest events by content, category and behaviour, and popularity relative to the history's items.

Axes: B queries, k candidates of a query, H latest events, N item rows, D width of a table, F
features of a candidate.
"""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import Jagged, latest
from recsys.models.item_tower import ItemCatalogue
from recsys.models.item_weights.model import Ease

HISTORY_FEATURES = (
    *(f"linear.{what}" for what in ("history", "z_score", "latest")),
    *(
        f"{kind}.{what}"
        for kind in ("content", "category", "behaviour")
        for what in ("last", "few", "all", "best")
    ),
    *(f"events.above_{what}" for what in ("history", "few")),
    "history.events",
)
"""Names of the F features. linear: EASE score of the history, its z-score within the list, score of
the latest 10 events. content, category, behaviour: cosine with the last event, mean over the latest
5 and 50, maximum over the latest 20; behaviour is by item vectors of a trained model, 0 without.
events: log of the item's training events minus the mean of the history's, and of the latest 5's.
history: log of its length."""
NUM_LINEAR, NUM_RECENT, NUM_EVENTS, NUM_BEST = 10, 5, 50, 20
"""Latest events of the EASE score, of short and long means, of maxima."""
VECTORS = "behaviour.safetensors"
BLOCK = 128
"""Queries at a time."""


class HistoryFeatures:
    """Computes the features, the same in training and in serving."""

    def __init__(self, catalogue: ItemCatalogue, ease: Ease, vectors: Tensor | None = None) -> None:
        """Normalise the tables that cosines are taken of.

        Args:
            vectors: Unit item vectors of a trained model, [at most N, D].
        """
        size = len(catalogue.content)
        known = torch.zeros(size, 0) if vectors is None else vectors.detach().float().cpu()[:size]
        known = functional.pad(known, (0, 0, 0, size - len(known)))
        self.ease = ease
        tables = (catalogue.content.float(), _category_table(catalogue))
        self.tables: tuple[Tensor, ...] = (
            *(functional.normalize(table, dim=1) for table in tables),
            known,
        )
        """Unit vectors by content, categories and behaviour, [N, D] each."""

    def grown(self, catalogue: ItemCatalogue) -> HistoryFeatures:
        """Append the rows of a catalogue that follow those of this one."""
        size = len(catalogue.content)
        rows = torch.cat([torch.zeros(1, dtype=torch.int64), torch.arange(self.num_items, size)])
        added = ItemCatalogue(catalogue.content[rows], catalogue.categories.take(rows))
        more = HistoryFeatures(added, self.ease, self.tables[2][:0])
        twin = copy.copy(self)
        twin.tables = tuple(
            _stacked(table, part[1:]) for table, part in zip(self.tables, more.tables, strict=True)
        )
        return twin

    def save(self, directory: Path) -> None:
        """Write the weights and the vectors, without the catalogue."""
        self.ease.save(directory)
        vectors = self.tables[2]
        if vectors.shape[1]:
            save_file({"vectors": vectors.contiguous()}, directory / VECTORS)

    @classmethod
    def load(cls, directory: Path, catalogue: ItemCatalogue) -> HistoryFeatures:
        """Read what ``save`` wrote, over a catalogue that may have grown."""
        path = directory / VECTORS
        vectors = load_file(path)["vectors"] if path.exists() else None
        return cls(catalogue, Ease.load(directory), vectors)

    @property
    def num_items(self) -> int:
        """N."""
        return len(self.tables[0])

    def features(self, history: Jagged, candidates: Tensor, item_counts: Tensor) -> Tensor:
        """Compute the features of candidates, [B, k, F] float32; 0 where a list is short.

        Args:
            candidates: Item rows, [B, k]; below 1 where a list is short.
            item_counts: Training events of each item, [N]; rows beyond it have none.
        """
        parts = [
            self._block(history.take(rows), candidates[rows], item_counts)
            for rows in torch.split(torch.arange(len(candidates), device=candidates.device), BLOCK)
        ]
        if not parts:
            return torch.zeros(*candidates.shape, len(HISTORY_FEATURES), device=candidates.device)
        return torch.cat(parts)

    def _block(self, history: Jagged, candidates: Tensor, item_counts: Tensor) -> Tensor:
        present = candidates > 0
        size = self.num_items
        known = torch.where(present & (candidates < size), candidates, 0)
        padded = history.padded(NUM_EVENTS).flip(1)  # [B, H], latest first
        padded = torch.where((padded > 0) & (padded < size), padded, 0)
        columns = [*self._linear(history, candidates, present)]
        for table in self.tables:
            columns += _cosines(table, known, padded)
        events = log_events(item_counts, size)
        own, past, observed = events[known], events[padded], (padded > 0).float()
        for count in (NUM_EVENTS, NUM_RECENT):
            mean = (past * observed)[:, :count].sum(1)
            mean = mean / observed[:, :count].sum(1).clamp(min=1)
            columns.append(own - mean[:, None])
        lengths = history.lengths().float().log1p()[:, None].expand_as(own)
        return torch.stack([*columns, lengths], dim=2).masked_fill(~present[:, :, None], 0)

    def _linear(self, history: Jagged, candidates: Tensor, present: Tensor) -> list[Tensor]:
        scores = self.ease.score(history, candidates)
        recent = self.ease.score(latest(history, NUM_LINEAR), candidates)
        count = present.sum(1, keepdim=True).clamp(min=1)
        mean = scores.masked_fill(~present, 0).sum(1, keepdim=True) / count
        spread = (scores - mean).masked_fill(~present, 0).square().sum(1, keepdim=True) / count
        return [scores, (scores - mean) / spread.sqrt().clamp(min=1e-6), recent]


def _cosines(table: Tensor, candidates: Tensor, history: Tensor) -> list[Tensor]:
    """Compare unit vectors [N, D] of candidates [B, k] and of events, the latest first, [B, H]."""
    if table.shape[1] == 0:
        return [torch.zeros(candidates.shape, device=candidates.device)] * 4
    observed = (history > 0).float()[:, None]  # [B, 1, H]
    cosines = table[candidates] @ table[history].transpose(1, 2) * observed  # [B, k, H]
    means = [
        cosines[:, :, :count].sum(2) / observed[:, :, :count].sum(2).clamp(min=1)
        for count in (NUM_RECENT, NUM_EVENTS)
    ]
    return [cosines[:, :, 0], *means, cosines[:, :, :NUM_BEST].amax(2)]


def _category_table(catalogue: ItemCatalogue) -> Tensor:
    """Mark the categories of each item, [N, categories] float32."""
    categories = catalogue.categories
    width = int(categories.values.max()) + 1 if len(categories.values) else 0
    table = torch.zeros(categories.batch_size, width)
    table[categories.segments(), categories.values] = 1
    table[0] = 0
    return table


def _stacked(table: Tensor, more: Tensor) -> Tensor:
    """Put rows below others, the narrower ones filled up with zeros."""
    width = max(table.shape[1], more.shape[1])
    return torch.cat([functional.pad(part, (0, width - part.shape[1])) for part in (table, more)])


def log_events(item_counts: Tensor, size: int) -> Tensor:
    """Take log1p of counts, 0 for items appended after them, [size]."""
    counts = item_counts[:size].float().log1p()
    return functional.pad(counts, (0, size - len(counts)))
