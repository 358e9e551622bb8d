"""Embedding tables: names, sizes, how the values of a feature are pooled, and what moves rows.

Axes: B examples, M values of one feature in the whole batch, D width.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.data.batch import Jagged, cut_offsets

if TYPE_CHECKING:
    from torchrec import EmbeddingBagCollection

Backend = Literal["auto", "torchrec", "triton", "torch"]


@dataclass(frozen=True, kw_only=True)
class TableConfig:
    """One table and the features that look up their rows in it."""

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


def check_tables(tables: Sequence[TableConfig]) -> None:
    """Refuse tables that share a name or a feature, and no tables at all."""
    features = [feature for table in tables for feature in table.features]
    names = [table.name for table in tables]
    for kind, listed in (("table", names), ("feature", features)):
        twice = sorted({name for name in listed if listed.count(name) > 1})
        if twice or not listed:
            raise ValueError(f"each {kind} must be there once, got {listed}; twice: {twice}")


def check_rows(feature: str, values: Tensor, num_rows: int) -> None:
    """Refuse ids outside a table; waits for the device that holds ``values``."""
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


def joined(
    values: Mapping[str, Jagged], features: Sequence[str], room: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Concatenate features: ids [M], in ``room`` if given, and offsets [F * B + 1]."""
    own = [values[feature] for feature in features]
    if len(own) == 1:
        return own[0].values, own[0].offsets
    # A few operations for all features, since each costs more than the numbers of most.
    offsets = torch.stack([one.offsets for one in own])  # [F, B + 1]
    after = offsets[:, 1:]
    after[1:] += after[:-1, -1].cumsum(0)[:, None]
    ids = torch.cat([one.values for one in own], out=room)
    return ids, torch.cat([offsets[0, :1], after.reshape(-1)])


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


def looked_up(vectors: Tensor, places: Tensor) -> Tensor:
    """Take rows [R, D] by their places [P], [P, D].

    On a CPU the gradients of equal rows are added in their order. On a GPU they are added as they
    come: torch's embedding adds them one after the other for up to 3,072 places, a fifth of a small
    training step, and sorts the places for more.
    """
    if vectors.is_cuda:
        return vectors.index_select(0, places)
    return functional.embedding(places, vectors)


def summed_rows(table: Tensor, values: Jagged) -> Tensor:
    """Sum the rows of each example's values, by their weights if they have any, [B, D]."""
    if table.is_cuda or not table.requires_grad:
        return summed_as_torch(table, values)
    apply: Any = _SummedRows.apply
    pooled: Tensor = apply(table, *values)
    return pooled


def summed_as_torch(rows: Tensor, values: Jagged) -> Tensor:
    """Do the same with torch's own gradient."""
    return functional.embedding_bag(
        values.values,
        rows,
        values.offsets,
        mode="sum",
        per_sample_weights=values.weights,
        include_last_offset=True,
    )


class _SummedRows(torch.autograd.Function):
    """``embedding_bag`` whose gradient on a CPU is a sum too, of the examples that read each row.

    Equal to torch's, which takes two to four times as long.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, *parts: Any) -> Tensor:
        ctx.save_for_backward(*parts)
        ctx.num_rows = len(table)
        return summed_as_torch(table, Jagged(*parts))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        values = Jagged(*ctx.saved_tensors)
        order = values.values.argsort(stable=True)
        counts = torch.bincount(values.values, minlength=ctx.num_rows)
        readers = Jagged(
            values.segments()[order],
            cut_offsets(counts),
            None if values.weights is None else values.weights[order],
        )
        return summed_as_torch(gradients[0].contiguous(), readers), None, None, None


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


def check_on_cpu(values: Mapping[str, Jagged], features: Sequence[tuple[str, TableConfig]]) -> None:
    """Refuse ids outside their table where looking waits for no device."""
    for feature, table in features:
        if values[feature].values.device.type == "cpu":
            check_rows(feature, values[feature].values, table.num_rows)


FILLED_LATER = ContextVar("filled_later", default=False)
"""Whether tables that are made stay undrawn."""


@contextmanager
def filled_later() -> Iterator[None]:
    """Leave tables that are made inside undrawn: the weights of a file are about to fill them.

    Drawing the rows of a million items takes longer than reading them.
    """
    token = FILLED_LATER.set(True)
    try:
        yield
    finally:
        FILLED_LATER.reset(token)


State = dict[str, dict[str, Tensor]]
"""Slot name to table name to tensor, [num_rows, embedding_dim] or row-wise [num_rows]."""
PATH = "collection.embedding_bags.{}.weight"
"""State name of a table's weights in its layer."""


class RowUpdates(Protocol):
    """Looks rows up such that the backward moves them."""

    weights: Mapping[str, nn.Parameter]
    refuses_ids: bool
    """True if ``pool`` on a CPU raises a RuntimeError if an id is outside its table."""

    def pool(self, values: Mapping[str, Jagged], weights: Tensor | None) -> dict[str, Tensor]:
        """Sum every feature's rows, feature name -> [B, D].

        Args:
            weights: Factor of each value, all features one after the other, [M], or None.
        """

    def pool_joined(self, values: Mapping[str, Jagged], weights: Tensor | None) -> Tensor:
        """Do the same, all features side by side in the order of their tables, [B, sum of D]."""

    def begin(self, learning_rate: float) -> None:
        """Prepare for a step."""

    def may_move(self, loss: Tensor) -> bool:
        """See to it that a loss that is not finite moves nothing."""

    def state(self) -> State:
        """Return the tensors of the state, not copies."""

    def num_steps(self) -> int:
        """Count the updates done; waits for the device."""

    def set_num_steps(self, num_steps: int) -> None:
        """Set the count, after the state's tensors were written."""


def named_state(updates: RowUpdates) -> dict[str, Tensor]:
    """Return the state by a checkpoint's names: ``<slot>/<parameter>``, and the step."""
    tensors = {
        f"{slot}/{PATH.format(name)}": tensor
        for slot, by_table in updates.state().items()
        for name, tensor in by_table.items()
    }
    step = torch.tensor(float(updates.num_steps()))
    return tensors | {f"step/{PATH.format(name)}": step.clone() for name in updates.weights}


def load_named_state(updates: RowUpdates, tensors: Mapping[str, Tensor]) -> None:
    """Load what ``named_state`` gave."""
    own = named_state(updates)
    for name, tensor in own.items():
        given = tensors.get(name)
        if given is None or given.shape != tensor.shape:
            raise ValueError(
                f"the state of row updates needs {name!r} of shape {tuple(tensor.shape)}, got "
                f"{'nothing' if given is None else tuple(given.shape)}; was it saved by another "
                "rule?"
            )
        tensor.copy_(given)
    updates.set_num_steps(max(int(own[name]) for name in own if name.startswith("step/")))
