"""Embedding tables and their pooled lookups, through TorchRec where it is installed.

The one place that knows TorchRec. Both backends keep their weights in modules of the same shape
and name, so a state dict has exactly one ``[num_rows, embedding_dim]`` tensor per table, under
``collection.embedding_bags.<table>.weight``, and loads into either.

Row 0 of every table stands for "unknown". It starts at zero, so a value never met in training
adds nothing, and it learns like any other row where training data holds unknown values. Ragged
batches have no padding; whoever pads with row 0 for ``lookup`` masks those places.

Axes: B examples, M values of one feature in the whole batch, D width.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch

if TYPE_CHECKING:
    from torchrec import EmbeddingBagCollection

Backend = Literal["auto", "torchrec", "torch"]


@dataclass(frozen=True, kw_only=True)
class TableConfig:
    """One table and the features that look up their rows in it.

    Raises:
        ValueError: If a size is not positive, the pooling is unknown, or a feature is named twice.
    """

    name: str
    num_rows: int
    """Rows with row 0, the unknown value; ids are in [0, num_rows)."""
    embedding_dim: int
    features: tuple[str, ...]
    pooling: Literal["sum", "mean"] = "sum"
    """``mean`` divides by the sum of the weights, which is the count where none are given."""

    def __post_init__(self) -> None:
        if not self.name or "." in self.name:
            raise ValueError(f"a table's name must be non-empty without dots, got {self.name!r}")
        if self.num_rows < 1 or self.embedding_dim < 1:
            raise ValueError(
                f"table {self.name!r} needs num_rows >= 1 and embedding_dim >= 1, "
                f"got {self.num_rows} and {self.embedding_dim}"
            )
        if self.pooling not in ("sum", "mean"):
            raise ValueError(
                f"pooling of table {self.name!r} is 'sum' or 'mean', got {self.pooling!r}"
            )
        if not self.features or len(set(self.features)) != len(self.features):
            raise ValueError(
                f"table {self.name!r} needs one or more distinct features, got {self.features}"
            )


def check_rows(feature: str, values: Tensor, num_rows: int) -> None:
    """Refuse ids outside a table; waits for the device that holds ``values``.

    Raises:
        ValueError: If an id is negative or not below ``num_rows``.
    """
    if values.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(values))
    if low < 0 or high >= num_rows:
        raise ValueError(
            f"feature {feature!r} has id {low if low < 0 else high}; its table allows "
            f"[0, {num_rows}). Was it encoded with another vocabulary than the model's?"
        )


def pooling_weights(values: Jagged, pooling: str, dtype: torch.dtype) -> Tensor:
    """Weigh each value such that a weighted sum is the wanted pooling, [M].

    An example whose weights sum to zero has the mean zero.
    """
    if values.weights is None:
        weights = torch.ones(len(values.values), dtype=dtype, device=values.values.device)
    else:
        weights = values.weights.to(dtype)
    if pooling == "sum":
        return weights
    segments = values.segments()  # [M]
    totals = weights.new_zeros(values.batch_size).index_add(0, segments, weights)  # [B]
    return torch.where(totals == 0, totals, 1 / totals)[segments] * weights


class PlainCollection(nn.Module):
    """The weights of all tables in plain torch, named as TorchRec names them."""

    def __init__(self, tables: Sequence[TableConfig]) -> None:
        super().__init__()
        self.embedding_bags = nn.ModuleDict(
            {
                table.name: nn.EmbeddingBag(
                    table.num_rows,
                    table.embedding_dim,
                    mode="sum",
                    include_last_offset=True,
                    # Drawing into a meta tensor would import torch's compiler, for two seconds.
                    _weight=torch.empty(table.num_rows, table.embedding_dim, device="meta"),
                )
                for table in tables
            }
        )


def torchrec_collection(tables: Sequence[TableConfig]) -> EmbeddingBagCollection:
    """Build TorchRec's collection; importing it takes about two seconds."""
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, PoolingType

    # TorchRec 1.8 calls a function that torch 2.13 warns about, once per process, to no one's use.
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    configs = [
        EmbeddingBagConfig(
            name=table.name,
            num_embeddings=table.num_rows,
            embedding_dim=table.embedding_dim,
            feature_names=list(table.features),
            pooling=PoolingType.SUM,
        )
        for table in tables
    ]
    return EmbeddingBagCollection(configs, is_weighted=True, device=torch.device("meta"))


class EmbeddingBags(nn.Module):
    """Several embedding tables, looked up and pooled for all their features at once.

    Backends agree to 1e-6 in float32, forward and gradients. Weighted and mean pooling are both a
    weighted sum (on CPU it costs no more than a plain one), so one collection serves a batch
    whether or not its features carry weights.

    Args:
        tables: The tables; every feature belongs to exactly one.
        backend: ``auto`` takes TorchRec where it is installed, which is what sharded training
            needs, and plain torch elsewhere.

    Raises:
        ValueError: If two tables share a name or a feature, or TorchRec is asked for and absent.
    """

    def __init__(self, tables: Sequence[TableConfig], backend: Backend = "auto") -> None:
        super().__init__()
        features = [feature for table in tables for feature in table.features]
        names = [table.name for table in tables]
        for kind, listed in (("table", names), ("feature", features)):
            twice = sorted({name for name in listed if listed.count(name) > 1})
            if twice or not listed:
                raise ValueError(f"each {kind} must be there once, got {listed}; twice: {twice}")
        if backend == "auto":
            backend = "torchrec" if find_spec("torchrec") else "torch"
        elif backend == "torchrec" and not find_spec("torchrec"):
            raise ValueError(
                "backend 'torchrec' needs TorchRec, which is not installed; install the extra "
                "torchrec-cpu or torchrec-gpu, or take backend 'torch'"
            )
        elif backend not in ("torchrec", "torch"):
            raise ValueError(f"backend is 'auto', 'torchrec' or 'torch', got {backend!r}")
        self.tables = {table.name: table for table in tables}
        self.backend = backend
        self.collection: nn.Module = (
            torchrec_collection(tables) if backend == "torchrec" else PlainCollection(tables)
        )
        # Made on the meta device and filled here: equal seeds then give equal weights, and leave
        # the generator in the same state, whatever the backend.
        self.collection.to_empty(device="cpu")
        self.reset_parameters()

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

    def lookup(self, table: str, rows: Tensor) -> Tensor:
        """Take rows of a table one by one, [...] -> [..., embedding_dim].

        Raises:
            ValueError: If there is no such table or, on CPU, a row lies outside it.
        """
        weight = self.weight(table)
        if rows.device.type == "cpu":
            check_rows(table, rows, len(weight))
        return functional.embedding(rows, weight)

    def forward(self, batch: JaggedBatch) -> dict[str, Tensor]:
        """Pool every feature of the tables, feature name -> [B, embedding_dim].

        An example without values of a feature has zeros. Features that no table names are left
        alone. Ids are checked on CPU; elsewhere the check would wait for the device, so check
        with ``check_rows`` before moving a batch that is not trusted.

        Raises:
            KeyError: If the batch lacks a feature.
            ValueError: If, on CPU, an id lies outside its table.
        """
        values: dict[str, Jagged] = {}
        for table in self.tables.values():
            dtype = self.weight(table.name).dtype
            for feature in table.features:
                jagged = batch[feature]
                if jagged.values.device.type == "cpu":
                    check_rows(feature, jagged.values, table.num_rows)
                values[feature] = jagged._replace(
                    weights=pooling_weights(jagged, table.pooling, dtype)
                )
        if self.backend == "torchrec":
            return self._pool_by_torchrec(values)
        return {
            feature: functional.embedding_bag(
                values[feature].values,
                self.weight(table.name),
                values[feature].offsets,
                mode="sum",
                per_sample_weights=values[feature].weights,
                include_last_offset=True,
            )
            for table in self.tables.values()
            for feature in table.features
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
