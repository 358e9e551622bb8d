"""Embedding tables and their pooled lookups: TorchRec and FBGEMM, our Triton kernels, plain torch.

The one place that knows TorchRec. All backends keep their weights in modules of the
same shape and name, so a state dict has exactly one ``[num_rows, embedding_dim]`` tensor per table,
under ``collection.embedding_bags.<table>.weight``, and loads into any of them.

Tables train in one of two ways. *Dense*: autograd makes a gradient as large as the table, for an
optimizer that moves every row. *By rows* (``update_rows``): the backward itself moves the rows that
occurred, which is what large tables need.

Row 0 of every table means "unknown". It starts at zero, so a value never met in training
adds nothing, and it learns like any other row where training data holds unknown values. Ragged
batches have no padding.

Axes: B examples, M values of one feature in the whole batch, D width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import cast, get_args

import torch
from torch import Tensor, nn

from recsys.data.batch import Jagged, JaggedBatch
from recsys.kernels.choice import has_triton, is_on
from recsys.layers.embedding.tables import (
    FILLED_LATER,
    Backend,
    PlainCollection,
    RowUpdates,
    TableConfig,
    check_on_cpu,
    check_rows,
    check_tables,
    load_named_state,
    named_state,
    pooling_weights,
    summed_rows,
    torchrec_collection,
)

__all__ = ["EmbeddingBags", "TableConfig", "check_rows"]


class EmbeddingBags(nn.Module):
    """Several embedding tables, looked up and pooled for all their features at once.

    Backends agree to 1e-6 in float32, forward, gradients and row updates. Weighted and mean pooling
    are both a weighted sum (on CPU it costs no more than a plain one), so one collection serves a
    batch whether or not its features carry weights.
    """

    def __init__(self, tables: Sequence[TableConfig], backend: Backend = "auto") -> None:
        super().__init__()
        check_tables(tables)
        if backend not in get_args(Backend):
            raise ValueError(f"backend is one of {get_args(Backend)}, got {backend!r}")
        if backend == "torchrec" and not (find_spec("torchrec") or find_spec("fbgemm_gpu")):
            raise ValueError(
                "backend 'torchrec' needs TorchRec, which is not installed; install the extra "
                "torchrec-cpu or torchrec-gpu, or take backend 'torch'"
            )
        self.tables = {table.name: table for table in tables}
        self._features = [(feature, table) for table in tables for feature in table.features]
        self.wanted: Backend = backend
        """The backend that was requested."""
        self.updates: RowUpdates | None = None
        self._looked_up = False
        self.is_sharded = False
        """True if rows are on several ranks (``training/distributed/sharded.py``)."""
        self.lies_on_every_rank = False
        """True if several ranks train whole copies of the tables, which then move dense."""
        self._by_torchrec = backend == "torchrec" and find_spec("torchrec") is not None
        self.collection: nn.Module = (
            torchrec_collection(tables) if self._by_torchrec else PlainCollection(tables)
        )
        # Made on the meta device and filled here: equal seeds then give equal weights, and leave
        # the generator in the same state, whatever the backend.
        # Not by ``to_empty``, which imports sympy for half a second.
        self.collection._apply(lambda made: torch.empty(made.shape, dtype=made.dtype))
        if not FILLED_LATER.get():
            self.reset_parameters()

    @property
    def backend(self) -> str:
        """The backend in use where the tables are; ``auto`` depends on their device."""
        if self.wanted != "auto":
            return self.wanted
        on_kernels = next(self.parameters()).is_cuda and has_triton() and is_on("embedding_bag")
        return "triton" if on_kernels else "torch"

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw rows of expected length 1, row 0 zero."""
        for name, table in self.tables.items():
            weight = self.weight(name)
            nn.init.normal_(weight, std=1 / math.sqrt(table.embedding_dim))
            weight[0].zero_()

    def weight(self, table: str) -> nn.Parameter:
        """Return the weights of a table, [num_rows, embedding_dim]."""
        bags = cast("nn.ModuleDict", self.collection.embedding_bags)
        if table not in bags:
            raise ValueError(f"no table {table!r}; there are {sorted(self.tables)}")
        return cast("nn.Parameter", bags[table].weight)

    def one_row(self, feature: str, row: int) -> Tensor:
        """Take a feature's row of its table, [1, embedding_dim]; for one query, without a batch."""
        table = next(table for name, table in self._features if name == feature)
        weight = self.weight(table.name)
        if not 0 <= row < len(weight):
            check_rows(table.name, torch.tensor([row]), len(weight))
        return weight.detach()[row : row + 1]

    def forward(self, batch: JaggedBatch) -> dict[str, Tensor]:
        """Pool every feature of the tables, feature name -> [B, embedding_dim].

        An example without values of a feature has zeros. Features that no table names are left
        alone. Ids are checked on CPU; elsewhere the check would wait for the device, so check
        with ``check_rows`` before moving a batch that is not trusted.
        """
        features = self._features
        values = {feature: batch[feature] for feature, _ in features}
        updates = self.updates if torch.is_grad_enabled() or self.is_sharded else None
        with self._naming_wrong_ids(values, features):
            if updates is not None:
                return self._pool_by_rows(updates, values, features)
            return self._pool_dense(values, features)

    def joined(self, batch: JaggedBatch) -> Tensor:
        """Pool every feature as ``forward`` does, side by side, [B, sum of embedding_dim].

        Features are in the order of their tables. Where rows move, nothing is copied that
        ``forward`` would cut apart, neither here nor in the backward.
        """
        features = self._features
        values = {feature: batch[feature] for feature, _ in features}
        updates = self.updates if torch.is_grad_enabled() or self.is_sharded else None
        plain = all(
            table.pooling == "sum" and values[feature].weights is None
            for feature, table in features
        )
        if updates is None or not plain:
            pooled = self(batch)
            return torch.cat([pooled[feature] for feature, _ in features], dim=1)
        with self._naming_wrong_ids(values, features):
            self._look_up_once()
            return updates.pool_joined(values, None)

    @contextmanager
    def _naming_wrong_ids(
        self, values: dict[str, Jagged], features: Sequence[tuple[str, TableConfig]]
    ) -> Iterator[None]:
        """Check ids where the lookup inside does not; else say which one it refused."""
        if self.updates is not None and torch.is_grad_enabled() and not self.updates.refuses_ids:
            check_on_cpu(values, features)
        try:
            yield
        except RuntimeError:
            # Lookups on a CPU look at every id themselves; this only says which one it was.
            self._looked_up = False
            check_on_cpu(values, features)
            raise

    def _pool_dense(
        self, values: dict[str, Jagged], features: Sequence[tuple[str, TableConfig]]
    ) -> dict[str, Tensor]:
        by_torchrec = self._by_torchrec and self.updates is None
        for feature, table in features:
            if by_torchrec or table.pooling == "mean" or values[feature].weights is not None:
                dtype = self.weight(table.name).dtype
                weights = pooling_weights(values[feature], table.pooling, dtype)
                values[feature] = values[feature]._replace(weights=weights)
        if by_torchrec:
            return self._pool_by_torchrec(values)
        return {
            feature: summed_rows(self.weight(table.name), values[feature])
            for feature, table in features
        }

    def _pool_by_torchrec(self, values: Mapping[str, Jagged]) -> dict[str, Tensor]:
        from torchrec import KeyedJaggedTensor

        keyed = KeyedJaggedTensor(
            keys=list(values),
            values=torch.cat([value.values for value in values.values()]),
            weights=torch.cat([cast("Tensor", value.weights) for value in values.values()]),
            lengths=torch.cat([value.lengths() for value in values.values()]),
        )
        pooled: dict[str, Tensor] = self.collection(keyed).to_dict()
        return pooled

    def _look_up_once(self) -> None:
        if not torch.is_grad_enabled():
            return
        if self._looked_up:
            raise ValueError(
                "these tables move by rows and were looked up twice in one step, which would move "
                "them twice; join the rows in one batch, call begin_step() before each step, or "
                "train them dense (AdamWConfig(tables='dense'))"
            )
        self._looked_up = True

    def _pool_by_rows(
        self,
        updates: RowUpdates,
        values: dict[str, Jagged],
        features: Sequence[tuple[str, TableConfig]],
    ) -> dict[str, Tensor]:
        self._look_up_once()
        if any(value.weights is not None for value in values.values()):
            weights = [
                pooling_weights(values[name], table.pooling, torch.float32)
                for name, table in features
            ]
            return updates.pool(values, torch.cat(weights))
        pooled = updates.pool(values, None)
        for name, table in features:
            if table.pooling == "mean":
                # Of the result, not of each value: then no value needs a weight.
                lengths = values[name].lengths().clamp(min=1)
                pooled[name] = pooled[name] / lengths[:, None]
        return pooled

    def update_rows(self, updates: RowUpdates | None) -> None:
        """Move rows inside the backward from here on, or with None give dense gradients again.

        Call ``begin_step`` before each forward and ``may_move`` before each backward, as the
        training loop does. ``fbgemm_updates.row_updates_for`` makes them, for the device that the
        layer is on; their state starts at zero.
        """
        self.updates, self._looked_up = updates, False

    def put(self, collection: nn.Module) -> None:
        """Put another collection of the same tables in place; rows move no more by themselves."""
        self.collection, self.updates, self.is_sharded = collection, None, False

    def ask(self, batch: JaggedBatch) -> object:
        """Ask other ranks for the rows of the next lookup; the reply is to live until then."""
        asks = getattr(self.updates, "ask", None)
        return None if asks is None else asks({name: batch[name] for name, _ in self._features})

    def begin_step(self, learning_rate: float) -> None:
        """Return row updates the learning rate of the step that begins."""
        assert self.updates is not None
        self._looked_up = False
        self.updates.begin(learning_rate)

    def may_move(self, loss: Tensor) -> bool:
        """Return whether the backward may run; a loss that is not finite will move no row."""
        assert self.updates is not None
        return self.updates.may_move(loss)

    def update_state(self) -> dict[str, Tensor]:
        """Return the row updates' tensors by names: ``<slot>/<parameter>``, and the step."""
        return {} if self.updates is None else named_state(self.updates)

    @torch.no_grad()
    def load_update_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what ``update_state`` gave, of any backend, or a dense optimizer's same slots."""
        assert self.updates is not None
        load_named_state(self.updates, tensors)
