"""Multi-task ranker: predicts several kinds of feedback of a user on a candidate.

Candidates and events go through the item tower (id, content, categories); a candidate attends to
the user's history; fields cross (DCN-v2); a trunk follows, dense or a sparse mixture of experts;
then a small head for each task. With a ``base_feature`` the model learns a correction of that
score, and equals it at first.

Training: cross entropy of each task, with learned task weights. Serving: calibrated probabilities
and one score of them, computed for one query's candidates in tiles of one size, so that bits do not
depend on the batch.

Axes: B queries, C candidates of a query, M candidates of a batch, D width of a field, W width of
all fields, T tasks, E experts, K experts of each candidate, N item rows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from itertools import pairwise, starmap
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch, latest
from recsys.kernels.one_query.op import functions
from recsys.kernels.one_query.ranker_op import NetworkOfOne, TasksOfOne
from recsys.layers.attention.target import TargetAttention
from recsys.layers.calibrator import FURTHEST, Calibrator
from recsys.layers.dropout import Dropout
from recsys.layers.embedding.tables import Backend
from recsys.layers.moe.router import Routing
from recsys.models.item_tower import CatalogueModel, ItemCatalogue, ItemTower, read_settings
from recsys.models.ranker.config import RankerConfig, RankerInputs, num_fields, read_inputs
from recsys.models.ranker.folded import Floats, FoldedRanker, Layers, folded
from recsys.models.ranker.network import (
    Candidates,
    Correction,
    CrossNetwork,
    Heads,
    QueryFields,
    QueryReader,
    Ranked,
    RankingBatch,
    Trunk,
    check_finite,
)

Finish = Callable[[Tensor], Tensor]
MOST_QUERY_FIELDS = 10_000
"""Encoded combinations of a query's features that are kept."""


def _per_query(batch: RankingBatch) -> list[tuple[int, Tensor, Tensor | None]]:
    dense = batch.candidate_dense
    return [
        (query, batch.candidates.values[own], None if dense is None else dense[own])
        for query, own in enumerate(starmap(slice, pairwise(batch.candidates.offsets.tolist())))
        if own.stop > own.start
    ]


class Ranker(CatalogueModel):
    """Ranks candidates by expected feedback."""

    FILE = "ranker.safetensors"
    config: RankerConfig
    inputs: RankerInputs

    _task_values: Tensor

    def __init__(
        self,
        config: RankerConfig,
        inputs: RankerInputs,
        catalogue: ItemCatalogue,
        item_counts: Tensor | None = None,
    ) -> None:
        """Build the model.

        Args:
            item_counts: Training events of each item, [num_item_rows]; items with 0 are unseen.
                A loaded model has its own; None counts every item as seen.
        """
        super().__init__(catalogue)
        if unknown := set(config.task_values) - set(inputs.tasks):
            raise ValueError(f"task_values names {sorted(unknown)}; tasks are {inputs.tasks}")
        self.config, self.inputs = config, inputs
        dim, num_tasks = config.embedding_dim, len(inputs.tasks)
        width = num_fields(inputs) * dim
        self.item_tower = ItemTower(config, inputs)
        counts = torch.ones(inputs.num_item_rows) if item_counts is None else item_counts
        # At id_dropout 1 every id is unknown.
        self.item_tower.item_counts.copy_(counts * (config.id_dropout < 1))
        self.item_norm = nn.LayerNorm(dim)
        self.query_fields = QueryFields(config, inputs)
        self.attention = TargetAttention(dim, config.key_dim, config.max_history)
        num_dense = len(inputs.candidate_dense)
        self.candidate_dense = nn.Linear(num_dense, dim) if num_dense else None
        self.dropout = Dropout(config.dropout)
        self.cross = CrossNetwork(width, config.num_cross_layers)
        self.trunk = Trunk(config, width)
        self._routed: tuple[Tensor, Routing | None] | None = None
        self._folded: tuple[Tensor, FoldedRanker | None] | None = None
        self._tasks: tuple[object, TasksOfOne] | None = None
        self.heads = Heads(width, config.head_dim, num_tasks)
        self.correction = Correction(inputs, num_tasks) if inputs.base_feature else None
        if self.correction is not None:
            # Untrained, the model equals its base score.
            self.heads.start_from_zero()
        self.log_variances = nn.Parameter(torch.zeros(num_tasks))
        values = [float(config.task_values.get(task, 1.0)) for task in inputs.tasks]
        self.register_buffer("_task_values", torch.tensor(values), persistent=False)
        self.calibrator = Calibrator(num_tasks)

    def tower_output(self, items: JaggedBatch, content: Tensor) -> Tensor:
        """Encode items as one field, [R, D]."""
        normed: Tensor = self.item_norm(super().tower_output(items, content))
        return normed

    def read(self, batch: RankingBatch, history: Jagged, vectors: Tensor) -> QueryReader:
        """Encode queries for their candidates.

        Args:
            history: At most ``max_history`` events of each query, oldest first.
            vectors: Field of each event, [M, D].
        """
        ready = self.attention.prepare(history, vectors)
        return QueryReader(ready, self.query_fields(batch.queries))

    def rank(
        self,
        reader: QueryReader,
        items: Tensor,
        dense: Tensor | None,
        kept: Tensor | None,
        routing: Routing | None = None,
    ) -> Ranked:
        """Run the network on candidates.

        Args:
            items: Fields of the candidates of each query, [B, C, D].
            dense: Their features, [B, C, F].
            kept: Which of the B * C are candidates, [M]; all by default.
            routing: Of the candidates; None lets the router decide.
        """
        fields = [items, self.attention(items, reader.history)]
        fields.append(reader.fields[:, None].expand(-1, items.shape[1], -1))
        corrected = None
        if self.correction is not None and dense is not None:
            base, dense = self.correction.base(dense), self.correction.standardised(dense)
            corrected = (base + self.correction(dense)).flatten(0, 1)  # [B * C, T]
        if self.candidate_dense is not None and dense is not None:
            fields.append(self.candidate_dense(dense))
        together = torch.cat(fields, dim=2).flatten(0, 1)  # [B * C, W]
        if kept is not None:
            together = together.index_select(0, kept)
        together = self.dropout(together)
        rows, routing = self.trunk(self.cross(together), together, routing)
        logits: Tensor = self.heads(rows)
        if corrected is not None:
            logits = logits + (corrected if kept is None else corrected.index_select(0, kept))
        return Ranked(logits.float(), routing)

    def forward(self, batch: RankingBatch) -> Ranked:
        """Predict every candidate of a batch at once, as in training."""
        check_finite(batch, self.inputs.candidate_dense)
        history = latest(batch.queries["history"], self.config.max_history)
        candidates = batch.candidates
        rows = self._known(torch.cat([candidates.values, history.values]))
        distinct, place = torch.unique(rows, return_inverse=True)
        vectors = self.item_inputs(distinct)  # [R, D]
        events = functional.embedding(place[len(candidates.values) :], vectors)
        reader = self.read(batch, history, events)
        segments, lengths = candidates.segments(), candidates.lengths()
        most = int(lengths.max()) if len(lengths) else 0
        column = torch.arange(len(segments), device=segments.device) - candidates.offsets[segments]
        kept = segments * most + column  # [M]
        padded = place.new_zeros(len(lengths) * most)
        padded[kept] = place[: len(segments)]
        items = functional.embedding(padded.view(-1, most), vectors)  # [B, C, D]
        dense = None
        if batch.candidate_dense is not None:
            dense = batch.candidate_dense.new_zeros(len(padded), batch.candidate_dense.shape[1])
            dense = dense.index_copy(0, kept, batch.candidate_dense).view(*items.shape[:2], -1)
        return self.rank(reader, items, dense, None if len(kept) == len(padded) else kept)

    def of_full_lists(self, batch: RankingBatch) -> Ranked:
        """Predict as ``forward`` does, without a look at the data that a GPU would be waited for.

        Args:
            batch: As many candidates of each query, at most ``max_history`` events of it; values of
                the history after the last event are never read.
        """
        _, vectors = self.item_inputs_of_all()  # [N, D]
        # Not by [] or embedding, whose gradients add up an item's places one after the other.
        history, rows = batch.queries["history"], self._known(batch.candidates.values)
        events = vectors.index_select(0, self._known(history.values))
        shape = (history.batch_size, len(rows) // history.batch_size, -1)
        dense = batch.candidate_dense
        return self.rank(
            self.read(batch, history, events),
            vectors.index_select(0, rows).view(shape),
            None if dense is None else dense.view(shape),
            None,
        )

    def loss_of(self, ranked: Ranked, labels: Tensor) -> Tensor:
        """Compute the weighted loss of all tasks.

        Args:
            labels: 0 or 1, NaN where not observed, [M, T].
        """
        observed = ~labels.isnan()
        truth = torch.where(observed, labels, 0.0).to(ranked.logits.dtype)
        losses = functional.binary_cross_entropy_with_logits(ranked.logits, truth, reduction="none")
        per_task = (losses * observed).sum(0) / observed.sum(0).clamp(min=1)  # [T]
        # A weight for each task is learned (Kendall et al., arXiv:1705.07115).
        weighted = torch.exp(-self.log_variances) * per_task
        total: Tensor = (weighted + self.log_variances / 2).sum()
        return total

    def logits(self, batch: RankingBatch) -> Tensor:
        """Predict by tiles, [M, T]; a row's bits depend on its query and itself only."""
        return self._of_batch(batch, lambda logits: logits, (len(self.inputs.tasks),))

    def score(self, batch: RankingBatch) -> Tensor:
        """Compute one score of each candidate, [M]; higher is better."""
        return self._of_batch(batch, self._score_of_logits, ())

    def score_lists(self, candidates: Candidates, queries: JaggedBatch) -> Tensor:
        """Score whole lists as ``score`` does, [B, k] on the host; -inf where a list is short."""
        scores = torch.full(candidates.item_rows.shape, -torch.inf)
        batch = candidates.batch(queries).to(self._content.device)
        scores[candidates.present] = self.score(batch).cpu()
        return scores

    @torch.no_grad()
    def encode_reader(self, batch: RankingBatch, query: int) -> QueryReader:
        """Encode one query of a batch; a server does it once for a request."""
        features = dict(batch.queries.features)
        if batch.queries.batch_size > 1:
            number = torch.tensor([query], device=self._content.device)
            features = {name: value.take(number) for name, value in features.items()}
        kinds = [name for _, names in self.query_fields.kinds for name in names]
        if all(len(features[name].values) == 1 for name in kinds):
            rows = {name: int(features[name].values) for name in kinds}
            return self.reader_of_one(features["history"].values, rows)
        one = RankingBatch(JaggedBatch(features), batch.candidates)
        history = latest(features["history"], self.config.max_history)
        events = functional.embedding(self._known(history.values), self.all_item_inputs())
        return self.read(one, history, events)

    def reader_of_one(self, history: Tensor, features: Mapping[str, int]) -> QueryReader:
        """Encode one query, the same bits as ``encode_reader``; call it without gradients.

        Args:
            history: Item rows, oldest first.
        """
        latest_rows = self._known(history[-self.config.max_history :])
        inputs = self.all_item_inputs().index_select(0, latest_rows)
        return QueryReader(self.attention.prepare_one(inputs), self.query_fields.of_one(features))

    def compiled_of_one(
        self, features: Mapping[str, int]
    ) -> tuple[NetworkOfOne, TasksOfOne, Floats] | None:
        """Return what scores candidates by compiled functions, and a query's encoded features."""
        if (laid_out := self._laid_out()) is None:
            return None
        return laid_out.network, self._tasks_of_one(), self._fields_of_one(laid_out, features)

    def _fields_of_one(self, laid_out: FoldedRanker, features: Mapping[str, int]) -> Floats:
        """Encode a query's features once for all queries that have the same."""
        kept = laid_out.query_fields
        rows = tuple([features[name] for name in laid_out.query_features])
        if (fields := kept.get(rows)) is None:
            if len(kept) >= MOST_QUERY_FIELDS:
                kept.clear()
            with torch.no_grad():
                fields = kept[rows] = self.query_fields.of_one(features).numpy()[0]
        return fields

    def score_candidates(self, reader: QueryReader, rows: Tensor, dense: Tensor | None) -> Tensor:
        """Score candidates of one query by tiles, the same bits as ``score``, [C] -> [C].

        Args:
            dense: Features of the candidates, [C, F], finite.
        """
        with torch.no_grad():
            return self._of_tiles(reader, rows, dense, self._score_of_logits)

    def _of_batch(self, batch: RankingBatch, finish: Finish, shape: tuple[int, ...]) -> Tensor:
        check_finite(batch, self.inputs.candidate_dense)
        with torch.no_grad():
            parts = [
                self._of_tiles(self.encode_reader(batch, query), rows, dense, finish)
                for query, rows, dense in _per_query(batch)
            ]
        return torch.cat([torch.empty(0, *shape, device=self._content.device), *parts])

    def _of_tiles(
        self, reader: QueryReader, rows: Tensor, dense: Tensor | None, finish: Finish
    ) -> Tensor:
        """Run whole tiles, because even a sigmoid rounds differently in a shorter tensor."""
        size, count = self.config.tile_rows, len(rows)
        predict_logits = self._tile_logits(reader)
        if count <= size:
            return finish(predict_logits(rows, dense))[:count]
        tiles = [
            finish(
                predict_logits(
                    rows[begin : begin + size],
                    None if dense is None else dense[begin : begin + size],
                )
            )
            for begin in range(0, count, size)
        ]
        return torch.cat(tiles)[:count]

    def _laid_out(self) -> FoldedRanker | None:
        """Return the folded weights; None in training and where they cannot be folded."""
        inputs = self.all_item_inputs()
        if self.training or functions() is None:
            return None
        if self._folded is None or self._folded[0] is not inputs:
            laid_out = folded(self.layers(), inputs, self.all_item_routing())
            if laid_out is not None:
                kinds = self.query_fields.kinds
                laid_out.query_features = tuple(name for _, names in kinds for name in names)
            self._folded = (inputs, laid_out)
        return self._folded[1]

    def _tile_logits(self, reader: QueryReader) -> Callable[[Tensor, Tensor | None], Tensor]:
        """Return what predicts a query's tiles, [size, T], folded where possible.

        It takes at most ``tile_rows`` rows [C] with their features, and fills the tile up.
        """
        size = self.config.tile_rows
        laid_out = self._laid_out()
        if laid_out is not None:
            predict, own = laid_out.network.logits, laid_out.read(reader)
            return lambda rows, dense: torch.from_numpy(predict(own, rows, dense, size))
        inputs, routing = self.all_item_inputs(), self.all_item_routing()

        def logits(rows: Tensor, dense: Tensor | None) -> Tensor:
            missing = size - len(rows)
            rows = functional.pad(self._known(rows), (0, missing))
            routed = None if routing is None else routing.of_rows(rows)
            items = inputs.index_select(0, rows)[None]
            features = None if dense is None else functional.pad(dense, (0, 0, 0, missing))[None]
            return self.rank(reader, items, features, None, routed).logits

        return logits

    def layers(self) -> Layers:
        """Return the layers that candidates go through."""
        return Layers(
            self.attention,
            self.correction,
            self.candidate_dense,
            self.cross,
            self.trunk,
            self.heads,
        )

    def all_item_routing(self) -> Routing | None:
        """Route the whole catalogue, cached as all_item_inputs is.

        None without a router, or in training.
        """
        if self.training:
            return None
        inputs = self.all_item_inputs()
        if self._routed is None or self._routed[0] is not inputs:
            with torch.no_grad():
                self._routed = (inputs, self.trunk.routing_of_items(inputs))
        return self._routed[1]

    def _score_of_logits(self, logits: Tensor) -> Tensor:
        if self._laid_out() is None:
            return self.combined(self.calibrated(logits))
        return torch.from_numpy(self._tasks_of_one().scores(logits.numpy()))

    def _tasks_of_one(self) -> TasksOfOne:
        """Arrange what `calibrated` and `combined` read for the compiled form."""
        line = self.calibrator.line()
        if self._tasks is None or self._tasks[0] is not line:
            (_, slopes, shifts), fitted = line, bool(self.calibrator.fitted)
            compiled = TasksOfOne(
                num_tasks=len(slopes),
                slopes=slopes if fitted else torch.ones_like(slopes),
                shifts=shifts if fitted else torch.zeros_like(shifts),
                weights=self._task_values,
                furthest=FURTHEST if fitted else math.inf,
            )
            self._tasks = (line, compiled)
        return self._tasks[1]

    def calibrated(self, logits: Tensor) -> Tensor:
        """Turn logits into probabilities, [M, T] -> [M, T]."""
        if not self.calibrator.fitted:
            return torch.sigmoid(logits)
        chances: Tensor = self.calibrator(logits)
        return chances

    def combined(self, probabilities: Tensor) -> Tensor:
        """Combine the tasks into one score, [M, T] -> [M]."""
        # No matrix product, whose bits may depend on the number of rows.
        return (probabilities * self._task_values).sum(1)

    def with_share(self, share: float) -> Self:
        """Add a share of what the model adds to its base score; calibrate it again."""
        own = {name: self._modules[name] for name in ("correction", "heads", "calibrator")}
        twin = copy.copy(self)
        twin._modules = {**self._modules, **copy.deepcopy(own)}
        twin._folded = twin._tasks = None
        assert isinstance(twin.correction, Correction)
        with torch.no_grad():
            for part in (twin.correction, *twin.heads.linear(2)):
                for weights in part.parameters():
                    weights.mul_(share)
        return twin

    def fit_calibration(self, logits: Tensor, labels: Tensor) -> None:
        """Fit probabilities to feedback that the model did not train on.

        Serving has no position, so give feedback on examined items, or on first slots.

        Args:
            logits: Of ``logits``, [P, T].
            labels: [P, T], NaN where not observed.
        """
        for task, name in enumerate(self.inputs.tasks):
            own = labels[:, task]
            own = own[~own.isnan()]
            if not 0 < int(own.sum()) < len(own):
                raise ValueError(
                    f"task {name!r} has {int(own.sum())} positive of {len(own)} labels; "
                    "calibration needs both classes: give more validation data or drop the task"
                )
        self.calibrator.fit(logits, labels)

    def _known(self, rows: Tensor) -> Tensor:
        return torch.where((rows >= 0) & (rows < self.num_item_rows), rows, 0)

    @classmethod
    def load(
        cls, directory: Path, catalogue: ItemCatalogue, *, backend: Backend | None = None
    ) -> Ranker:
        """Read a saved model, in evaluation mode, over a catalogue that may have grown.

        Args:
            backend: Of the embedding tables; None is the one it was trained with.
        """
        config, inputs = read_settings(directory, RankerConfig, read_inputs, backend)
        return cls(config, inputs, catalogue).with_weights(directory)
