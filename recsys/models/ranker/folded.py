"""A ranker's weights folded to score a query's candidates on a CPU by one compiled function.

Everything that does not depend on the request is precomputed (kernels/one_query/ranker.c):

- a candidate's key and the query's are one product: q(c) . k = c . (W_q^T k) + b_q . k, and k is
  linear in an event's vector, so the events are folded by one small product too;
- the norm before experts, whose only layers are linear without bias and rectifier, is one number of
  a row: relu(W (s x)) = s relu(W x) for s > 0. Its weights go into the experts', its number into
  the row's routing weights;
- heads are two products for all tasks; features of candidates give a field and the correction of
  the base score by one.

Scores equal training's up to rounding. Not used with adapters, on other devices, or without the
compiled functions: layers then run as in training.

Axes: N item rows, C candidates of a tile, D width of a field, W width of all fields, E experts, F
their inner width, T tasks, P places of a history, G features of a candidate.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from recsys.kernels.one_query.ranker_op import NetworkOfOne, filled_up, panels
from recsys.layers.attention.target import TargetAttention
from recsys.layers.moe.experts import SparseMoe
from recsys.layers.moe.router import Routing
from recsys.models.ranker.network import (
    MAX_STANDARDISED,
    Correction,
    CrossNetwork,
    Heads,
    QueryReader,
    Trunk,
    WideLinear,
)

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
MOST_EXPERTS = 4
"""Maximum experts per visited expert, up to which all of them are multiplied."""


class Layers(NamedTuple):
    """The layers of a ranker that candidates go through."""

    attention: TargetAttention
    correction: Correction | None
    candidate_dense: nn.Linear | None
    cross: CrossNetwork
    trunk: Trunk
    heads: Heads

    def folded(self) -> tuple[nn.Module, ...]:
        return self.attention, self.cross, self.trunk, self.heads


class FoldedReader(NamedTuple):
    """An encoded query, [P] places of its history."""

    keys: Floats
    """[P, D + 1 and more], in the candidates' space; after D columns the offsets."""
    offsets: Floats
    """[P], -inf where there is no event."""
    values: Floats
    """[P, D]."""
    fields: Floats
    """[W - ...]."""


class _Linear(NamedTuple):
    """A product and its bias."""

    weight: Tensor
    """[O, I]."""
    bias: Floats
    """[O, 1]."""

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor) -> _Linear:
        kept = weight.detach().float().contiguous()
        return cls(kept, bias.detach().float().numpy().reshape(-1, 1).copy())


class _Trunk(NamedTuple):
    """Experts of a trunk, concatenated, or its one network."""

    up: Tensor
    """[E F, W]."""
    up_bias: Floats | None
    """[F, 1], of the one network."""
    down: Tensor
    """[W, E F]."""
    down_bias: Floats | None
    """[W, 1]."""
    eps: float


class FoldedRanker:
    """Scores tiles of candidates; made by ``folded``."""

    def __init__(self, model: Layers, items: Tensor, routing: Routing | None) -> None:
        """Fold the weights; they must not change afterwards.

        Args:
            items: Fields of all items, [N, D].
        """
        self._items: Floats = items.numpy()
        # Beside an item's field stands its routing: both are looked up at once.
        table = [items]
        if routing is not None:
            num_experts = cast("SparseMoe", model.trunk.body).config.num_experts
            weights = routing.weights.new_zeros(len(routing.experts), num_experts)
            table.append(weights.scatter_(1, routing.experts, routing.weights))
        self._table: Floats = torch.cat(table, dim=1).detach().numpy()
        self._fold_attention(model.attention)
        self._fold_dense(model)
        self._cross = [
            _Linear.of(one.weight, one.bias)
            for one in (cast("WideLinear", layer) for layer in model.cross.layers)
        ]
        self._trunk = _folded_trunk(model.trunk)
        first, last = model.heads.linear(0), model.heads.linear(2)
        self._hidden = _Linear.of(
            torch.cat([one.weight for one in first]), torch.cat([one.bias for one in first])
        )
        self._last = _Linear.of(
            torch.block_diag(*(one.weight for one in last)),  # type: ignore[no-untyped-call]
            torch.cat([one.bias for one in last]),
        )
        self.network = self._compile()
        self.query_features: tuple[str, ...] = ()
        """Names of the features that a query's fields are made of."""
        self.query_fields: dict[tuple[int, ...], Floats] = {}
        """Encoded features of queries by their rows, [W - ...]; kept by who encodes them."""

    def _compile(self) -> NetworkOfOne:
        """Arrange the weights for the compiled network; fields as of ``Network`` in ranker.c."""
        dim, trunk, width = self._items.shape[1], self._trunk, self._trunk.up.shape[1]
        num_experts = self._table.shape[1] - dim
        hidden, num_tasks = len(trunk.up) // max(1, num_experts), len(self._last.weight)
        ups = [panels(one.numpy()) for one in torch.split(trunk.up, hidden)]
        downs = [panels(one.numpy()) for one in torch.split(trunk.down, hidden, dim=1)]
        dense = self._dense
        crossed = [panels(one.weight.numpy()) for one in self._cross]
        biases = [filled_up(one.bias[:, 0]) for one in self._cross]
        return NetworkOfOne(
            dim=dim,
            num_tasks=num_tasks,
            num_rows=len(self._table),
            num_experts=num_experts,
            hidden=hidden,
            width=width,
            dense_dim=self._dense_dim,
            num_dense=0 if dense is None else dense.weight.shape[1],
            heads_hidden=len(self._hidden.weight),
            num_layers=len(self._cross),
            base=-1 if self._base is None else self._base,
            table=self._table,
            keys=panels(self._keys.T),
            key_bias=filled_up(self._key_bias),
            means=self._means,
            scales=None if self._means is None else self._scales,
            dense=None if dense is None else panels(dense.weight.numpy()),
            dense_bias=None if dense is None else filled_up(dense.bias[:, 0]),
            cross=np.concatenate(crossed) if crossed else None,
            cross_bias=np.concatenate(biases) if biases else None,
            up=np.concatenate(ups),
            up_bias=None if trunk.up_bias is None else filled_up(trunk.up_bias[:, 0]),
            down=np.concatenate(downs),
            down_bias=None if trunk.down_bias is None else filled_up(trunk.down_bias[:, 0]),
            heads=panels(self._hidden.weight.numpy()),
            heads_bias=filled_up(self._hidden.bias[:, 0]),
            last=self._last.weight,
            last_bias=np.ascontiguousarray(self._last.bias[:, 0]),
            eps=float(trunk.eps),
            most=float(MAX_STANDARDISED),
            nothing=self._nothing,
            recency=self._recency,
            num_recency=len(self._recency),
        )

    def _fold_attention(self, attention: TargetAttention) -> None:
        key, query = attention.key, attention.query
        scale = key.out_features**-0.5
        own = torch.cat([query.weight, query.bias[:, None]], dim=1).detach().double()  # [A, D + 1]
        self._keys: Floats = (scale * key.weight.double().T @ own).detach().float().numpy()
        self._key_bias: Floats = (scale * key.bias.double() @ own).detach().float().numpy()
        self._nothing: Floats = attention.nothing.detach().numpy().copy()
        # The latest event last.
        self._recency: Floats = np.ascontiguousarray(
            attention.recency.weight.detach().flip(0).numpy()
        )

    def _fold_dense(self, model: Layers) -> None:
        """Arrange what reads the features: the field's rows, then the correction's."""
        self._base: int | None = None
        self._means: Floats | None = None
        parts = [] if model.candidate_dense is None else [model.candidate_dense]
        weights: list[Tensor] = [one.weight for one in parts]
        biases: list[Tensor] = [one.bias for one in parts]
        self._dense_dim = len(weights[0]) if weights else 0
        if (correction := model.correction) is not None:
            self._base, self._means = correction.column, correction.means.numpy()[:, None].copy()
            self._scales: Floats = correction.scales.numpy()[:, None].copy()
            weights, biases = [*weights, correction.weight], [*biases, correction.bias]
        self._dense = _Linear.of(torch.cat(weights), torch.cat(biases)) if weights else None

    def read(self, reader: QueryReader) -> FoldedReader:
        history = reader.history
        values = history.values[0].contiguous().numpy()
        keys = self.network.keys(values)
        offsets = keys[:, values.shape[1]] + history.mask[0, 0].numpy()
        return FoldedReader(keys, offsets, values, reader.fields.numpy()[0])


def _folded_trunk(trunk: Trunk) -> _Trunk:
    norm = trunk.norm
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    if isinstance(trunk.body, SparseMoe):
        body = trunk.body.experts
        num_experts, hidden_dim, width = body.up.shape
        up = (body.up * norm.weight).reshape(num_experts * hidden_dim, width).detach()
        down = body.down.permute(1, 0, 2).reshape(width, num_experts * hidden_dim)
        return _Trunk(up, None, down.detach().contiguous(), None, eps)
    first, _, last = cast("tuple[WideLinear, nn.ReLU, WideLinear]", trunk.body)
    up, up_bias = _Linear.of(first.weight * norm.weight, first.bias)
    down, down_bias = _Linear.of(last.weight, last.bias)
    return _Trunk(up, up_bias, down, down_bias, eps)


def folded(model: Layers, items: Tensor, routing: Routing | None) -> FoldedRanker | None:
    """Fold a ranker's weights; None on other devices or for other architectures.

    Args:
        items: Fields of all items, [N, D].
    """
    body = model.trunk.body
    if isinstance(body, SparseMoe):
        few = body.config.num_experts <= MOST_EXPERTS * body.config.top_k
        fits = routing is not None and few
    else:
        fits = isinstance(body, nn.Sequential)
    weights = [weight for part in model.folded() for weight in part.parameters()]
    plain = all(one.device.type == "cpu" and one.dtype == torch.float32 for one in weights)
    if not (fits and plain):
        return None
    with torch.no_grad():
        return FoldedRanker(model, items, routing)
