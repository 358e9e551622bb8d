"""Two-tower retrieval: a query vector and an item vector, relevance is their cosine.

The item tower is shared with other models (``models/item_tower.py``).

Query tower: the latest event attends to the whole history (one block of SASRec,
arXiv:1808.09781, of which only the last position is needed), then user and context features are
added. The history's items go through the item tower, so they need no table of their own.

Training: softmax over in-batch and uniform negatives with logQ correction (Yi et al., RecSys
2019; Yang et al., WWW 2020) on cosine / temperature.

Axes: B queries, M history values of a batch, R distinct items, N item rows, C candidates, D width,
H = 1 head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.data.batch import WHOLE, Jagged, JaggedBatch, StepShare, latest
from recsys.data.windows import SampledItems, every_item, mixed_candidates
from recsys.kernels.one_query.op import Step
from recsys.layers.attention.latest import LatestEvent, unit_vector
from recsys.layers.attention.softmax import feed_forward
from recsys.layers.chunked_softmax import sampled_softmax_loss
from recsys.layers.dropout import Dropout
from recsys.layers.embedding.collection import EmbeddingBags
from recsys.layers.embedding.tables import Backend, looked_up
from recsys.models.configs import TwoTowerConfig
from recsys.models.item_tower import (
    NORM_FLOOR,
    FeatureSizes,
    ItemCatalogue,
    ItemTower,
    RetrievalModel,
    read_settings,
    types_table,
)


class HistoryAttention(nn.Module):
    """The latest event of each history attends to all of it; empty histories give zeros.

    Keys and values are folded into the query's side (q W_k^T x = (W_k q)^T x), so the work per
    history value is H dot products of width D, not a D x D product.
    """

    def __init__(self, config: TwoTowerConfig) -> None:
        super().__init__()
        dim = config.embedding_dim
        self.query = nn.Linear(dim, dim)
        self.key = nn.Parameter(torch.empty(1, dim, dim))
        self.value = nn.Parameter(torch.empty(1, dim, dim))
        self.output = nn.Linear(dim, dim)
        for weight in (self.key, self.value):
            nn.init.normal_(weight, std=1 / math.sqrt(dim))

    def forward(self, values: Tensor, last: Tensor, segments: Tensor) -> Tensor:
        """Attend from ``last`` [B, D] to ``values`` [M, D] owned by ``segments`` [M] -> [B, D]."""
        num_queries, dim = last.shape
        query = self.query(last)[:, None]  # [B, H, D]
        folded = torch.einsum("bhe,hed->bhd", query, self.key)  # [B, H, D]
        # Multiply and sum: as an einsum it would be M tiny matrix products.
        own = folded.index_select(0, segments)  # not by [], for which a GPU sorts
        logits = (values[:, None, :] * own).sum(2)  # [M, H]
        attention = segment_softmax(logits / math.sqrt(dim), segments, num_queries)
        weighted = (attention[:, :, None] * values[:, None, :]).flatten(1)  # [M, H D]
        pooled = torch.zeros_like(last)
        pooled = pooled.index_add(0, segments, weighted)[:, None]
        heads = torch.einsum("bhd,hde->bhe", pooled, self.value)  # [B, H, D]
        out: Tensor = self.output(heads.flatten(1))
        return out


def segment_softmax(logits: Tensor, segments: Tensor, num_segments: int) -> Tensor:
    """Softmax over the values of each segment, [M, H] -> [M, H]."""
    index = segments[:, None].expand_as(logits)
    highest = logits.new_full((num_segments, logits.shape[1]), -torch.inf)
    highest = highest.scatter_reduce(0, index, logits.detach(), "amax")
    exponents = torch.exp(logits - highest[segments])
    totals = logits.new_zeros(num_segments, logits.shape[1]).index_add(0, segments, exponents)
    return exponents / totals.index_select(0, segments)


class QueryTower(nn.Module):
    """Turns a history of item inputs, user features and context into one vector."""

    def __init__(self, config: TwoTowerConfig, inputs: FeatureSizes) -> None:
        super().__init__()
        self.max_history = config.max_history
        dim = config.embedding_dim
        self.recency = nn.Embedding(config.max_history, dim)
        self.no_history = nn.Parameter(torch.zeros(dim))
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = HistoryAttention(config)
        self.hidden = feed_forward(dim, config.hidden_dim, config.dropout)
        self.output_norm = nn.LayerNorm(dim)
        self.dropout = Dropout(config.dropout)
        nn.init.normal_(self.recency.weight, std=1 / math.sqrt(dim))
        tables = inputs.query_tables(dim)
        self.features = EmbeddingBags(tables, config.backend) if tables else None

    def forward(self, queries: JaggedBatch, history: Jagged, inputs: Tensor) -> Tensor:
        """Encode queries as unit vectors, [B, D].

        Args:
            history: At most max_history item rows of each query, oldest first.
            inputs: The item tower's input of each history value, [M, D].
        """
        segments, ends = history.segments(), history.offsets[1:]
        recency = ends[segments] - 1 - torch.arange(len(segments), device=segments.device)
        values = self.dropout(inputs + looked_up(self.recency.weight, recency))  # [M, D]
        has_history = history.lengths() > 0  # [B]
        if values.is_cuda:
            # To pick the queries with a history a GPU would have to be waited for.
            from_zero = torch.cat([self.no_history[None].to(values.dtype), values])
            last = from_zero.index_select(0, torch.where(has_history, ends, 0))
        else:
            last = self.no_history.expand(len(ends), -1).clone()
            last[has_history] = values[ends[has_history] - 1].to(last.dtype)
        normed = self.attention_norm(values)
        state = last + self.dropout(self.attention(normed, self.attention_norm(last), segments))
        state = state + self.dropout(self.hidden(state))
        state = self.output_norm(state)
        if self.features is not None:
            state = state + self.dropout(sum(self.features(queries).values()))
        return functional.normalize(state.float(), dim=1, eps=NORM_FLOOR)


class PreparedBatch(NamedTuple):
    """Inputs of a batch's loss, without the weights."""

    queries: JaggedBatch
    labels: Tensor
    """[B]"""
    history: Jagged
    types: Tensor | None
    """[M] types of the history's events."""
    candidates: SampledItems
    place: Tensor
    """[B + C + M] where labels, candidates and history are among the items."""
    items: JaggedBatch | None
    """R distinct items; None for all of the catalogue."""
    lookups: JaggedBatch | None
    """Rows that the item tower looks up for them, if they are on several ranks."""
    weight: Tensor | float
    routes: list[object]
    """Replies of other ranks, which live as long as the batch."""


class TwoTower(RetrievalModel):
    """Query and item tower with their catalogue."""

    FILE = "two_tower.safetensors"
    config: TwoTowerConfig
    inputs: FeatureSizes

    def __init__(
        self,
        config: TwoTowerConfig,
        inputs: FeatureSizes,
        catalogue: ItemCatalogue,
        item_counts: Tensor | None = None,
    ) -> None:
        """Build the towers.

        Args:
            item_counts: Training events of each item, [num_item_rows]: the logQ correction needs
                them, and items without events count as never met. A loaded model has its own.
        """
        super().__init__(catalogue)
        self.config, self.inputs = config, inputs
        self.query_tower = QueryTower(config, inputs)
        self.item_tower = ItemTower(config, inputs)
        self.event_types = types_table(inputs.num_event_types, config.embedding_dim)
        if item_counts is not None:
            self.item_tower.item_counts.copy_(item_counts)

    @torch.no_grad()
    def query_vectors(
        self, queries: JaggedBatch, inputs_of: Callable[[Jagged], Tensor] | None = None
    ) -> Tensor:
        """Encode queries as unit vectors, [B, D].

        Args:
            inputs_of: Inputs of a history's values, [M, D]; by default the catalogue's.
        """
        history = latest(queries["history"], self.config.max_history)
        known = history._replace(
            values=torch.where(history.values < self.num_item_rows, history.values, 0)
        )
        inputs = inputs_of(known) if inputs_of else self.all_item_inputs()[known.values]
        inputs = self.with_types(inputs, self._types(queries))
        vectors: Tensor = self.query_tower(queries, known, inputs)
        return vectors

    def _types(self, queries: JaggedBatch, *, is_cut: bool = False) -> Tensor | None:
        """Take the types of the events that are read, [M]; None without."""
        if self.event_types is None or "history.types" not in queries:
            return None
        types = queries["history.types"]
        return types.values if is_cut else latest(types, self.config.max_history).values

    def loss(
        self,
        queries: JaggedBatch,
        item_rows: Tensor,
        share: StepShare = WHOLE,
        *,
        is_cut: bool = False,
    ) -> Tensor:
        """Softmax loss of the labels against in-batch and uniform negatives.

        Args:
            queries: What was known before each label; further ones only fill a batch up.
            item_rows: The labels, [B], each >= 1.
            is_cut: Whether no history has more than max_history events; to look a GPU would have
                to be waited for.
        """
        return self.loss_of(self.prepared(queries, item_rows, share, is_cut=is_cut))

    def prepared(
        self, queries: JaggedBatch, item_rows: Tensor, share: StepShare, *, is_cut: bool
    ) -> PreparedBatch:
        """Draw the negatives and find the items of a batch, without any weight."""
        config, history = self.config, queries["history"]
        if not is_cut:
            history = latest(history, config.max_history)
        if config.num_uniform_negatives >= self.inputs.num_item_rows - 1:
            candidates = every_item(self.inputs.num_item_rows, item_rows.device)
        else:
            candidates = mixed_candidates(
                share.all_labels(item_rows),
                config.num_uniform_negatives,
                self.item_tower.item_counts,
                share.draws(item_rows.device),
            )
        rows = torch.cat([item_rows, candidates.rows, history.values])
        items = lookups = None
        routes: list[object] = []
        if self.encodes_all(len(rows)) and rows.is_cuda:
            place = rows
        else:
            distinct, place = torch.unique(rows, return_inverse=True)
            items = self.items_of_rows(distinct)
            if self.item_tower.tables.is_sharded:
                lookups = self.item_tower.lookups(items)
                routes.append(self.item_tower.tables.ask(lookups))
        features = self.query_tower.features
        if features is not None and features.is_sharded:
            routes.append(features.ask(queries))
        types, weight = self._types(queries, is_cut=is_cut), share.weight(item_rows)
        return PreparedBatch(
            queries, item_rows, history, types, candidates, place, items, lookups, weight, routes
        )

    def loss_of(self, batch: PreparedBatch) -> Tensor:
        """Compute the loss of a prepared batch."""
        config, item_rows, candidates = self.config, batch.labels, batch.candidates
        if batch.items is None:
            _, inputs = self.item_inputs_of_all()  # [R, D]
        else:
            content = self._content[batch.items["item"].values]
            inputs = self.item_tower(batch.items, content, batch.lookups)  # [R, D]
        label_place, others = batch.place[: len(item_rows)], batch.place[len(item_rows) :]
        candidate_place = others[: len(candidates.rows)]
        history_place = others[len(candidates.rows) :]

        # Not by [], whose gradient adds up an item's occurrences one after the other.
        read = inputs.index_select(0, history_place)  # [M, D]
        query = self.query_tower(batch.queries, batch.history, self.with_types(read, batch.types))
        query = query[: len(item_rows)]  # [B, D]
        items = functional.normalize(inputs, dim=1, eps=NORM_FLOOR)  # [R, D]
        label_scores = (query * items.index_select(0, label_place)).sum(1)  # [B]
        label_scores = label_scores / config.temperature
        others = items.index_select(0, candidate_place)  # [C, D]
        loss = sampled_softmax_loss(
            query,
            others,
            candidates,
            item_rows,
            label_scores,
            config.label_smoothing,
            config.temperature,
        )
        return loss * batch.weight

    @classmethod
    def load(
        cls, directory: Path, catalogue: ItemCatalogue, *, backend: Backend | None = None
    ) -> TwoTower:
        """Read a saved model, in evaluation mode, over a catalogue that may have grown.

        Args:
            backend: Of the embedding tables; None is the one it was trained with. Serving takes
                ``torch``, since importing TorchRec takes longer than all else of a start.
        """
        config, inputs = read_settings(directory, TwoTowerConfig, FeatureSizes, backend)
        return cls(config, inputs, catalogue).with_weights(directory)


class OneQuery:
    """Encodes single queries with a history; the model must not change afterwards."""

    def __init__(self, model: TwoTower) -> None:
        tower = model.query_tower
        attention = tower.attention
        self._inputs = model.all_item_inputs()
        # The latest event last.
        self._recency = tower.recency.weight.detach().flip(0)
        self._num_events = len(self._recency)
        self._with_types, self._reads_types = model.with_types, model.event_types is not None
        self._latest = LatestEvent(
            tower.attention_norm,
            (attention.query.weight, attention.query.bias),
            (attention.key, attention.value.transpose(1, 2)),
            (attention.output.weight, attention.output.bias),
            tower.hidden,
        )
        norm = tower.output_norm
        self._norm = (norm.weight.detach(), norm.bias.detach(), norm.eps)
        kinds = [] if tower.features is None else tower.features.tables.values()
        self._tables = [
            (feature, tower.features.weight(table.name).detach())
            for table in kinds
            for feature in table.features
            if tower.features is not None
        ]
        self._features = [feature for feature, _ in self._tables]
        tables = [weight for _, weight in self._tables]
        self._encoder = self._latest.encoder(
            self._inputs, self._recency, self._norm, NORM_FLOOR, tables, from_end=True
        )

    def query_vector(
        self, item_rows: Tensor, features: Mapping[str, int], types: Tensor | None = None
    ) -> Tensor:
        """Encode a query as a unit vector, [D].

        Args:
            item_rows: History, rows of the catalogue, oldest first, at least one.
            types: Rows of the types of these events, where there are types.
        """
        latest = item_rows[-self._num_events :]
        rows = [features[feature] for feature in self._features]
        plain = types is None or not self._reads_types
        if plain and (vector := self._encoder.encode(latest, None, rows)) is not None:
            return vector
        values = self._inputs.index_select(0, latest)
        values += self._recency[-values.shape[0] :]
        if types is not None:
            with torch.no_grad():
                values = self._with_types(values, types[-self._num_events :])
        state = self._latest(values, None)
        state = torch.layer_norm(state, state.shape, *self._norm)
        for feature, weight in self._tables:
            state += weight[features[feature]]
        return unit_vector(state, NORM_FLOOR)

    def step(
        self, item_rows: Tensor, features: Mapping[str, int], types: Tensor | None, vectors: Tensor
    ) -> Step | None:
        """Compare a query with item vectors [N, D] in a compiled call; None if it cannot.

        Args:
            item_rows: As the others of `query_vector`.
        """
        if types is not None and self._reads_types:
            return None
        rows = [features[feature] for feature in self._features]
        latest = item_rows[-self._num_events :]
        return self._encoder.step(latest, None, rows, vectors, all_have_vectors=False)
